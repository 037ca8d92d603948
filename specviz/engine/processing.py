"""Logits as they are sampled from: what the target's generation config asks for, penalty, temperature and cuts, by
transformers' own processors in the order of its `generate`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch
from torch.nn.functional import pad
from transformers import (
    EncoderNoRepeatNGramLogitsProcessor,
    EncoderRepetitionPenaltyLogitsProcessor,
    ExponentialDecayLengthPenalty,
    ForcedBOSTokenLogitsProcessor,
    ForcedEOSTokenLogitsProcessor,
    InfNanRemoveLogitsProcessor,
    LogitsProcessor,
    LogitsProcessorList,
    MinLengthLogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    WatermarkLogitsProcessor,
)

from specviz.engine.heads import OutputHead
from specviz.replay.generation import NO_REQUESTS, LogitRequests
from specviz.replay.sampling import Sampling

# Of these what they do depends on how long the text is, so a row is processed by itself; all others take rows of
# texts of different lengths that are filled up on the left.
_BY_LENGTH = (
    MinLengthLogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    ForcedBOSTokenLogitsProcessor,
    ForcedEOSTokenLogitsProcessor,
    ExponentialDecayLengthPenalty,
    SuppressTokensAtBeginLogitsProcessor,
    WatermarkLogitsProcessor,
)


@dataclass(frozen=True)
class TextRequests:
    """Requests for one text, with what they depend on: its prompt, how many tokens it may get, and the tokens that end
    it. `vocabulary` is the number of token ids that the target's logits have; `device` is where the logits are."""

    logits: LogitRequests = NO_REQUESTS
    prompt_ids: tuple[int, ...] = ()
    max_new_tokens: int = 0
    eos_ids: tuple[int, ...] = ()
    vocabulary: int = 0
    device: torch.device = torch.device("cpu")


class Processing:
    """What `sampling` and `asked` do to the logits of one head. A row depends on that row and its context alone.

    At temperature 0 no temperature and no cut applies, as in greedy decoding with transformers. A row whose every
    token would be ruled out, which happens to a draft of reduced vocabulary, stays as it is.
    """

    def __init__(self, sampling: Sampling, head: OutputHead | None = None, asked: TextRequests | None = None):
        asked = asked or TextRequests()
        self._head, self._vocabulary = head, asked.vocabulary
        self._context = asked_processors(sampling, asked)
        self._warpers = LogitsProcessorList() if sampling.greedy else _warpers(sampling)
        self._last = [_watermark(asked)] if asked.logits.watermarking_config else []

    @property
    def changes_nothing(self) -> bool:
        return not (self._context or self._warpers or self._last)

    @torch.inference_mode()
    def __call__(self, logits: torch.Tensor, contexts: Sequence[Sequence[int]]) -> torch.Tensor:
        """Processed fp32 logits (n, rows); `contexts` are the n texts that the rows continue, prompt included."""
        if self._context:
            logits = self._by_token(self._context, logits, contexts)
        if self._warpers:
            logits = self._warpers(None, logits)
        if self._last:
            logits = self._by_token(self._last, logits, contexts)
        return logits

    def _by_token(
        self, processors: Sequence[LogitsProcessor], logits: torch.Tensor, contexts: Sequence[Sequence[int]]
    ) -> torch.Tensor:
        """Apply processors that speak of token ids, which the head's rows need not be."""
        rows, scores = logits.shape[-1], logits
        if self._head is not None:
            scores = self._head.by_token(logits, missing=-torch.inf)
        scores = pad(scores, (0, max(0, self._vocabulary - scores.shape[-1])), value=-torch.inf)
        widened = scores.shape[-1] != rows
        longest = max(map(len, contexts))
        nothing = scores.shape[-1]  # an id that fills up and that no processor looks for
        filled = [[nothing] * (longest - len(context)) + list(context) for context in contexts]
        texts = torch.tensor(filled, device=logits.device)
        for processor in processors:
            if isinstance(processor, _BY_LENGTH):
                parts = [
                    processor(texts[row : row + 1, longest - len(context) :], scores[row : row + 1])
                    for row, context in enumerate(contexts)
                ]
                scores = torch.cat(parts)
            else:
                scores = processor(texts, scores)
        if not widened:
            return scores
        scores = scores[:, :rows] if self._head is None else self._head.by_row(scores)[:, :rows]
        return torch.where(scores.isneginf().all(-1, keepdim=True), logits, scores)


