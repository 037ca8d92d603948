"""The one recommendation for a set of recordings, as every page shows it."""

from collections.abc import Callable

import streamlit as st

from specviz.analysis.verdict import SPECULATE, Advice, advise, setting_words
from specviz.replay.policies import ON_FAIL
from specviz.ui import query
from specviz.ui.glossary import define
from specviz.ui.judging import tuning_of
from specviz.ui.library import ShownSet
from specviz.ui.measuring import checks_of

FATES = {"drop": "drop: withheld", "keep": "keep: proposed"}


def advice_of(offered: ShownSet) -> Advice:
    """What to do with this set's pair, given everything that this session measured of it.

    Raises:
        SpecVizError: see `tune`.
    """
    return advise(tuning_of(offered), checks_of(offered))


def show_recommendation(offered: ShownSet, key: str, show: Callable[[float, int, str], None]) -> None:
    """The recommendation, and a button that opens its setting.

    Args:
        show: brings the page to a threshold, a draft length and a fate of the token that fails.
    """
    advice = advice_of(offered)
    st.text(f"{offered.title}, of all settings: {advice.recommendation}")
    if advice.answer == SPECULATE:
        choice = advice.choice
        st.button(
            f"Show {setting_words(choice)}",
            key=f"{key}-show-best",
            on_click=show,
            args=(choice.threshold, choice.max_draft, choice.on_fail),
        )


def choose_on_fail(key: str) -> str:
    """Ask what happens to the token that fails the threshold, and write it into the link."""
    on_fail = st.segmented_control(
        "Token that fails",
        ON_FAIL,
        default=query.on_fail_from_link(),
        format_func=FATES.get,
        required=True,
        key=key,
        help=define("failing_token"),
    )
    query.put_into_link(on_fail=on_fail)
    return on_fail
