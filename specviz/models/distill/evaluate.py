"""How often a draft says what its target says: teacher-forced, along the target's own greedy text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedModel

from specviz.errors import SpecVizError
from specviz.models.distill.prompts import Prompt
from specviz.models.distill.texts import LabelledText
from specviz.models.draft_model import DraftModel
from specviz.trace.json_reader import parse_json
from specviz.trace.limits import MB, MOST_PROMPT_FILE

THRESHOLDS = (0.0, 0.3, 0.5, 0.7, 0.9)


@dataclass(frozen=True, slots=True)
class Agreement:
    """Agreement along greedy texts, one entry per output position.

    Attributes:
        kind: (n,) kind or category of the text.
        agrees: (n,) bool, the draft's arg max is the target's greedy token.
        confidence: (n,) the draft's probability of its own arg max.
        covered: (n,) bool, the head has a row for the target's token.
    """

    kind: np.ndarray
    agrees: np.ndarray
    confidence: np.ndarray
    covered: np.ndarray

    def _of(self, kind: str | None) -> np.ndarray:
        return np.ones(len(self.kind), bool) if kind is None else self.kind == kind

    def kinds(self) -> list[str]:
        """Kinds in order of first appearance."""
        return list(dict.fromkeys(self.kind.tolist()))

    def positions(self, kind: str | None = None) -> int:
        return int(self._of(kind).sum())

    def rate(self, kind: str | None = None) -> float:
        """Share of positions where the draft agrees."""
        return _mean(self.agrees[self._of(kind)])

    def coverage(self, kind: str | None = None) -> float:
        """Share of the target's tokens that the head can say: the ceiling of `rate`."""
        return _mean(self.covered[self._of(kind)])

    def acceptance(self, threshold: float, kind: str | None = None) -> float:
        """Share that agrees among positions whose confidence exceeds `threshold`; NaN if there is none."""
        return _mean(self.agrees[self._of(kind) & (self.confidence > threshold)])

    def proposed(self, threshold: float, kind: str | None = None) -> float:
        """Share of positions whose confidence exceeds `threshold`."""
        return _mean(self.confidence[self._of(kind)] > threshold)


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else float("nan")


def read_questions(path: Path) -> list[Prompt]:
    """Read a JSON-lines file of questions: `category` (or `kind`) and `turns` (its first is used) or `text`."""
    if not path.is_file():
        raise SpecVizError(f"There is no prompts file at {path}: give a JSON-lines file with `category` and `turns`.")
    prompts = []
    with path.open("rb") as file:
        content = file.read(MOST_PROMPT_FILE + 1)
    if len(content) > MOST_PROMPT_FILE:
        raise SpecVizError(f"The prompts file {path} is larger than {MOST_PROMPT_FILE // MB} MB; split it.")
    for number, line in enumerate(BytesIO(content), 1):
        try:
            row = parse_json(line)
            text = row["turns"][0] if "turns" in row else row["text"]
            if not isinstance(text, str):
                raise TypeError("the text is no text")
            prompts.append(Prompt(str(row.get("category", row.get("kind", "prompt"))), text))
        except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
            raise SpecVizError(
                f"Line {number} of {path} is not a question: it needs JSON with `category` and `turns`, or `text`."
            ) from error
    return prompts


@torch.no_grad()
def measure_agreement(
    draft: DraftModel | PreTrainedModel,
    texts: Sequence[LabelledText],
    *,
    batch: int = 8,
    progress: Callable[[int, int], None] | None = None,
) -> Agreement:
    """Run the draft along texts the target wrote greedily, and compare with the target's arg max at each position.

    Args:
        draft: with its embedding attached.
        texts: their `top_ids[:, 0]` is what the target says.
        progress: called with (texts done, texts in all).
    """
    training = draft.training
    draft.eval()
    ids_of_row = draft.head_token_ids
    has_row = torch.zeros(draft.config.vocab_size, dtype=torch.bool)
    has_row[ids_of_row.cpu()] = True
    kinds, agrees, confidences, covered = [], [], [], []
    order = sorted(range(len(texts)), key=lambda i: len(texts[i].ids))
    parts: dict[int, tuple[np.ndarray, ...]] = {}
    for start in range(0, len(order), batch):
        chosen = order[start : start + batch]
        hidden = draft.model(input_ids=padded_ids([texts[i] for i in chosen], draft.device), use_cache=False)[0]
        for row, i in enumerate(chosen):
            text = texts[i]
            logits = draft.reduced_logits(hidden[row, text.prompt_len - 1 : len(text.ids) - 1]).float()
            confidence, arg_max = logits.softmax(-1).max(-1)
            said = torch.from_numpy(text.top_ids[:, 0].astype(np.int64))
            parts[i] = ((ids_of_row[arg_max].cpu() == said).numpy(), confidence.cpu().numpy(), has_row[said].numpy())
        if progress:
            progress(min(start + batch, len(order)), len(order))
    for i, text in enumerate(texts):
        kinds += [text.kind] * len(text.output_ids)
        for column, part in zip((agrees, confidences, covered), parts[i], strict=True):
            column.append(part)
    draft.train(training)
    return Agreement(np.array(kinds), *(np.concatenate(column) for column in (agrees, confidences, covered)))


def padded_ids(texts: Iterable[LabelledText], device: torch.device) -> torch.Tensor:
    """(batch, longest) token ids, padded on the right, which causal attention never sees."""
    rows = [torch.from_numpy(text.ids.astype(np.int64)) for text in texts]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).to(device)


def agreement_table(agreement: Agreement, thresholds: Sequence[float] = (0.5,)) -> list[dict[str, float | str]]:
    """One row per kind and one over all: positions, agreement, coverage, and per threshold share and acceptance."""
    rows = []
    for kind in (*agreement.kinds(), None):
        row: dict[str, float | str] = {
            "kind": "all" if kind is None else kind,
            "positions": agreement.positions(kind),
            "agreement": agreement.rate(kind),
            "coverage": agreement.coverage(kind),
        }
        for threshold in thresholds:
            row[f"proposed > {threshold:g}"] = agreement.proposed(threshold, kind)
            row[f"accepted > {threshold:g}"] = agreement.acceptance(threshold, kind)
        rows.append(row)
    return rows
