"""Choosing what a page shows: a recording set, and one recording of it.

Every page offers every set; where the chosen one cannot be shown, the page says why and what to do.
"""

import streamlit as st

from specviz.errors import SpecVizError
from specviz.ui import query
from specviz.ui.costs import measure_missing
from specviz.ui.library import WHOLE_GALLERY, KeptShownSet, ShownSet, sets_on_offer
from specviz.ui.messages import problem
from specviz.ui.shown import Shown

PAGES = {
    "Explore": "pages/explore.py",
    "Thresholds": "pages/thresholds.py",
    "Tuning": "pages/tuning.py",
    "Policies": "pages/arena.py",
    "Calibration": "pages/calibration.py",
    "Context": "pages/context.py",
    "Race": "pages/race.py",
    "Data": "pages/data.py",
}  # those that show a recording set
Offered = ShownSet | KeptShownSet


def choose_set(key: str, fewest: int = 1, priced: bool = True, column=st, prefers: int = 2) -> Offered | None:
    """Let the reader choose a recording set; None, with a sentence, if there is none or the page cannot show it.

    Args:
        fewest: prompts that the page needs.
        priced: whether the page needs a cost model.
        column: where the choice is drawn; sentences go below it.
        prefers: prompts of a set that the page begins with, if there is one.
    """
    offered = sets_on_offer()
    if not offered:
        st.info("There is no recording set yet: record a prompt on the Explore page or load a set on the Data page.")
        return None
    names = list(offered)
    say_if_gone(names)
    if st.session_state.get(key) not in names:  # the reader comes to the page, or the set was deleted
        st.session_state[key] = first_set(offered, fewest, priced, prefers)
    name = column.selectbox("Recording set", names, format_func=lambda name: offered[name].title, key=key)
    if name != WHOLE_GALLERY or query.set_from_link():
        query.put_shown_into_link(name)
    return offered[name] if _can_be_shown(name, offered[name], fewest, priced) else None


def choose_recording(key: str, priced: bool = True, columns=(st, st)) -> Shown | None:
    """Let the reader choose a recording set and one recording of it; None, with a sentence, as `choose_set`."""
    chosen = choose_set(f"{key}-set", priced=priced, column=columns[0], prefers=1)
    return None if chosen is None else choose_member(chosen, f"{key}-member", columns[1])


def choose_member(chosen: Offered, key: str, column=st) -> Shown:
    """Let the reader choose one recording of a set; nothing is asked where there is only one."""
    members = chosen.members
    if len(members) == 1:
        return members[0]
    place = column.selectbox(
        "Recording", range(len(members)), format_func=lambda place: members[place].title[:80], key=key
    )
    return members[place]


def say_if_gone(names: list[str]) -> None:
    """Say, once, that the set which the link asks for was deleted; the page shows another one."""
    asked = query.set_from_link()
    if asked is not None and asked not in names:
        st.info("The recording set that was open here is no longer in the project folder; another one is shown.")
        query.put_shown_into_link("")


def links_to(name: str, pages: tuple[str, ...]) -> None:
    """Links that open a set on other pages.

    Args:
        name: of the set on offer.
        pages: titles of PAGES.
    """
    params = {kind: name.removeprefix(prefix) for kind, prefix in query.PREFIXES.items() if name.startswith(prefix)}
    with st.container(horizontal=True, gap="small"):
        for title in pages:
            st.page_link(PAGES[title], label=title, query_params=params or None)


def first_set(offered: dict[str, Offered], fewest: int = 1, priced: bool = True, prefers: int = 2) -> str:
    """The name of the set that a page begins with: the link's if it was kept or has what the page needs and prefers,
    else the newest that has; see `choose_set`."""
    linked = query.name_from_link(list(offered))
    if linked is not None and linked == query.set_from_link():
        return linked
    usable = {name: one for name, one in offered.items() if one.prompts >= fewest and (one.priced or not priced)}
    preferred = [name for name, one in usable.items() if one.prompts >= prefers]
    return linked if linked in preferred else next(iter([*preferred, *usable, *offered]))


def _can_be_shown(name: str, chosen: Offered, fewest: int, priced: bool) -> bool:
    """Whether the page can show this set; says what is missing if not."""
    try:
        members = chosen.members
    except SpecVizError as error:
        problem("This recording set cannot be opened.", error)
        return False
    if priced and not chosen.priced:
        st.info("The times of this pair's passes were not measured, so this set has no speedups. It can be seen on:")
        links_to(name, ("Explore", "Calibration", "Context", "Data"))
        if isinstance(chosen, KeptShownSet) and chosen.entry.sources:
            measure_missing(members, "missing")
        return False
    if chosen.prompts < fewest:
        st.info(
            f"This set holds one prompt, and this page needs at least {fewest}: it judges a choice on prompts that did "
            "not make it. Record a set of prompts on Thresholds or choose another set. One prompt can be seen on:"
        )
        links_to(name, ("Explore", "Thresholds", "Race"))
        return False
    return True
