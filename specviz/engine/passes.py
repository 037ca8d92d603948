"""What carries a text from pass to pass, and how a family's model is called.

Three kinds of pass, each `(ids (1, n), positions (1, n), memory) -> hidden states (n, d)`:

* `CachedPass`: keys and values of every token in a cache; taking tokens back forgets their entries. The usual case.
* `RecurrentPass`: the family's own cache, whose states mix all tokens; taking tokens back restores a copy made before
  the pass that read them, and what that pass read and is kept is read again with the next pass.
* `WholeTextPass`: no memory in the model; every pass reads the whole text. For families without a usable cache, and the
  only way in which a recurrent model's passes all have one shape.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import (
    Cache,
    CacheLayerMixin,
    DummyLayer,
    DynamicIndexedLayer,
    DynamicLayer,
    StaticIndexedLayer,
    StaticLayer,
    get_layer_types_and_kwargs,
)

POSITIONS, MASK = "positions", "mask"  # arguments that some families need and others do not know
HIDDEN, LOGITS = "hidden", "logits"
SAVED_STATES = (
    24  # copies of a recurrent model's states, the newest; further back the text is read again from its start
)
_CACHE_ARGUMENTS = ("cache", "past_key_values", "cache_params")  # the first is transformers' name from 5.20 on


class FixedLengthLayer(StaticLayer):
    """A static cache layer that can be rolled back, which transformers' own cannot before 5.20, and compiled frozen."""

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        super().lazy_initialization(key_states, value_states)
        if self.device.type == "cpu":
            # transformers marks these as static addresses, which CUDA graphs need; inductor's freezing would take
            # tensors so marked for constants, and the graph would go on writing into the first text's cache
            self.keys, self.values = self.keys.clone(), self.values.clone()
            self.cumulative_length = self.cumulative_length.clone()

    def crop(self, tokens_to_remove: int) -> None:
        """Forget the last `abs(tokens_to_remove)` tokens: their entries are overwritten by the next pass."""
        self.cumulative_length.sub_(abs(tokens_to_remove))


def cache_argument(module: torch.nn.Module) -> str | None:
    """What a model calls its cache, or None if it takes none."""
    parameters = inspect.signature(module.forward).parameters
    named = [name for name in _CACHE_ARGUMENTS if name in parameters]
    if named:
        return named[0]
    takes_any = any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters.values())
    return "past_key_values" if takes_any or any(p.kind is p.VAR_KEYWORD for p in parameters.values()) else None


class _ModelCall:
    """The model, or its body without the head, with what it wants beside ids."""

    def __init__(self, model: PreTrainedModel, arguments: Sequence[str], result: str):
        self._module = model.base_model if result == HIDDEN else model
        self.given_positions, self._mask, self._result = POSITIONS in arguments, MASK in arguments, result
        self._cache_argument = cache_argument(self._module)

    memory_name: str  # in a table
    cost: str  # why its times are not those of a cache, as a clause; "" where they are

    @property
    def description(self) -> str:
        """Where the text is between two passes, in words for a table."""
        return self.memory_name + (", own logits" if self._result == LOGITS else "")

    def call(self, ids: torch.Tensor, positions: torch.Tensor, **arguments) -> torch.Tensor:
        """(1, n) ids to hidden states or logits, (n, ...)."""
        if self.given_positions:
            arguments["position_ids"] = positions
        output = self._module(input_ids=ids, **arguments)
        return (output.last_hidden_state if self._result == HIDDEN else output.logits)[0]


