"""What a model's generation config asks of its text: what a run follows, and the names of what it does not.

Only values that differ from transformers' defaults count as asked for. Lengths (`max_new_tokens`, `max_length`) are
options of a run, and so is sampling: the generation config's `do_sample`, `temperature` and cuts are not taken over,
since a run is greedy unless it is given a temperature. What only changes how fast a text is made is passed over.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from specviz.errors import SpecVizError
from specviz.replay.sampling import Sampling
from specviz.replay.stop_strings import check_stop_strings

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
GREENLIST = ("greenlist_ratio", "bias", "hashing_key", "seeding_scheme", "context_width")  # of a watermark


@dataclass(frozen=True)
class LogitRequests:
    """Requests that change logits, honoured for target and draft alike. Attributes are those of transformers'
    `GenerationConfig`; the defaults ask for nothing. `repetition_penalty` belongs to `Sampling`.

    `min_length` counts the prompt, `min_new_tokens` takes precedence over it. `forced_eos_token_id` is forced at the
    last of `max_new_tokens`, so a text with it depends on that number.
    """

    sequence_bias: tuple[tuple[tuple[int, ...], float], ...] = ()
    encoder_repetition_penalty: float = 1.0
    no_repeat_ngram_size: int = 0
    encoder_no_repeat_ngram_size: int = 0
    bad_words_ids: tuple[tuple[int, ...], ...] = ()
    min_length: int = 0
    min_new_tokens: int = 0
    forced_bos_token_id: int | None = None
    forced_eos_token_id: tuple[int, ...] = ()
    remove_invalid_values: bool = False
    exponential_decay_length_penalty: tuple[int, float] | None = None
    suppress_tokens: tuple[int, ...] = ()
    begin_suppress_tokens: tuple[int, ...] = ()
    watermarking_config: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def of(cls, values: Mapping) -> "LogitRequests":
        """From the fields of a generation config, or from `settings()`; other fields are passed over.

        Raises:
            SpecVizError: a value cannot be what transformers takes.
        """
        read = {}
        for name, reader in _READERS.items():
            if (value := values.get(name)) is not None:
                read[name] = _read(name, value, reader)
        if read.get("min_new_tokens"):
            read["min_length"] = 0
        return cls(**read)

    def settings(self) -> dict:
        """What is asked for, as JSON-able values; `of` inverts it."""
        asked = {item.name: getattr(self, item.name) for item in fields(self)}
        asked = {name: value for name, value in asked.items() if value != getattr(LogitRequests, name)}
        if "watermarking_config" in asked:
            asked["watermarking_config"] = dict(asked["watermarking_config"])
        return {name: _as_lists(value) for name, value in asked.items()}

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
        stop, penalty = values.get("stop_strings") or (), values.get("repetition_penalty")
        return cls(
            LogitRequests.of({**values, "watermarking_config": watermark}),
            1.0 if penalty is None else _read("repetition_penalty", penalty, _positive),
            check_stop_strings([stop] if isinstance(stop, str) else _read("stop_strings", stop, tuple)),
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
    names = [name for name in NAMES if isinstance(listed, Sequence) and name in listed]
    if not names:
        return ""
    drawn = {"do_sample", *DRAWING} & set(names)
    why = " (how tokens are drawn is set by the run's own options)" if drawn else ""
    return f"Not honoured of the target's generation config: {', '.join(names)}{why}."


def _read(name: str, value: Any, reader: Callable[[Any], Any]) -> Any:
    try:
        return reader(value)
    except (TypeError, ValueError, OverflowError, AttributeError) as error:
        raise SpecVizError(
            f"A generation config asks for {name} = {str(value)[:60]!r}, which transformers does not take; correct "
            "generation_config.json."
        ) from error


def _as_lists(value: Any) -> Any:
    return [_as_lists(item) for item in value] if isinstance(value, tuple) else value


def _whole(value: Any) -> int:
    if isinstance(value, bool) or value != int(value) or value < 0:
        raise ValueError("not a whole number from 0")
    return int(value)


def _number(value: Any) -> float:
    if isinstance(value, bool | str) or not math.isfinite(value):
        raise ValueError("not a number")
    return float(value)


def _positive(value: Any) -> float:
    if not _number(value) > 0:
        raise ValueError("not above 0")
    return float(value)


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("neither true nor false")
    return value


def _tokens(value: Any) -> tuple[int, ...]:
    return tuple(map(_whole, [value] if isinstance(value, int) else value))


def _named_tokens(value: Any) -> tuple[int, ...]:
    """Tokens to suppress. Some configs have a negative number there, which names none."""
    return _tokens([token for token in value if not token < 0])


def _sequence(value: Any) -> tuple[int, ...]:
    if isinstance(value, int) or not value:
        raise ValueError("no sequence of tokens")
    return _tokens(value)


def _sequences(value: Any) -> tuple[tuple[int, ...], ...]:
    return tuple(map(_sequence, value))


def _biases(value: Any) -> tuple[tuple[tuple[int, ...], float], ...]:
    pairs = value.items() if isinstance(value, Mapping) else value
    return tuple((_sequence(tokens), _number(bias)) for tokens, bias in pairs)


def _decay(value: Any) -> tuple[int, float]:
    start, factor = value
    return _whole(start), _positive(factor)


def _watermark(value: Any) -> tuple[tuple[str, Any], ...]:
    kept = {name: value[name] for name in GREENLIST if name in value}
    numbers = {name: kept[name] for name in kept if name != "seeding_scheme"}
    for number in numbers.values():
        _number(number)
    fits = 0 < kept.get("greenlist_ratio", 0.25) < 1 and kept.get("context_width", 1) >= 1
    if not fits or kept.get("seeding_scheme", "lefthash") not in ("lefthash", "selfhash"):
        raise ValueError("no watermark")
    return tuple(kept.items())


_READERS: dict[str, Callable[[Any], Any]] = {
    "sequence_bias": _biases,
    "encoder_repetition_penalty": _positive,
    "no_repeat_ngram_size": _whole,
    "encoder_no_repeat_ngram_size": _whole,
    "bad_words_ids": _sequences,
    "min_length": _whole,
    "min_new_tokens": _whole,
    "forced_bos_token_id": _whole,
    "forced_eos_token_id": _tokens,
    "remove_invalid_values": _flag,
    "exponential_decay_length_penalty": _decay,
    "suppress_tokens": _named_tokens,
    "begin_suppress_tokens": _named_tokens,
    "watermarking_config": _watermark,
}
