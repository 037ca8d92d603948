"""Logits as they are sampled from: penalty, temperature and cuts, by transformers' own processors in its order."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from specviz.engine.heads import OutputHead
from specviz.replay.sampling import Sampling


class Processing:
    """What `sampling` does to the logits of one head. A row depends on that row and its context alone.

    At temperature 0 only the repetition penalty applies, as in greedy decoding with transformers.
    """

    def __init__(self, sampling: Sampling, head: OutputHead | None = None):
        self._head = head
        self._penalised = sampling.repetition_penalty != 1
        self._processors = LogitsProcessorList()
        if self._penalised:
            self._processors.append(RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty))
        if sampling.greedy:
            return
        if sampling.temperature != 1:
            self._processors.append(TemperatureLogitsWarper(sampling.temperature))
        if sampling.top_k:
            self._processors.append(TopKLogitsWarper(sampling.top_k))
        if sampling.top_p < 1:
            self._processors.append(TopPLogitsWarper(sampling.top_p))
        if sampling.min_p > 0:
            self._processors.append(MinPLogitsWarper(sampling.min_p))

    @torch.inference_mode()
    def __call__(self, logits: torch.Tensor, contexts: Sequence[Sequence[int]]) -> torch.Tensor:
        """Processed fp32 logits (n, rows); `contexts` are the n texts that the rows continue, prompt included."""
        if not self._processors:
            return logits
        rows_seen = self._rows_seen(contexts, logits) if self._penalised else None
        return self._processors(rows_seen, logits)

    def _rows_seen(self, contexts: Sequence[Sequence[int]], logits: torch.Tensor) -> torch.Tensor:
        """The contexts as rows of the head, (n, longest); a repeated row fills up, which changes nothing."""
        outside = logits.shape[-1]  # transformers ignores ids beyond the last row
        longest = max(map(len, contexts))
        rows = []
        for context in contexts:
            found = [self._row_of(token, outside) for token in context]
            rows.append(found + found[-1:] * (longest - len(found)))
        return torch.tensor(rows, device=logits.device)

    def _row_of(self, token: int, outside: int) -> int:
        row = token if self._head is None else self._head.row_of(token)
        return outside if row is None else row