def asked_processors(sampling: Sampling, asked: TextRequests) -> list[LogitsProcessor]:
    """Processors that look at the text, in transformers' order, which is that of `GenerationMixin`."""
    wanted, prompt_length, ends = asked.logits, len(asked.prompt_ids), list(asked.eos_ids)
    device = asked.device
    prompt = torch.tensor([asked.prompt_ids], dtype=torch.long, device=device)
    processors: list[LogitsProcessor] = []
    if wanted.sequence_bias:
        processors.append(SequenceBiasLogitsProcessor(dict(wanted.sequence_bias)))
    if wanted.encoder_repetition_penalty != 1:
        processors.append(EncoderRepetitionPenaltyLogitsProcessor(wanted.encoder_repetition_penalty, prompt))
    if sampling.repetition_penalty not in (None, 1):
        processors.append(RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty))
    if wanted.no_repeat_ngram_size:
        processors.append(NoRepeatNGramLogitsProcessor(wanted.no_repeat_ngram_size))
    if wanted.encoder_no_repeat_ngram_size:
        processors.append(EncoderNoRepeatNGramLogitsProcessor(wanted.encoder_no_repeat_ngram_size, prompt))
    if wanted.bad_words_ids:
        processors.append(NoBadWordsLogitsProcessor([list(word) for word in wanted.bad_words_ids], ends))
    if wanted.min_length and ends:
        processors.append(MinLengthLogitsProcessor(wanted.min_length, ends, device))
    if wanted.min_new_tokens and ends:
        processors.append(MinNewTokensLengthLogitsProcessor(prompt_length, wanted.min_new_tokens, ends, device))
    if wanted.forced_bos_token_id is not None:
        processors.append(ForcedBOSTokenLogitsProcessor(wanted.forced_bos_token_id))
    if wanted.forced_eos_token_id:
        last = prompt_length + asked.max_new_tokens
        processors.append(ForcedEOSTokenLogitsProcessor(last, list(wanted.forced_eos_token_id), device))
    if wanted.remove_invalid_values:
        processors.append(InfNanRemoveLogitsProcessor())
    if wanted.exponential_decay_length_penalty and ends:
        processors.append(ExponentialDecayLengthPenalty(wanted.exponential_decay_length_penalty, ends, prompt_length))
    if wanted.suppress_tokens:
        processors.append(SuppressTokensLogitsProcessor(wanted.suppress_tokens))
    if wanted.begin_suppress_tokens:
        begins = prompt_length + (prompt_length == 1 and wanted.forced_bos_token_id is not None)
        processors.append(SuppressTokensAtBeginLogitsProcessor(wanted.begin_suppress_tokens, begins))
    return processors


def _warpers(sampling: Sampling) -> LogitsProcessorList:
    """Temperature and cuts."""
    warpers = LogitsProcessorList()
    if sampling.temperature != 1:
        warpers.append(TemperatureLogitsWarper(sampling.temperature))
    if sampling.top_k:
        warpers.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p < 1:
        warpers.append(TopPLogitsWarper(sampling.top_p))
    if sampling.min_p > 0:
        warpers.append(MinPLogitsWarper(sampling.min_p))
    return warpers


def _watermark(asked: TextRequests) -> WatermarkLogitsProcessor:
    return WatermarkLogitsProcessor(asked.vocabulary, asked.device, **asdict(asked.logits.watermarking_config))
