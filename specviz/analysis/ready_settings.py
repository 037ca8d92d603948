"""What to paste into other programs, where there is a setting to recommend."""

import json
import shlex
from dataclasses import dataclass

from specviz.analysis.verdict import SPECULATE, Advice
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
    """Settings for transformers, llama.cpp and vLLM; none unless the advice is to speculate."""
    if advice.answer != SPECULATE:
        return ()
    tuning = advice.tuning
    keep, drop, fixed = tuning.keep, tuning.drop, tuning.fixed
    draft, which_draft = draft_to_name(tuning.pair)
    p_min, n_max = f"{drop.threshold:.2f}", drop.max_draft
    vllm = json.dumps({"method": "draft_model", "model": draft, "num_speculative_tokens": fixed.max_draft})
    return (
        ReadySettings(
            "transformers",
            "python",
            f"draft.generation_config.num_assistant_tokens = {keep.max_draft}\n"
            'draft.generation_config.num_assistant_tokens_schedule = "constant"\n'
            f"draft.generation_config.assistant_confidence_threshold = {keep.threshold:.2f}\n"
            "target.generate(**inputs, assistant_model=draft)",
            "target and draft are the two loaded models. The token below the threshold is still proposed, so this is "
            "tuned with `keep`. Where scikit-learn is installed, transformers moves the threshold during a generation "
            "and this is only its start; 0 switches it off.",
        ),
        ReadySettings(
            "llama.cpp",
            "bash",
            f"--spec-draft-p-min {p_min} --spec-draft-n-max {n_max} --spec-draft-n-min 0\n"
            f"# older versions: --draft-p-min {keep.threshold:.2f} --draft-max {keep.max_draft} --draft-min 0",
            "Besides the options that name both models as GGUF files. The token below p-min is withheld, as with our "
            "`drop`; many older versions propose it first, so their line is tuned with `keep`. The probability is "
            "taken among the draft's ten likeliest tokens, so it is larger than ours: the same number stops later.",
        ),
        ReadySettings(
            "vLLM",
            "bash",
            f"--speculative-config {shlex.quote(vllm)}",
            "No threshold: every round proposes this many tokens, so it is tuned without one. In a batch the target's "
            f"passes are wider than here, and a shorter draft may be better.{which_draft}",
        ),
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
