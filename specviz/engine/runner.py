"""One model over one growing text."""

from __future__ import annotations

import copy
import inspect
import math

import torch
import torch._inductor.config
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import Cache, StaticLayer

from specviz.engine.grouped_attention import NAME as GROUPED_ATTENTION
from specviz.engine.grouped_attention import use_grouped_attention
from specviz.engine.heads import OutputHead
from specviz.engine.packed_linear import PackedLinear, pack_linear_layers
from specviz.errors import SpecVizError

SMALLEST_CAPACITY = 256  # static caches hold this many tokens or twice as many or ..., so that few shapes are compiled
# A lone row would need a graph of its own, packed like those of any known width. On Zen 3 in fp32 that one took 43.5
# and 51.3 ms in two processes, two rows of the common graph 40.0 and 46.4: the faster way to decode plainly too.
FEWEST_COMPILED_ROWS = 2
MOST_GRAPHS = 64  # compiled at once in a process: a handful of cache sizes, for the two models of each pair


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


class ModelRunner:
    """Runs `model` over one text that grows token by token and can be rolled back.

    With `width=None` a pass is as wide as the tokens it is given (pass mode `fast`) and the cache grows with the text.
    With a `width`, every pass after the prefill has exactly that many rows (pass mode `invariant`): missing rows are
    padding whose cache entries are rolled back, over a static cache of fixed length, so that a row's result
    does not depend on how the text was cut into passes. Compiled passes always have a static cache; one graph serves
    every width, from `FEWEST_COMPILED_ROWS` on.

    Every layer keeps the whole text, sliding-window layers too (their window is a matter of the mask), so rolling back
    is exact at and across the window's edge.

    Args:
        model: a causal language model in evaluation mode. On a CPU its linear layers are repacked in place.
        width: rows of every pass, or None.
        compiled: run passes through `torch.compile`.
        max_context: most positions the model knows.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        *,
        width: int | None,
        max_context: int,
        compiled: bool = False,
    ):
        self.model, self.width, self.max_context, self.compiled = model, width, max_context, compiled
        self.device = model.device
        self.head = OutputHead(model)
        self.length = 0  # tokens in the cache
        self._cache: Cache | None = None
        self._body = model.base_model
        # a pair's embeddings may be padded to different sizes; an id that only the other model has is read as the last
        self._last_id = model.get_input_embeddings().num_embeddings - 1
        use_grouped_attention(self._body)
        if not compiled:  # inductor packs frozen weights itself
            pack_linear_layers(self._body)
        elif any(isinstance(module, PackedLinear) for module in self._body.modules()):
            raise SpecVizError("These models were made ready for eager passes; load them again to compile them.")
        parameters = inspect.signature(self._body.forward).parameters
        self._cache_argument = "cache" if "cache" in parameters else "past_key_values"  # transformers before 5.20
        self._graph = compile_pass(self._forward_body, self.device) if compiled else None
        self._check_head()

    @torch.inference_mode()
    def _check_head(self) -> None:
        ids = torch.zeros((1, 1), dtype=torch.long, device=self.device)
        output = self.model(input_ids=ids, output_hidden_states=True, use_cache=False)
        hidden = self._body(input_ids=ids, use_cache=False).last_hidden_state
        self.head.check_against(self.model, hidden[0], output.logits[0])

    def fork(self, width: int | None, *, eager: bool = False) -> ModelRunner:
        """Another text for the same model, in passes of `width`: all shared but the cache. Call `begin` next.

        Args:
            eager: do not compile its passes, which then may attend in a tree.
        """
        other = copy.copy(self)
        other.width, other.length, other._cache = width, 0, None
        other.compiled = self.compiled and not eager
        return other

    @property
    def _cache_grows(self) -> bool:
        return self.width is None and not self.compiled

    @torch.inference_mode()
    def begin(self, max_length: int) -> None:
        """Forget the text and make room for one of up to `max_length` tokens."""
        self.length = 0
        if self._cache_grows:
            self._cache = DynamicCache()  # without the config, so that every layer keeps the whole text
            return
        # decided by this generation alone: what ran before it must not change its passes
        padding = self.width or FEWEST_COMPILED_ROWS
        capacity = max(SMALLEST_CAPACITY, 2 ** math.ceil(math.log2(max_length + padding)))
        if self._cache is not None and self._cache.layers[0].max_cache_len == capacity:
            self._cache.reset()  # the same memory again: a captured CUDA graph stays valid
        else:
            self._cache = Cache(layers=[FixedLengthLayer(capacity) for _ in range(self._number_of_layers)])
            if self.compiled:  # the first pass makes the layers' tensors: compiled, it would need a graph of its own
                self._run([0], self._forward_body)
                self._cache.reset()
                self.length = 0

    @property
    def _number_of_layers(self) -> int:
        return self.model.config.get_text_config(decoder=True).num_hidden_layers

    @torch.inference_mode()
    def prefill(self, tokens: list[int]) -> None:
        """Take in `tokens` (the prompt) in one pass of its own width; no logits."""
        # on a GPU a graph would be captured for the length of every prompt
        compiled = self.compiled and self.device.type == "cpu" and len(tokens) >= FEWEST_COMPILED_ROWS
        if tokens:
            self._run(tokens, self._graph if compiled else self._forward_body)

    @torch.inference_mode()
    def forward(self, tokens: list[int]) -> torch.Tensor:
        """Append `tokens` (n) to the text; hidden states (n, d) of the last layer, after its norm.

        In pass mode `invariant` n may not exceed the width.
        """
        if self.width is not None and len(tokens) > self.width:
            raise ValueError(f"{len(tokens)} tokens do not fit a pass of width {self.width}")
        rows = self.width or max(len(tokens), FEWEST_COMPILED_ROWS if self.compiled else 1)
        padding = rows - len(tokens)
        hidden = self._run(tokens + [tokens[-1]] * padding, self._graph if self.compiled else self._forward_body)
        self.rollback(padding)
        return hidden[: len(tokens)]

    @property
    def takes_trees(self) -> bool:
        """Whether `forward_tree` works: growing cache, a mask for all layers alike, and attention that obeys it."""
        config = self.model.config.get_text_config(decoder=True)
        windowed = getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True)
        return self._cache_grows and not windowed and config._attn_implementation in ("sdpa", GROUPED_ATTENTION)

    @torch.inference_mode()
    def forward_tree(self, tokens: list[int], positions: list[int], sees: torch.Tensor) -> torch.Tensor:
        """Append `tokens` (n) that need not follow each other; hidden states (n, d).

        positions: where in a text each of them stands; sees: (n, cache length + n) bool, which entries, itself
        included, each of them attends to.
        """
        ids = torch.tensor([tokens], device=self.device)
        places = torch.tensor([positions], device=self.device)
        hidden = self._forward_body(ids, places, self._cache, attention_mask=sees[None, None])
        self.length += len(tokens)
        return hidden

    @torch.inference_mode()
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """fp32 logits (n, head rows) of hidden states (n, d), computed at the width of the passes."""
        rows = hidden.shape[0]
        if self.width is not None and rows < self.width:
            hidden = torch.cat((hidden, hidden[-1:].expand(self.width - rows, -1)))
        return self.head(hidden)[:rows]

    @torch.inference_mode()
    def rollback(self, tokens: int) -> None:
        """Take the last `tokens` tokens back."""
        if tokens:
            self._cache.crop(-tokens)
            self.length -= tokens

    def _run(self, tokens: list[int], run_pass) -> torch.Tensor:
        ids = torch.tensor([[min(token, self._last_id) for token in tokens]], device=self.device)
        # padding may reach past the last position a model knows; its rows are thrown away
        positions = torch.arange(self.length, self.length + len(tokens), device=self.device).clamp(
            max=self.max_context - 1
        )
        hidden = run_pass(ids, positions[None], self._cache)
        self.length += len(tokens)
        return hidden

    def _forward_body(self, ids: torch.Tensor, positions: torch.Tensor, cache: Cache, **arguments) -> torch.Tensor:
        """Hidden states (n, d) of ids (1, n) at positions (1, n); the cache takes in n tokens."""
        arguments[self._cache_argument] = cache
        return self._body(input_ids=ids, position_ids=positions, use_cache=True, **arguments).last_hidden_state[0]


def compile_pass(forward, device: torch.device):
    """`forward` as one compiled graph for passes of any width from two rows on: inductor with frozen weights on the
    CPU, captured as a CUDA graph (one a width) on a GPU.

    The weights become constants of the graph, so on a CPU they are repacked for its matrix kernels, projections of one
    input side by side as one matrix, and the calls between kernels are compiled too: on Zen 3 in fp32, medians in one
    process, this took a pass over 1 / 5 tokens from 37 / 49 to 30 / 38 ms. Needs a C++ compiler there. The first pass
    over a cache of each size compiles, in every process anew but for the C++ kernels that inductor keeps on disk. A
    width that the graph leaves open is also the faster one in fp32: with a known number of rows inductor packs for
    MKL, whose products of a few rows take up to twice as long as oneDNN's.
    """
    torch._dynamo.config.recompile_limit = MOST_GRAPHS
    how = {"mode": "reduce-overhead"}
    if device.type == "cpu":
        how = {"options": {"cpp_wrapper": True, "cpp.enable_concat_linear": True}}
        # For the whole process, because tracing looks at it before the options of one compilation apply; it concerns
        # only what is compiled without gradients.
        torch._inductor.config.freezing = True
    graph = torch.compile(forward, fullgraph=True, dynamic=False, **how)

    def run(ids: torch.Tensor, positions: torch.Tensor, cache: Cache) -> torch.Tensor:
        for rows in (ids, positions):
            torch._dynamo.mark_dynamic(rows, 1)
        if device.type == "cpu":
            return graph(ids, positions, cache)
        torch.compiler.cudagraph_mark_step_begin()
        return graph(ids, positions, cache).clone()  # the graph's own output is overwritten by its next replay

    return run
