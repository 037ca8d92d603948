"""What the Precision page shows: the gallery's comparison or this session's own, its tables, texts and the form."""

from dataclasses import replace
from importlib.util import find_spec

import streamlit as st

from specviz.analysis.draft_calibration import Reliability, calibration_error, judged, reliability
from specviz.analysis.precision_files import MAIN_FILE, read_comparison
from specviz.analysis.precisions import (
    Combination,
    PrecisionComparison,
    first_divergence,
    shown_combinations,
    shown_errors,
    worst_places,
)
from specviz.analysis.prompts import default_prompts
from specviz.models.precision import read_precision, rows_are_independent
from specviz.trace import PairInfo
from specviz.ui.gallery import gallery_folder
from specviz.ui.glossary import define
from specviz.ui.pairs import STAYS, choose_models, is_named, remember_pair
from specviz.ui.requests import CompareRequest
from specviz.ui.tables import Column, show_table
from specviz.ui.text_difference import text_difference
from specviz.ui.token_texts import display_from
from specviz.ui.watching import outcome, watch
from specviz.ui.workshop import workshop

JOB = "compare-job"
FEWEST, MOST = 2, 6
OFFERED = ("bf16:bf16", "fp32:fp32", "nf4:bf16", "nf4:nf4", "nf4+double:bf16", "fp4:bf16", "int8:bf16", "int8:int8")
OFFERED += ("int8+t0:int8+t0", "bf16:nf4")
CHOSEN = ("bf16:bf16", "nf4:bf16", "nf4:nf4", "int8:int8")
LONGEST_DRAFT = 8


def own_comparison() -> PrecisionComparison | None:
    """What this session measured, if it has."""
    job = workshop().job(st.session_state.get(JOB))
    return job.comparison if job is not None else None


def gallery_comparison() -> PrecisionComparison | None:
    """The one that comes with SpecViz, read once and again when its file changes; None where there is none.

    Raises:
        SpecVizError: it is damaged.
    """
    path = gallery_folder() / "precisions" / MAIN_FILE
    return _read(str(path.parent), path.stat().st_mtime_ns) if path.exists() else None


@st.cache_resource(max_entries=4, show_spinner=False)
def _read(folder: str, changed: int) -> PrecisionComparison:
    return read_comparison(folder)


def missing() -> str | None:
    """What a quantised run on this machine would lack; None if nothing is known to be missing."""
    if find_spec("bitsandbytes") is None:
        return (
            "The package bitsandbytes is not installed here, so int8, nf4 and fp4 cannot be run: "
            "`pip install bitsandbytes` adds them. What was measured elsewhere is shown all the same."
        )
    return None


def about(comparison: PrecisionComparison) -> str:
    """Where the curves come from."""
    pair, mode = comparison.baseline.recordings.pair, comparison.baseline.pass_mode
    number = len(comparison.baseline.tokens)
    return (
        f"{pair.target} with {pair.draft}, {number} prompts, pass mode {mode}. Rounds are replayed from recordings; "
        f"times are modelled from passes measured on {pair.device}, all combinations taking turns. "
        "Each combination writes its own target's text."
    )


def cautions(combinations: list[Combination]) -> list[str]:
    """Where a replay may differ from a real run."""
    loose = [c.label for c in combinations if not all(map(rows_are_independent, c.label.split(":")))]
    if not loose:
        return []
    return [
        f"{', '.join(loose)}: LLM.int8 chooses its outlier columns over all rows of a pass, so what a row says "
        "depends on its neighbours. A real run can then differ from its replay, and speculative output from plain: on "
        "a CPU 30 of 400 tokens of the default prompts flipped when they were read again in passes of five. "
        "With the outlier threshold 0 (int8+t0) rows are independent."
    ]


def tables(comparison: PrecisionComparison, labels: list[str]) -> None:
    """Both tables, in units a person reads."""
    frame = shown_combinations(comparison)
    full = comparison.full_precision
    show_table(
        frame[frame["target:draft"].isin(labels)],
        {
            "target:draft": Column("target:draft", "precision_of_model"),
            "weights": Column("weights"),
            "plain": Column("plain", "tokens_per_second"),
            "best τ": Column("best τ", "best"),
            "best γ": Column("best γ", "best"),
            "there": Column("there", "tokens_per_second"),
            "over its own plain": Column("over its own plain", "speedup"),
            f"over {full} plain": Column(f"over {full} plain", "over_full_plain"),
            "accepted": Column("accepted", "acceptance_rate"),
            f"text as at {full}": Column(f"text as at {full}", "same_text"),
            "parts at token (median)": Column("parts at token (median)", "parts_at"),
        },
        "combination-table",
    )
    level = comparison.baseline.grid.level
    st.caption(
        "At the best threshold and draft length of each on these prompts, with drop held fixed; in brackets "
        f"{level:.0%} intervals over prompts and pass times."
    )
    if not comparison.models:
        return
    st.subheader("What quantisation changes")
    st.caption(
        f"Each model reads the texts that the target wrote at {comparison.full_precision}, beside itself at fp32. "
        "Divergence is the Kullback-Leibler divergence of its next-token distribution, in nats. "
        "Peak memory is that of a process that decodes with this target alone, beyond what its libraries take."
    )
    show_table(
        shown_errors(comparison),
        {
            "model": Column("model", "precision_of_model"),
            "says the same": Column("says the same", "agreement"),
            "divergence, mean": Column("divergence, mean", "divergence"),
            "95th percentile": Column("95th percentile", "divergence"),
            "worst": Column("worst", "divergence"),
            "perplexity": Column("perplexity"),
            "weights": Column("weights"),
            "peak memory": Column("peak memory"),
            "loading": Column("loading"),
        },
        "model-table",
    )
    st.caption(f"{comparison.models[0].positions} positions.")