class CachedPass(_ModelCall):
    """Passes over a cache of keys and values.

    Every layer keeps the whole text, sliding-window layers too (their window is a matter of the mask), so rolling back
    is exact at and across the window's edge.

    Args:
        arguments: of `POSITIONS` and `MASK`, those that the model is given.
        result: `HIDDEN` or `LOGITS`.
    """

    memory_name, cost = "cache", ""

    def __init__(self, model: PreTrainedModel, arguments: Sequence[str] = (POSITIONS,), result: str = HIDDEN):
        super().__init__(model, arguments, result)
        if self._cache_argument is None:
            raise ValueError("it takes no cache")
        self._layer_types = _special_layer_types(model)
        self._number_of_layers = 0  # known once a pass has been made

    def memory(self, capacity: int | None) -> Cache:
        """An empty cache that grows, or of `capacity` entries."""
        if capacity is None:
            if self._layer_types is None:
                return DynamicCache()  # without the config, so that every layer keeps the whole text
            return Cache(layers=[_GROWING.get(kind, DynamicLayer)() for kind in self._layer_types])
        if self._layer_types is None:
            layers = [FixedLengthLayer(capacity) for _ in range(self._count_layers())]
        else:
            layers = [_FIXED.get(kind, FixedLengthLayer)(max_cache_len=capacity) for kind in self._layer_types]
        return Cache(layers=layers)

    @torch.inference_mode()
    def _count_layers(self) -> int:
        """How many layers ask for a cache: a family may have more than its configuration says, or fewer."""
        if not self._number_of_layers:
            cache = self.memory(None)
            device = self._module.device
            ids = torch.zeros((1, 1), dtype=torch.long, device=device)
            self(ids, ids, cache)
            if not cache.layers:
                raise ValueError("it fills no cache")
            self._number_of_layers = len(cache.layers)
        return self._number_of_layers

    def __call__(self, ids: torch.Tensor, positions: torch.Tensor, cache: Cache, **arguments) -> torch.Tensor:
        """Hidden states (n, d) of ids (1, n) at positions (1, n); the cache takes in n tokens."""
        if self._mask:
            entries = cache.get_mask_sizes(ids.shape[1], 0)[0]
            arguments["attention_mask"] = torch.ones((1, entries), dtype=torch.long, device=ids.device)
        arguments[self._cache_argument] = cache
        return self.call(ids, positions, use_cache=True, **arguments)


_GROWING = {"indexed_attention": DynamicIndexedLayer, "dummy": DummyLayer}
_FIXED = {"indexed_attention": StaticIndexedLayer, "dummy": DummyLayer}
_PLAIN_LAYERS = {"full_attention", "sliding_attention", "chunked_attention"}


def _special_layer_types(model: PreTrainedModel) -> list[str] | None:
    """The kind of each layer, where some need a cache of their own; None where all keep plain keys and values."""
    try:
        kinds, _ = get_layer_types_and_kwargs(model.config.get_text_config(decoder=True))
    except Exception:  # configurations that do not describe their layers so
        return None
    return None if set(kinds) <= _PLAIN_LAYERS or not set(kinds) & _GROWING.keys() else kinds


@dataclass
class _Text:
    """The tokens read so far, as ids (1, n)."""

    ids: torch.Tensor | None = None
    capacity: int | None = None

    def append(self, ids: torch.Tensor) -> None:
        self.ids = ids if self.ids is None else torch.cat((self.ids, ids), 1)

    @property
    def length(self) -> int:
        return 0 if self.ids is None else self.ids.shape[1]

    def crop(self, tokens_to_remove: int) -> None:
        """Forget the last tokens, as a cache's `crop` does."""
        self.ids = self.ids[:, : self.length - abs(tokens_to_remove)]

    def reset(self) -> None:
        self.ids = None


class WholeTextPass(_ModelCall):
    """Passes that read the whole text; with a capacity all have one shape, padded behind, where no token looks."""

    memory_name = "whole text"
    cost = "every pass reads the whole text, so its times grow with the text"

    def __init__(
        self, model: PreTrainedModel, arguments: Sequence[str] = (), result: str = HIDDEN, max_context: int = 1 << 20
    ):
        super().__init__(model, arguments, result)
        self._max_context = max_context
        parameters = inspect.signature(self._module.forward).parameters
        self._others = {"use_cache": False} if "use_cache" in parameters else {}

    def memory(self, capacity: int | None) -> _Text:
        return _Text(capacity=capacity and min(capacity, self._max_context))

    def __call__(self, ids: torch.Tensor, positions: torch.Tensor, text: _Text) -> torch.Tensor:
        """Hidden states (n, d) of ids (1, n), which the text takes in."""
        text.append(ids)
        length, n = text.length, ids.shape[1]
        read = text.ids[:, : self._max_context]  # padding of a pass may reach past the last position a model knows
        if text.capacity and read.shape[1] < text.capacity:
            read = torch.cat((read, read[:, -1:].expand(1, text.capacity - read.shape[1])), 1)
        places = torch.arange(read.shape[1], device=ids.device)[None]
        rows = self.call(read, places, **self._others)[: min(length, self._max_context)]
        missing = length - rows.shape[0]
        if missing > 0:
            rows = torch.cat((rows, rows[-1:].expand(missing, -1)))
        return rows[length - n :]


