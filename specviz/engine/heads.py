"""From hidden states to logits, in fp32, whatever precision the layers run at.

The last projection decides arg maxes and confidences, so it is done in fp32 in both pass modes. That keeps an fp32
copy of the output matrix beside a bf16 model (113 MB for 49,152 rows of 576), which is stated, not hidden.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import nn
from transformers import PreTrainedModel

from specviz.engine.packed_linear import linear_layer
from specviz.models.draft_model import DraftModel


@torch.no_grad()
def _composed(linears: list[nn.Linear]) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Weight and bias, in fp32, of the one linear map that `linears` make when applied in turn."""
    weight, bias = linears[0].weight.float(), linears[0].bias
    bias = None if bias is None else bias.float()
    for linear in linears[1:]:
        following = linear.weight.float()
        weight = following @ weight
        bias = None if bias is None else following @ bias
        if linear.bias is not None:
            bias = linear.bias.float() + (0 if bias is None else bias)
    return weight, bias


class OutputHead:
    """The output projection of `model`: hidden states (n, d) to fp32 logits (n, rows).

    `token_ids` maps a row to its token id when the head covers a reduced vocabulary (FR-Spec, Zhao et al. 2025);
    otherwise it is None and a row is its token id.
    """

    def __init__(self, model: PreTrainedModel):
        reduced = isinstance(model, DraftModel)
        self.token_ids: list[int] | None = None
        self._token_index: torch.Tensor | None = None
        self._row_of: dict[int, int] | None = None
        if reduced:
            self._cover(model.head_token_ids)
        outputs = model.get_output_embeddings()
        self.vocabulary = 1 + max(self.token_ids) if reduced else outputs.out_features  # token ids it can produce
        linears = [model.lm_head.connector, model.lm_head.rows] if reduced else [outputs]
        if all(type(linear) is nn.Linear for linear in linears):
            self._projections = [linear_layer(*_composed(linears))]
        else:  # a quantised projection computes in its own way; only its result is widened
            self._projections = linears
        self._precise = self._projections is not linears  # fp32 throughout
        self._scale: float | None = None
        self._softcap: float | None = None

    def _cover(self, token_ids: torch.Tensor) -> None:
        """Rows stand for these token ids. The tensor is kept: made of the list it takes longer than a draft step's
        statistics."""
        self.token_ids, self._token_index = token_ids.tolist(), token_ids
        self._row_of = {token: row for row, token in enumerate(self.token_ids)}

    def token_of(self, row: int) -> int:
        """The token id of a row of the logits; -1 stays -1."""
        return row if self.token_ids is None or row < 0 else self.token_ids[row]

    def row_of(self, token: int) -> int | None:
        """The row of a token id, or None where the head has none."""
        return token if self._row_of is None else self._row_of.get(token)

    def by_token(self, values: torch.Tensor, missing: float = 0.0) -> torch.Tensor:
        """Values of rows (n, rows), such as probabilities, as values of token ids (n, vocabulary); what has no row has
        the value `missing`."""
        if self.token_ids is None:
            return values
        return values.new_full((len(values), self.vocabulary), missing).index_copy_(1, self._token_index, values)

    def by_row(self, values: torch.Tensor) -> torch.Tensor:
        """Values of token ids (n, V), V at least `vocabulary`, as values of rows (n, rows)."""
        return values[:, : self.vocabulary] if self._token_index is None else values[:, self._token_index]

    def __call__(self, hidden: torch.Tensor) -> torch.Tensor:
        """fp32 logits of `hidden` (n, d)."""
        rows = hidden.float() if self._precise else hidden
        for projection in self._projections:
            rows = projection(rows)
        logits = rows.float()
        if self._scale:
            logits = logits * self._scale
        if self._softcap:
            logits = torch.tanh(logits / self._softcap) * self._softcap
        return logits

    def fit(self, model: PreTrainedModel, hidden: torch.Tensor, same_as_own: Callable[[torch.Tensor], bool]) -> bool:
        """Find what the family does between projection and logits; whether it is known.

        Families multiply or divide the logits by a number of their configuration (Cohere's `logit_scale`, Granite's
        `logits_scaling`, muP), or cap them softly (Gemma's `final_logit_softcapping`); a silent mistake there would
        falsify every confidence. Each of them is tried; the first that gives the model's own logits is kept.

        Args:
            hidden: (n, d), of the model's body.
            same_as_own: whether logits (n, rows) of these hidden states are the model's own, up to rounding.
        """
        for self._scale, self._softcap in _transformations(model.config.get_text_config(decoder=True).to_dict()):
            if same_as_own(self(hidden)):
                return True
        return False


class OwnLogits(OutputHead):
    """For families whose logits are no projection of the hidden states: passes return the model's own logits (n, V).

    They are widened to fp32, but computed at the model's own precision.
    """

    def __init__(self, vocabulary: int):
        self.token_ids = self._token_index = self._row_of = None
        self.vocabulary = vocabulary

    def __call__(self, logits: torch.Tensor) -> torch.Tensor:
        """fp32 logits of the model's own (n, V)."""
        return logits.float()


def _transformations(config: dict) -> Iterator[tuple[float | None, float | None]]:
    """Scale and soft cap as a configuration may mean them, the most likely first."""
    numbers = {k: v for k, v in config.items() if isinstance(v, int | float) and not isinstance(v, bool) and v > 0}
    caps = [value for name, value in numbers.items() if "cap" in name]
    scales = [value for name, value in numbers.items() if "scal" in name or "multiplier" in name]
    yield None, None
    for cap in dict.fromkeys(caps):
        yield None, cap
    for scale in dict.fromkeys(scales):
        for factor in (scale, 1 / scale):
            yield factor, None
            for cap in dict.fromkeys(caps):
                yield factor, cap