def worst_place(comparison: PrecisionComparison) -> None:
    """The text around the largest divergence of one model."""
    places = {place.model: place for place in worst_places(comparison)}
    if not places:
        return
    place = places[st.selectbox("Worst place of", list(places), help=define("divergence"), key="worst-model")]
    texts = display_from(comparison.tokens)
    precision = place.model.rpartition(", ")[2]
    goes_on = "".join(map(texts, [place.token, *place.after]))
    sides = [
        {
            "name": f"at {precision} it says",
            "same": list(map(texts, place.before)),
            "parting": texts(place.says),
            "after": [],
            "note": f"Output position {place.position + 1}: divergence {place.divergence:.2f} nats, "
            f"margin at fp32 {place.reference_margin:.2f} logits. The text continues: {goes_on}",
        },
        {
            "name": "at fp32 it says",
            "same": list(map(texts, place.before)),
            "parting": texts(place.reference_says),
            "after": [],
            "note": f"Prompt: {place.prompt[:120]}",
        },
    ]
    text_difference("worst-place", sides)


def reliabilities(combinations: list[Combination]) -> tuple[dict[str, Reliability], PairInfo]:
    """How often each draft is right at each confidence, named with its calibration error; and the pair they are of."""
    diagrams = {}
    for combination in combinations:
        tokens = judged(combination.recordings.recordings)
        diagram = reliability(tokens.confidence, tokens.accepted)
        diagrams[f"{combination.label}, calibration error {calibration_error(diagram):.3f}"] = diagram
    pair = replace(combinations[0].recordings.pair, target_precision="as named", draft_precision="as named")
    return diagrams, pair


def differences(comparison: PrecisionComparison, combinations: list[Combination]) -> None:
    """Full precision's output beside another's, with the place where they part."""
    others = {c.label: c for c in combinations if c is not comparison.baseline}
    if not others:
        return
    left, right = st.columns([2, 3], gap="large")
    label = left.selectbox(
        "Beside full precision", list(others), help=define("precision_of_model"), key="difference-combination"
    )
    full = {recording.prompt_id: recording for recording in comparison.baseline.recordings.recordings}
    pairs = [(full[r.prompt_id], r) for r in others[label].recordings.recordings if r.prompt_id in full]
    if not pairs:
        return
    place = right.selectbox(
        "Prompt", range(len(pairs)), format_func=lambda place: pairs[place][0].prompt[:80], key="difference-prompt"
    )
    parting = first_divergence(*pairs[place])
    texts = display_from(comparison.tokens)
    sides = []
    for name, recording, margin in zip(
        (f"target at {comparison.full_precision}", f"target of {label}"),
        pairs[place],
        (parting.full_margin, parting.other_margin) if parting else (0, 0),
        strict=True,
    ):
        shown = [texts(token) for token in recording.output_ids.tolist()]
        at = parting.position if parting else len(shown)
        note = "The same text to the end."
        if parting:
            where = f"Parts at token {at + 1}"
            note = (
                f"{where}; its margin there is {margin:.2f} logits." if at < len(shown) else f"{where}: it had ended."
            )
        mark = shown[at] if at < len(shown) else None
        sides.append({"name": name, "same": shown[:at], "parting": mark, "after": shown[at + 1 :], "note": note})
    text_difference("text-difference", sides)
    st.caption(
        "A small margin means that the target was uncertain between two tokens there: rounding may have decided. "
        "A large one means that quantisation changed its mind."
    )


def run_form() -> None:
    """Measure a comparison of a pair on this device."""
    job = workshop().job(st.session_state.get(JOB))
    if job is not None and not job.over:
        watch(job.id, "compare")
        return
    if job is not None:
        outcome(job)
    choice = choose_models("compare")
    combinations = st.multiselect(
        "Combinations, target:draft",
        OFFERED,
        default=CHOSEN,
        max_selections=MOST,
        accept_new_options=True,
        key="compare-combinations",
        persist_state=STAYS,
        help="Options follow a plus sign: nf4+double quantises the scales too, int8+t0 keeps no outlier columns, "
        "nf4+fp32 computes in fp32.",
    )
    left, right = st.columns(2)
    number = left.number_input("Prompts", 1, 40, 6, key="compare-prompts", persist_state=STAYS)
    tokens = right.number_input("Most tokens", 8, 512, 48, 8, key="compare-tokens", persist_state=STAYS)
    if st.button("Measure on this device", key="compare-run"):
        for text in combinations:
            for precision in (text.split(":") + [""])[:2]:
                read_precision(precision)
        if len(combinations) < FEWEST:
            st.warning("Choose at least two combinations.")
            return
        if not is_named(choice):
            return
        remember_pair(choice)
        prompts = default_prompts()
        prompts = prompts[:: max(1, len(prompts) // int(number))][: int(number)]
        request = CompareRequest(
            choice,
            tuple(combinations),
            tuple(prompts),
            int(tokens),
            LONGEST_DRAFT,
        )
        st.session_state[JOB] = workshop().submit(request).id
        st.rerun()
