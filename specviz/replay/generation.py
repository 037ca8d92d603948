"""What a model's generation config asks of its text: what a run follows, and the names of what it does not.

Only values that differ from transformers' defaults count as asked for. Lengths (`max_new_tokens`, `max_length`) are
options of a run, and so is sampling: the generation config's `do_sample`, `temperature` and cuts are not taken over,
since a run is greedy unless it is given a temperature. What only changes how fast a text is made is passed over.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from specviz.errors import SpecVizError
from specviz.replay.sampling import Sampling
from specviz.replay.stop_strings import check_stop_strings
from specviz.trace.json_reader import Number, TokenId

# Asked for by other values than these; they need another search, another model pass, or another prompt.
UNFOLLOWED = {
    "num_beams": 1,
    "num_beam_groups": 1,
    "diversity_penalty": 0.0,
    "constraints": None,
    "force_words_ids": None,
    "guidance_scale": 1.0,
    "penalty_alpha": 0.0,
    "dola_layers": None,
    "max_time": None,
    "token_healing": False,
    "num_return_sequences": 1,
}
# How tokens are drawn. `Sampling` has options for the first four.
DRAWING = {
    "temperature": 1.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "top_h": 1.0,
    "typical_p": 1.0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
}
NAMES = (*UNFOLLOWED, "do_sample", *DRAWING, "watermarking_config")

Whole = TokenId
Factor = Annotated[float, Meta(gt=0, le=1e6)]
Tokens = Annotated[tuple[TokenId, ...], Meta(min_length=1)]


@dataclass(frozen=True)
class Watermark:
    """Settings of transformers' `WatermarkingConfig` (Kirchenbauer et al. 2023)."""

    greenlist_ratio: Annotated[float, Meta(gt=0, lt=1)] = 0.25
    bias: Number = 2.0
    hashing_key: Whole = 15485863
    seeding_scheme: Literal["lefthash", "selfhash"] = "lefthash"
    context_width: Annotated[int, Meta(ge=1, le=1000)] = 1


@dataclass(frozen=True)
class LogitRequests:
    """Requests that change logits, honoured for target and draft alike. Attributes are those of transformers'
    `GenerationConfig`; the defaults ask for nothing. `repetition_penalty` belongs to `Sampling`.

    `min_length` counts the prompt, `min_new_tokens` takes precedence over it. `forced_eos_token_id` is forced at the
    last of `max_new_tokens`, so a text with it depends on that number.
    """

    sequence_bias: tuple[tuple[Tokens, Number], ...] = ()
    encoder_repetition_penalty: Factor = 1.0
    no_repeat_ngram_size: Whole = 0
    encoder_no_repeat_ngram_size: Whole = 0
    bad_words_ids: tuple[Tokens, ...] = ()
    min_length: Whole = 0
    min_new_tokens: Whole = 0
    forced_bos_token_id: TokenId | None = None
    forced_eos_token_id: tuple[TokenId, ...] = ()
    remove_invalid_values: bool = False
    exponential_decay_length_penalty: tuple[Whole, Factor] | None = None
    suppress_tokens: tuple[TokenId, ...] = ()
    begin_suppress_tokens: tuple[TokenId, ...] = ()
    watermarking_config: Watermark | None = None

    @classmethod
    def of(cls, values: Mapping) -> "LogitRequests":
        """From the fields of a generation config, or from `settings()`; other fields are passed over.

        Raises:
            SpecVizError: a value cannot be what transformers takes.
        """
        asked = _asked(values, cls)
        if isinstance(asked.get("forced_eos_token_id"), int):
            asked["forced_eos_token_id"] = [asked["forced_eos_token_id"]]
        if isinstance(asked.get("sequence_bias"), Mapping):  # as it is in memory; in a file it is a list
            asked["sequence_bias"] = list(asked["sequence_bias"].items())
        for name in ("suppress_tokens", "begin_suppress_tokens"):  # some have a negative number there, for none
            if isinstance(asked.get(name), list | tuple):
                asked[name] = [token for token in asked[name] if not (isinstance(token, int) and token < 0)]
        if asked.get("min_new_tokens"):
            asked.pop("min_length", None)
        return _of_shape(asked, cls)

    def settings(self) -> dict:
        """What is asked for, as JSON-able values; `of` inverts it."""
        asked, nothing = (msgspec.json.decode(msgspec.json.encode(each)) for each in (self, NO_REQUESTS))
        return {name: value for name, value in asked.items() if value != nothing[name]}

    def check_vocabulary(self, size: int) -> None:
        """Refuse tokens that a model with `size` tokens cannot produce."""
        sequences = [tokens for tokens, _ in self.sequence_bias] + list(self.bad_words_ids) + [self.forced_eos_token_id]
        tokens = [token for sequence in sequences for token in sequence]
        if self.forced_bos_token_id is not None:
            tokens.append(self.forced_bos_token_id)
        if tokens and max(tokens) >= size:
            raise SpecVizError(
                f"The target's generation config names the token {max(tokens)}, but the target has only {size} tokens; "
                "correct generation_config.json."
            )


