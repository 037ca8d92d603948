"""The pair that forms ask for. It is remembered, so that models are named once.

One choice serves every form of a session; the project folder keeps the last one that ran for the next session.
"""

import json
from dataclasses import replace

import streamlit as st

from specviz.errors import SpecVizError
from specviz.models.catalogue import PAIRS
from specviz.trace.files import whole_file
from specviz.trace.project import project_folder
from specviz.ui.glossary import define
from specviz.ui.requests import PairChoice

PRECISIONS = ("auto", "fp32", "bf16", "fp16", "int8", "int8+t0", "nf4", "nf4+double", "fp4")
OTHER = "other"
MEMORY = "pair"  # key of the session's copy
TYPED = "typed-models"  # key of the paths and hub ids that were typed
STAYS = "session"  # how long what is filled in stays: also while a job is watched, and from page to page
FILE = "last_pair.json"
FIELDS = ("target", "draft", "target_precision", "draft_precision")
BUILT_IN = PairChoice(PAIRS[0].target.source, PAIRS[0].draft.source)


def last_pair() -> PairChoice:
    """The pair that this session chose last, else the one that ran last on this machine, else the built-in one."""
    if MEMORY not in st.session_state:
        st.session_state[MEMORY] = _read() or BUILT_IN
    return st.session_state[MEMORY]


def remember_pair(choice: PairChoice) -> None:
    """Keep the pair of a job for the next session too. A folder that cannot be written forgets it, nothing else."""
    st.session_state[MEMORY] = choice
    try:
        with whole_file(project_folder() / FILE) as temporary:
            temporary.write_text(json.dumps({name: getattr(choice, name) for name in FIELDS}) + "\n", "utf-8")
    except SpecVizError:
        pass


def _read() -> PairChoice | None:
    try:
        values = json.loads((project_folder() / FILE).read_text("utf-8"))
        choice = PairChoice(*(values[name] for name in FIELDS))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    texts = all(isinstance(getattr(choice, name), str) for name in FIELDS)
    known = texts and {choice.target_precision, choice.draft_precision} <= set(PRECISIONS)
    return choice if known and choice.target and choice.draft else None


def choose_models(key: str, column=st) -> PairChoice:
    """Ask for a target and a draft, the last pair to begin with; the precisions are those of the last pair.

    Args:
        column: where the choice among the catalogue's pairs is drawn; paths and notes go below it.
    """
    last = last_pair()
    titles = {pair.name: pair.title for pair in PAIRS} | {OTHER: "Another pair…"}
    sources = {pair.name: (pair.target.source, pair.draft.source) for pair in PAIRS}
    listed = next((name for name, pair in sources.items() if pair == (last.target, last.draft)), OTHER)
    st.session_state.setdefault(f"{key}-pair", listed)
    name = column.selectbox("Pair", list(titles), format_func=titles.get, key=f"{key}-pair")
    if name == OTHER:
        named = (last.target, last.draft) if listed == OTHER else st.session_state.get(TYPED, ("", ""))
        either = st.columns(2)
        fields = (f"{key}-target", f"{key}-draft")
        for field, source in zip(fields, named, strict=True):
            st.session_state.setdefault(field, source)
        help_text = "A folder, a .gguf file, or a model's name on the hub. Target and draft must share a tokenizer."
        target = either[0].text_input("Target", key=fields[0], help=help_text).strip()
        draft = either[1].text_input("Draft", key=fields[1]).strip()
        st.session_state[TYPED] = target, draft  # they come back after a look at a listed pair
    else:
        target, draft = sources[name]
        note = next(pair.note for pair in PAIRS if pair.name == name)
        if note:
            st.caption(note)
    choice = replace(last, target=target, draft=draft)
    st.session_state[MEMORY] = choice
    return choice


def choose_pair(key: str, most_tokens: int = 128) -> tuple[PairChoice, int]:
    """Ask for a pair, its precisions and the most tokens to generate, `most_tokens` to begin with."""
    columns = st.columns([3, 2, 2, 2], vertical_alignment="bottom")
    last = last_pair()
    precisions = []
    for column, name, precision in (
        (columns[1], "target", last.target_precision),
        (columns[2], "draft", last.draft_precision),
    ):
        field = f"{key}-{name}-precision"
        st.session_state.setdefault(field, precision)
        precisions.append(
            column.selectbox(f"{name.capitalize()} precision", PRECISIONS, help=define("precision_of_model"), key=field)
        )
    tokens = columns[3].number_input("Most tokens", 1, 1024, most_tokens, 16, key=f"{key}-tokens", persist_state=STAYS)
    models = choose_models(key, columns[0])
    choice = replace(models, target_precision=precisions[0], draft_precision=precisions[1])
    st.session_state[MEMORY] = choice
    return choice, int(tokens)


def is_named(choice: PairChoice) -> bool:
    """Whether both models are named; says so if not."""
    if choice.target and choice.draft:
        return True
    st.warning("Name both models: a target and its draft.")
    return False
