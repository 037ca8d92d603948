"""What a link carries: what is looked at, the threshold, the draft length and what happens to the token that fails. The
page is the path.

What is looked at is a gallery item, a kept recording set, or the run of an own prompt; beside it a link may carry the
job that records a set, so that a reloaded page finds it again.

The session remembers them too, so that they stay when the reader goes from page to page.
"""

import math

import streamlit as st

from specviz.replay.policies import ON_FAIL
from specviz.trace.kept import name_of_run

DEFAULT_TAU = 0.4
DEFAULT_MAX_DRAFT = 5
MEMORY = "link"  # key of the session's copy
LOOKED_AT = ("item", "set")  # at most one of them
CARRIED = (*LOOKED_AT, "run", "sweep", "tau", "gamma", "on_fail")
PREFIXES = {"item": "gallery:", "set": "kept:"}  # of the names of sets on offer


def _asked(name: str, default):
    remembered = st.session_state.get(MEMORY, {})
    return st.query_params.get(name, remembered.get(name, default))


def tau_from_link() -> float:
    """The threshold that the link asks for; the last one, or a default, where it asks for none or for nonsense."""
    try:
        tau = float(_asked("tau", DEFAULT_TAU))
    except ValueError:
        return DEFAULT_TAU
    return min(1.0, max(0.0, tau)) if math.isfinite(tau) else DEFAULT_TAU


def max_draft_from_link(longest: int) -> int:
    """The draft length that the link asks for, within 1 and `longest`."""
    try:
        asked = int(_asked("gamma", DEFAULT_MAX_DRAFT))
    except ValueError:
        asked = DEFAULT_MAX_DRAFT
    return min(longest, max(1, asked))


def on_fail_from_link() -> str:
    """What happens to the token that fails, as the link asks for it."""
    asked = _asked("on_fail", ON_FAIL[0])
    return asked if asked in ON_FAIL else ON_FAIL[0]


def item_from_link(names: list[str]) -> str | None:
    """The gallery item that the link names, if there is such an item."""
    name = _asked("item", None)
    return name if name in names else None


def run_from_link() -> str | None:
    """The id of the run that the link names."""
    return _asked("run", None)


def sweep_from_link() -> str | None:
    """The id of the job that records a set, as the link names it."""
    return _asked("sweep", None)


def set_from_link() -> str | None:
    """The kept set that the link asks for, by its name on offer; whether it is there is not known yet."""
    name = _asked("set", None)
    return None if name is None else PREFIXES["set"] + name


def name_from_link(names: list[str]) -> str | None:
    """Which of `names`, recording sets on offer, the link asks for."""
    run = _asked("run", None)
    asked = [f"{prefix}{_asked(kind, None)}" for kind, prefix in PREFIXES.items()]
    asked += [PREFIXES["set"] + name_of_run(run)] if run else []
    return next((name for name in asked if name in names), None)


def place_from_link(names: list[str]) -> int:
    """Where among `names` is the one that the link asks for; the first one if none is."""
    name = name_from_link(names)
    return 0 if name is None else names.index(name)


def put_shown_into_link(name: str) -> None:
    """Write into the address bar which recording set is looked at: a gallery item, a kept set, or none of them."""
    kind = next((kind for kind, prefix in PREFIXES.items() if name.startswith(prefix)), None)
    for other in LOOKED_AT:
        if other != kind:
            st.session_state.setdefault(MEMORY, {}).pop(other, None)
            if other in st.query_params:
                del st.query_params[other]
    if kind is not None:
        put_into_link(**{kind: name.removeprefix(PREFIXES[kind])})


def carry_over() -> None:
    """Bring address and memory of the session together: going to another page empties the address."""
    memory = st.session_state.setdefault(MEMORY, {})
    if any(kind in st.query_params for kind in LOOKED_AT):
        for kind in LOOKED_AT:
            memory.pop(kind, None)
    memory.update({name: st.query_params[name] for name in CARRIED if name in st.query_params})
    st.query_params.update({name: text for name, text in memory.items() if name not in st.query_params})


def put_into_link(**values: str | float | int) -> None:
    """Write into the address bar, without a rerun, what differs from what stands there; and remember it."""
    texts = {name: f"{value:.9g}" if isinstance(value, float) else str(value) for name, value in values.items()}
    st.session_state.setdefault(MEMORY, {}).update(texts)
    for name, text in texts.items():
        if st.query_params.get(name) != text:
            st.query_params[name] = text


def new_page(title: str) -> bool:
    """Whether the reader has just come to the page of this title, from another one or from outside."""
    came = st.session_state.get("page") != title
    st.session_state["page"] = title
    return came
