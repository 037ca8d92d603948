"""The moments of a race: when which tokens were there, by the cost model or by the clock."""

import numpy as np
import streamlit as st

from specviz.analysis import predict, round_times
from specviz.errors import SpecVizError
from specviz.trace.trace import Trace
from specviz.ui.race_view import Moments
from specviz.ui.requests import Drawing, MeasuredRace, RaceRequest
from specviz.ui.shown import Shown
from specviz.ui.watching import outcome, watch
from specviz.ui.workshop import workshop


def modelled_race(shown: Shown, tau: float, max_draft: int, on_fail: str) -> tuple[Moments, Moments]:
    """Plain and speculative moments with the cost model's times; the plain ones evenly spread over their sum.

    Raises:
        SpecVizError: there is no cost model.
    """
    if shown.cost is None:
        raise SpecVizError("The pass times of this pair were not measured, so its race has no clock yet.")
    trace = shown.trace(tau, max_draft, on_fail)
    times = round_times(trace, shown.cost)
    plain_seconds = float(predict(trace, shown.cost).plain_seconds)
    number = len(trace.run.output_ids)
    plain = [[plain_seconds * (token + 1) / number, token + 1] for token in range(number)]
    return plain, moments(trace, times.draft + times.verify + times.overhead)


def moments(trace: Trace, seconds: np.ndarray) -> Moments:
    """Moments of a trace whose rounds took `seconds`."""
    committed = trace.rounds["start"] + trace.rounds["emitted"]
    return [list(moment) for moment in zip(np.cumsum(seconds).tolist(), committed.tolist(), strict=True)]


def measured_race(shown: Shown, tau: float, max_draft: int, on_fail: str) -> MeasuredRace | None:
    """Offer to run the race for real; what came of it, if it was run at these settings in this session."""
    recording, pair = shown.recording, shown.pair
    if pair is None:
        st.caption(
            "This race cannot be run for real: the file names models that the app's catalogue does not have. "
            "Run the prompt with those models on the Explore page, then race that recording."
        )
        return None
    tokens = len(recording.output_ids)
    asked = RaceRequest(pair, recording.prompt, tokens, tau, max_draft, Drawing.of(recording), on_fail)
    job = workshop().job(st.session_state.get("race-job"))
    if job is not None and job.request == asked:
        if job.over:
            outcome(job)
        else:
            watch(job.id, "race")
        return job.race
    if st.button("Run it for real", key="race-run", help="Loads the pair, then times one run each, on this machine."):
        st.session_state["race-job"] = workshop().submit(asked).id
        st.rerun()
    return None
