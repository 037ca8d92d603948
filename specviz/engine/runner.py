"""One model over one growing text."""

from __future__ import annotations

import copy
import math

import torch
import torch._inductor.config
from transformers import PreTrainedModel

from specviz.engine.grouped_attention import NAME as GROUPED_ATTENTION
from specviz.engine.heads import OutputHead
from specviz.engine.passes import CachedPass, Pass

SMALLEST_CAPACITY = 256  # static caches hold this many tokens or twice as many or ..., so that few shapes are compiled
# A lone row would need a graph of its own, packed like those of any known width. On Zen 3 in fp32 that one took 43.5
# and 51.3 ms in two processes, two rows of the common graph 40.0 and 46.4: the faster way to decode plainly too.
FEWEST_COMPILED_ROWS = 2
MOST_GRAPHS = 64  # compiled at once in a process: a handful of cache sizes, for the two models of each pair


class ModelRunner:
    """Runs `model` over one text that grows token by token and can be rolled back.

    With `width=None` a pass is as wide as the tokens it is given (pass mode `fast`) and the cache grows with the text.
    With a `width`, every pass after the prefill has exactly that many rows (pass mode `invariant`): missing rows are
    padding whose cache entries are rolled back, over a static cache of fixed length, so that a row's result
    does not depend on how the text was cut into passes. Compiled passes always have a static cache; one graph serves
    every width, from `FEWEST_COMPILED_ROWS` on.

    Args:
        model: a causal language model in evaluation mode.
        head: from what a pass returns to logits.
        growing, fixed: how the model is called over a memory that grows with the text and over one of fixed length;
            None where that is not needed.
        width: rows of every pass, or None.
        compiled: run passes through `torch.compile`.
        max_context: most positions the model knows.

    `family_check.make_runner` finds out head and passes of a model, and checks them.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        head: OutputHead,
        *,
        growing: Pass | None,
        fixed: Pass | None,
        width: int | None,
        max_context: int,
        compiled: bool = False,
    ):
        self.model, self.head, self.width, self.max_context, self.compiled = model, head, width, max_context, compiled
        self.device = model.device
        self.length = 0  # tokens in the cache
        self._passes = {"growing": growing, "fixed": fixed}
        self._memory = None
        # a pair's embeddings may be padded to different sizes; an id that only the other model has is read as the last
        embeddings = model.get_input_embeddings()
        self._last_id = getattr(embeddings, "num_embeddings", model.config.get_text_config(decoder=True).vocab_size) - 1
        self.obeys_tree_masks = True
        self._graph = compile_pass(fixed.__call__, self.device) if compiled else None
        self._pass = self.uncompiled_pass

    def fork(self, width: int | None, *, eager: bool = False) -> ModelRunner:
        """Another text for the same model, in passes of `width`: all shared but the cache. Call `begin` next.

        Args:
            eager: do not compile its passes, which then may attend in a tree.
        """
        other = copy.copy(self)
        other.width, other.length, other._memory = width, 0, None
        other.compiled = self.compiled and not eager
        other._pass = other.uncompiled_pass
        return other

    @property
    def _cache_grows(self) -> bool:
        return self.width is None and not self.compiled

    @property
    def uncompiled_pass(self) -> Pass:
        """How the model is called in eager passes."""
        return self._passes["growing" if self._cache_grows else "fixed"]

    @torch.inference_mode()
    def begin(self, max_length: int) -> None:
        """Forget the text and make room for one of up to `max_length` tokens."""
        self.length = 0
        if self._cache_grows:
            self._memory = self._pass.memory(None)
            return
        # decided by this generation alone: what ran before it must not change its passes
        padding = self.width or FEWEST_COMPILED_ROWS
        capacity = max(SMALLEST_CAPACITY, 2 ** math.ceil(math.log2(max_length + padding)))
        if self._memory is not None and self._capacity == capacity:
            self._memory.reset()  # the same memory again: a captured CUDA graph stays valid
        else:
            self._memory, self._capacity = self._pass.memory(capacity), capacity
            if self.compiled:  # the first pass makes the layers' tensors: compiled, it would need a graph of its own
                self._run([0], self._pass)
                self._memory.reset()
                self.length = 0

    @torch.inference_mode()
    def prefill(self, tokens: list[int]) -> None:
        """Take in `tokens` (the prompt) in one pass of its own width; no logits."""
        # on a GPU a graph would be captured for the length of every prompt
        compiled = self.compiled and self.device.type == "cpu" and len(tokens) >= FEWEST_COMPILED_ROWS
        if tokens:
            self._run(tokens, self._graph if compiled else self._pass)

    @torch.inference_mode()
    def forward(self, tokens: list[int]) -> torch.Tensor:
        """Append `tokens` (n) to the text; hidden states (n, d) of the last layer, after its norm.

        In pass mode `invariant` n may not exceed the width.
        """
        if self.width is not None and len(tokens) > self.width:
            raise ValueError(f"{len(tokens)} tokens do not fit a pass of width {self.width}")
        rows = self.width or max(len(tokens), FEWEST_COMPILED_ROWS if self.compiled else 1)
        padding = rows - len(tokens)
        hidden = self._run(tokens + [tokens[-1]] * padding, self._graph if self.compiled else self._pass)
        self.rollback(padding)
        return hidden[: len(tokens)]

    @property
    def takes_trees(self) -> bool:
        """Whether `forward_tree` works: growing cache, a mask for all layers alike, and attention that obeys it."""
        if not (self._cache_grows and self.obeys_tree_masks and isinstance(self._pass, CachedPass)):
            return False
        config = self.model.config.get_text_config(decoder=True)
        windowed = getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True)
        return not windowed and config._attn_implementation in ("sdpa", GROUPED_ATTENTION)

    @torch.inference_mode()
    def forward_tree(self, tokens: list[int], positions: list[int], sees: torch.Tensor) -> torch.Tensor:
        """Append `tokens` (n) that need not follow each other; hidden states (n, d).

        positions: where in a text each of them stands; sees: (n, cache length + n) bool, which entries, itself
        included, each of them attends to.
        """
        ids = torch.tensor([tokens], device=self.device)
        places = torch.tensor([positions], device=self.device)
        hidden = self._pass(ids, places, self._memory, attention_mask=sees[None, None])
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
            self._memory.crop(-tokens)
            self.length -= tokens

    def _run(self, tokens: list[int], run_pass) -> torch.Tensor:
        ids = torch.tensor([[min(token, self._last_id) for token in tokens]], device=self.device)
        # padding may reach past the last position a model knows; its rows are thrown away
        positions = torch.arange(self.length, self.length + len(tokens), device=self.device).clamp(
            max=self.max_context - 1
        )
        hidden = run_pass(ids, positions[None], self._memory)
        self.length += len(tokens)
        return hidden


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

    def run(ids: torch.Tensor, positions: torch.Tensor, cache) -> torch.Tensor:
        for rows in (ids, positions):
            torch._dynamo.mark_dynamic(rows, 1)
        if device.type == "cpu":
            return graph(ids, positions, cache)
        torch.compiler.cudagraph_mark_step_begin()
        return graph(ids, positions, cache).clone()  # the graph's own output is overwritten by its next replay

    return run