@dataclass
class _Recurrent:
    """A family's own cache, with copies of it from before the newest passes."""

    new_cache: partial
    text: _Text = field(default_factory=_Text)
    cache: Cache | None = None
    read: int = 0  # tokens that the cache has taken in; the rest of the text is read with the next pass
    saved: list[tuple[int, Cache]] = field(default_factory=list)

    def save(self) -> None:
        if self.cache is None:
            self.cache = self.new_cache()
        self.saved = [*self.saved, (self.read, _copied(self.cache))][-SAVED_STATES:]

    def crop(self, tokens_to_remove: int) -> None:
        """Forget the last tokens of the text."""
        self.text.crop(tokens_to_remove)
        length = self.text.length
        if self.read <= length:
            return
        while self.saved and self.saved[-1][0] > length:
            self.saved.pop()
        self.read, self.cache = self.saved.pop() if self.saved else (0, None)


def _copied(cache: Cache) -> Cache:
    """A copy that later passes do not change; keys and values, which only ever grow, are shared."""
    made = copy.copy(cache)
    made.layers = [_copied_layer(layer) for layer in cache.layers]
    return made


def _copied_layer(layer: CacheLayerMixin) -> CacheLayerMixin:
    made = copy.copy(layer)
    for name, value in vars(layer).items():
        if isinstance(value, torch.Tensor) and name not in ("keys", "values"):
            setattr(made, name, value.clone())
        elif isinstance(value, dict):
            setattr(made, name, {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in value.items()})
        elif isinstance(value, list):
            setattr(made, name, [v.clone() if isinstance(v, torch.Tensor) else v for v in value])
    return made


class RecurrentPass(_ModelCall):
    """Passes over the family's own cache; see the module's docstring. A pass is as wide as what it reads.

    `in_steps` reads one token at a time after the prompt, for families that take only that once they have a state.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        arguments: Sequence[str] = (POSITIONS,),
        result: str = HIDDEN,
        in_steps: bool = False,
    ):
        super().__init__(model, arguments, result)
        if self._cache_argument is None:
            raise ValueError("it takes no cache")
        self._config, self._in_steps = model.config, in_steps
        self.memory_name = "recurrent, one token at a time" if in_steps else "recurrent"
        self.cost = "rejected tokens leave a state that cannot be taken back, so what is kept is read again" + (
            ", and a pass takes as long as its tokens one by one" if in_steps else ""
        )

    def memory(self, capacity: int | None) -> _Recurrent:
        return _Recurrent(partial(DynamicCache, config=self._config))

    def __call__(self, ids: torch.Tensor, positions: torch.Tensor, memory: _Recurrent) -> torch.Tensor:
        """Hidden states (n, d) of ids (1, n), which the memory takes in."""
        memory.text.append(ids)
        if not self._in_steps or memory.read == 0:
            return self._read(memory, memory.text.length)[-ids.shape[1] :]
        rows = [self._read(memory, end) for end in range(memory.read + 1, memory.text.length + 1)]
        return torch.cat(rows)[-ids.shape[1] :]

    def _read(self, memory: _Recurrent, end: int) -> torch.Tensor:
        """Hidden states of the tokens before `end` that the cache has not taken in."""
        memory.save()
        unread = memory.text.ids[:, memory.read : end]
        places = torch.arange(memory.read, end, device=unread.device)[None]
        arguments = {self._cache_argument: memory.cache}
        if self._mask:
            arguments["attention_mask"] = torch.ones((1, end), dtype=torch.long, device=unread.device)
        hidden = self.call(unread, places, use_cache=True, **arguments)
        memory.read = end
        return hidden


Pass = CachedPass | RecurrentPass | WholeTextPass