NO_REQUESTS = LogitRequests()


@dataclass(frozen=True)
class _Replaceable:
    """The shape of requests that a run may replace by its own."""

    repetition_penalty: Factor = 1.0
    stop_strings: str | list[str] = field(default_factory=list)


@dataclass(frozen=True)
class TargetRequests:
    """All that a target's generation config asks for.

    Attributes:
        logits: honoured as asked.
        repetition_penalty, stop: honoured where a run has none of its own.
        unfollowed: names of what no run follows.
        samples: whether it asks for tokens to be drawn.
        drawing: what it asks of the distribution they are drawn from, by name.
    """

    logits: LogitRequests = NO_REQUESTS
    repetition_penalty: float = 1.0
    stop: tuple[str, ...] = ()
    unfollowed: tuple[str, ...] = ()
    samples: bool = False
    drawing: tuple[tuple[str, float], ...] = ()

    @classmethod
    def of(cls, values: Mapping) -> "TargetRequests":
        """From the fields of a generation config.

        Raises:
            SpecVizError: a value cannot be used.
        """
        unfollowed = [name for name, default in UNFOLLOWED.items() if values.get(name) not in (None, default)]
        watermark = values.get("watermarking_config")
        if watermark and not isinstance(watermark, Mapping):
            watermark = watermark.to_dict()
        if watermark and "ngram_len" in watermark:  # SynthID's, which remembers what it has seen
            unfollowed.append("watermarking_config")
            watermark = None
        own = _of_shape(_asked(values, _Replaceable), _Replaceable)
        return cls(
            LogitRequests.of({**values, "watermarking_config": watermark}),
            own.repetition_penalty,
            check_stop_strings([own.stop_strings] if isinstance(own.stop_strings, str) else own.stop_strings),
            tuple(unfollowed),
            bool(values.get("do_sample")),
            tuple((name, values[name]) for name, default in DRAWING.items() if values.get(name) not in (None, default)),
        )

    def not_honoured(self, sampling: Sampling) -> list[str]:
        """Names of what a run that samples by `sampling` does not follow."""
        names = list(self.unfollowed)
        if self.samples and sampling.greedy:
            names.append("do_sample")
        if self.samples or not sampling.greedy:
            names += [name for name, value in self.drawing if getattr(sampling, name, None) != value]
        return names


def honoured_names(settings: Mapping) -> list[str]:
    """Names of what a trace or recording with these settings followed of the target's generation config."""
    asked = settings.get("generation_config")
    return [item.name for item in fields(LogitRequests) if isinstance(asked, Mapping) and item.name in asked]


def not_honoured_words(settings: Mapping) -> str:
    """One sentence on what a trace or recording with these settings did not follow; empty if there is nothing."""
    listed = settings.get("not_honoured")
    names = [name for name in NAMES if isinstance(listed, list) and name in listed]
    if not names:
        return ""
    drawn = {"do_sample", *DRAWING} & set(names)
    why = " (how tokens are drawn is set by the run's own options)" if drawn else ""
    return f"Not honoured of the target's generation config: {', '.join(names)}{why}."


def _asked(values: Mapping, shape: type) -> dict:
    return {item.name: values[item.name] for item in fields(shape) if values.get(item.name) is not None}


def _of_shape(values: Mapping, shape: type) -> Any:
    try:
        return msgspec.convert(values, shape)
    except (msgspec.ValidationError, OverflowError) as error:
        raise SpecVizError(
            f"A generation config asks for what transformers does not take ({error}); correct generation_config.json."
        ) from error
