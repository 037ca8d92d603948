"""What to paste into other programs, where there is a setting to recommend."""

import json
import shlex
from dataclasses import dataclass

from specviz.analysis.tuning import Choice
from specviz.analysis.verdict import SPECULATE, Advice, surely_pays
from specviz.trace import PairInfo

BUILTIN_DRAFT = "SpecViz built-in draft"  # as recordings call it
PLACEHOLDER = "DRAFT"


@dataclass(frozen=True)
class ReadySettings:
    """What to paste into another program, and how its meaning differs from ours."""

    program: str
    language: str  # of the text, for highlighting
    text: str
    note: str


def ready_settings(advice: Advice) -> tuple[ReadySettings, ...]:
    """Settings for transformers, llama.cpp and vLLM; none unless the advice is to speculate.

    Each program can be told one kind of setting only, which is tuned for it. Where that kind does not surely beat plain
    decoding, its text is empty and its note says so.
    """
    if advice.answer != SPECULATE:
        return ()
    tuning = advice.tuning
    return tuple(
        ready if surely_pays(choice.held_out) else ReadySettings(ready.program, ready.language, "", _none(choice))
        for choice, ready in (
            (tuning.keep, _transformers(tuning.keep)),
            (tuning.drop, _llama(tuning.drop, tuning.keep)),
            (tuning.fixed, _vllm(tuning.fixed, tuning.pair)),
        )
    )


def _none(choice: Choice) -> str:
    kind = {"keep": "the token that fails proposed", "drop": "the token that fails withheld", "fixed": "no threshold"}
    return (
        f"This program drafts with {kind[choice.name]}. The best such setting does not surely beat plain decoding "
        f"({choice.held_out.value:.2f}×), so there is nothing to paste."
    )


def _transformers(keep: Choice) -> ReadySettings:
    return ReadySettings(
        "transformers",
        "python",
        f"draft.generation_config.num_assistant_tokens = {keep.max_draft}\n"
        'draft.generation_config.num_assistant_tokens_schedule = "constant"\n'
        f"draft.generation_config.assistant_confidence_threshold = {keep.threshold:.2f}\n"
        "target.generate(**inputs, assistant_model=draft)",
        "target and draft are the two loaded models. The token below the threshold is still proposed, so this is the "
        "best with `keep` held fixed. Where scikit-learn is installed, transformers moves the threshold during a "
        "generation and this is only its start; 0 switches it off.",
    )


def _llama(drop: Choice, keep: Choice) -> ReadySettings:
    older = ""
    if surely_pays(keep.held_out):
        older = f"\n# older versions: --draft-p-min {keep.threshold:.2f} --draft-max {keep.max_draft} --draft-min 0"
    return ReadySettings(
        "llama.cpp",
        "bash",
        f"--spec-draft-p-min {drop.threshold:.2f} --spec-draft-n-max {drop.max_draft} --spec-draft-n-min 0{older}",
        "Add the options that name both models as GGUF files. The token below p-min is withheld, so this is the best "
        "with `drop` held fixed; many older versions propose it first, so their line is the best with `keep`. The "
        "probability is taken among the draft's ten likeliest tokens, so it is larger than ours: the same number stops "
        "later.",
    )


def _vllm(fixed: Choice, pair: PairInfo) -> ReadySettings:
    draft, which_draft = draft_to_name(pair)
    config = json.dumps({"method": "draft_model", "model": draft, "num_speculative_tokens": fixed.max_draft})
    return ReadySettings(
        "vLLM",
        "bash",
        f"--speculative-config {shlex.quote(config)}",
        "No threshold: every round proposes this many tokens, so this is the best fixed draft length. In a batch the "
        f"target's passes are wider than here, and a shorter draft may be better.{which_draft}",
    )


def draft_to_name(pair: PairInfo) -> tuple[str, str]:
    """What names the draft to another program, and a sentence where the reader has to fill it in.

    It is what the user loaded it by, a path or a hub id; older recordings hold the name alone, which is a hub id if it
    has an organisation.
    """
    if pair.draft == BUILTIN_DRAFT:
        return PLACEHOLDER, (
            f" The draft of this pair is SpecViz's built-in one, which only SpecViz can load: put the path or hub id "
            f"of another draft in place of {PLACEHOLDER}."
        )
    if pair.draft_source:
        return pair.draft_source, ""
    if "/" in pair.draft:
        return pair.draft, ""
    return PLACEHOLDER, (
        f" The recordings do not hold where the draft is stored: put its path or hub id in place of {PLACEHOLDER}."
    )
