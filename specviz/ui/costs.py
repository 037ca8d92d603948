"""The pass times behind every price: when and where they were measured, and the button that measures them again."""

from collections.abc import Sequence
from dataclasses import replace

import streamlit as st

from specviz.analysis import CostModel
from specviz.ui.requests import CostRequest, PairChoice
from specviz.ui.shown import Shown
from specviz.ui.watching import outcome, watch
from specviz.ui.workshop import workshop

JOBS = "cost-jobs"  # of this session: (pair, pass mode) -> id of the job that measured its costs again
_REPRICED = "repriced"  # of this session: (name, job id) -> the recording with the new prices


def cost_caption(cost: CostModel | None, pair: PairChoice | None, key: str) -> None:
    """Say when and on which device the times were measured, with a button that measures them again on this machine.

    Whatever this session shows of the pair is then priced with the new times, and they are kept for later sessions.

    Args:
        cost: the cost model that prices what is shown; None shows nothing.
        pair: how to load the pair (`Shown.pair`); without it there is no button.
        key: of the button, unique on the page.
    """
    if cost is None:
        return
    mode = cost.mode_name()
    job = workshop().job(st.session_state.get(JOBS, {}).get((pair, mode)))
    left, right = st.columns([4, 1], vertical_alignment="center")
    left.caption(cost.origin)
    if pair is None or mode not in cost.modes or cost.modes[mode].compiled:
        return  # unknown models cannot be loaded, and compiling takes minutes
    if job is not None and not job.over:
        watch(job.id, f"{key}-cost")
        return
    if job is not None:
        outcome(job)
    help_text = "Loads the pair and times its passes on this machine, for about a minute. The new times replace these."
    if right.button("Measure again", key=f"{key}-measure-costs", help=help_text, width="stretch"):
        request = CostRequest(pair, mode, (cost.contexts[0], cost.contexts[-1]), cost.modes[mode].longest_draft)
        st.session_state.setdefault(JOBS, {})[pair, mode] = workshop().submit(request).id
        st.rerun()


def measure_missing(members: Sequence[Shown], key: str) -> None:
    """Offer to measure the times of a set that was recorded here without them; the set is then kept with them.

    Args:
        key: of the button, unique on the page.
    """
    pair, recordings = members[0].pair, [shown.recording for shown in members]
    mode = recordings[0].settings.get("pass_mode")
    job = workshop().job(st.session_state.get(JOBS, {}).get((pair, mode)))
    if job is not None and not job.over:
        watch(job.id, f"{key}-cost")
        return
    if job is not None:
        outcome(job)
    help_text = "Loads the pair and times its passes on this machine, for about a minute."
    if st.button("Measure the times now", key=f"{key}-measure-costs", help=help_text):
        shortest = min(len(one.prompt_ids) for one in recordings)
        longest = max(len(one.prompt_ids) + len(one.output_ids) for one in recordings)
        request = CostRequest(pair, mode, (shortest, longest), recordings[0].max_draft)
        st.session_state.setdefault(JOBS, {})[pair, mode] = workshop().submit(request).id
        st.rerun()


def repriced(shown: Shown) -> Shown:
    """The recording with the costs that this session measured again, if it has; else as it is."""
    mode = shown.recording.settings.get("pass_mode")
    job = workshop().job(st.session_state.get(JOBS, {}).get((shown.pair, mode)))
    if shown.cost is None or job is None or job.cost is None or job.cost.measured_at <= shown.cost.measured_at:
        return shown
    known = st.session_state.setdefault(_REPRICED, {})
    name = f"{shown.name}:{job.id}"
    if name not in known:
        known[name] = replace(shown, name=name, cost=job.cost, _packed={}, _ahead={})
    return known[name]
