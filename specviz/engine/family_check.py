"""How a model of any family is run pass by pass, found out and checked against the model itself when it is loaded.

A family may mask, place, cache or scale in a way of its own. So the passes of a runner are compared with the model's
own `forward` over a short text before anything else runs: a prefill, a wide pass of which all but one token are taken
back, another wide pass, a narrow one. Ways of calling the model are tried from the fastest to the slowest; the first
that gives the model's own logits is used. A model for which none does is refused in one sentence.

Windows of attention are shortened for this text, so that it is longer than they are. A window that cannot be shortened
is exceeded by a longer text; one that is too long for that bounds the context instead.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass

import torch
from torch import nn
from transformers import GenerationConfig, PretrainedConfig, PreTrainedModel

from specviz.engine.grouped_attention import stop_grouped_attention, use_grouped_attention
from specviz.engine.heads import OutputHead, OwnLogits
from specviz.engine.local_attention import use_masks_of_passes
from specviz.engine.packed_linear import PackedLinear, pack_linear_layers
from specviz.engine.passes import HIDDEN, LOGITS, MASK, POSITIONS, CachedPass, Pass, RecurrentPass, WholeTextPass
from specviz.engine.runner import FEWEST_COMPILED_ROWS, ModelRunner
from specviz.errors import SpecVizError
from specviz.models.draft_model import DraftModel
from specviz.models.loading import LoadedModel
from specviz.models.messages import first_line
from specviz.models.quiet import quiet_loading

PROMPT_TOKENS = 24
SHORT_WINDOW = 8
LONGEST_TEXT = 1100  # tokens that the check may read to exceed a window
WIDEST_PASS = 5
# Largest root mean square difference of a row of logits, relative to their standard deviation: rounding stays far
# below, another mask or position far above. In 16 bits a near-tie in a router may change a row by much, so there it is
# the median row that counts, and no row may be altogether different.
TOLERANCE = 3e-3
COARSE_TOLERANCE, COARSE_LARGEST = 0.15, 0.7
# Read from the configuration by every pass, in transformers' masks; others are built into the layers.
_SHORTENED = ("sliding_window", "sliding_window_size", "attention_chunk_size")
_BUILT_IN = ("window_size", "local_attention_window_len", "keep_window_size")
_CHUNKS = ("local_attn_chunk_length", "lsh_attn_chunk_length")  # a token may look one chunk back


def make_runner(loaded: LoadedModel, *, width: int | None, compiled: bool = False) -> ModelRunner:
    """A runner for a loaded model whose passes give the model's own logits.

    On a CPU the model's linear layers are repacked in place. Costs about ten passes over some 30 tokens.

    Args:
        width: rows of every pass, or None; the runner's forks may have either.
        compiled: as of `ModelRunner`.

    Raises:
        SpecVizError: no way of calling this model gives its own logits; the sentence says in which pass mode one does.
    """
    try:
        return _make_runner(loaded, width, compiled)
    except SpecVizError:
        raise
    except (torch.OutOfMemoryError, MemoryError):
        raise
    except Exception as error:  # whatever a family's code meets; the user needs the family and the cause, not its stack
        raise SpecVizError(
            f"{loaded.name} ({loaded.family}) cannot be run here ({_cause(error)}); choose a model of another family."
        ) from error


@torch.inference_mode()
def _make_runner(loaded: LoadedModel, width: int | None, compiled: bool) -> ModelRunner:
    model = loaded.model
    max_context = _known_positions(model, loaded.max_context)
    text_config = model.config.get_text_config(decoder=True)
    packed = any(isinstance(module, PackedLinear) for module in model.base_model.modules())
    if compiled and packed:
        raise SpecVizError("These models were made ready for eager passes; load them again to compile them.")
    prompt_tokens, max_context = _text_length(model, text_config, max_context)
    unread = _unread_windows(model, text_config, min(PROMPT_TOKENS, max_context))
    max_context = min(max_context, *unread) if unread else max_context  # below it there is no window
    with nullcontext() if unread else _short_windows(text_config), _independent_rows(model):
        probe = _Probe.of(loaded, prompt_tokens, max_context)
        head, result = _find_head(model, probe)
        use_masks_of_passes(model.base_model)
        grouped = use_grouped_attention(model.base_model)
        if not compiled:  # inductor packs frozen weights itself
            pack_linear_layers(model.base_model)
        # plain decoding grows its memory in both pass modes
        kinds = {"growing": None}
        if width is not None or compiled:
            kinds["fixed"] = width or FEWEST_COMPILED_ROWS
        passes: dict[str, Pass] = {}
        trees = False
        for kind, rows in kinds.items():
            runner, cause = _first_exact(model, head, probe, kind, rows, result, max_context)
            if runner is None and grouped:
                stop_grouped_attention(model.base_model)
                grouped = False
                runner, cause = _first_exact(model, head, probe, kind, rows, result, max_context)
            if runner is None:
                raise SpecVizError(_refusal(loaded, kind, cause))
            passes[kind] = runner.uncompiled_pass
            if kind == "growing":
                trees = runner.takes_trees and probe.accepts_tree(runner)
        if compiled and not isinstance(passes["fixed"], CachedPass):
            raise SpecVizError(
                f"{loaded.name} ({loaded.family}) has no cache of fixed length, so its passes cannot be "
                "compiled; run it without --compile."
            )
    made = ModelRunner(
        model,
        head,
        growing=passes["growing"],
        fixed=passes.get("fixed"),
        width=width,
        max_context=max_context - (0 if _places_rows(passes) else width or 0),
        compiled=compiled,
    )
    made.obeys_tree_masks = trees
    return made


def _places_rows(passes: dict[str, Pass]) -> bool:
    """Whether padding behind the last known position gets a place: else the context must leave room for it."""
    fixed = passes.get("fixed")
    return not isinstance(fixed, CachedPass) or fixed.given_positions


def _refusal(loaded: LoadedModel, kind: str, cause: str) -> str:
    model = f"{loaded.name} ({loaded.family})"
    if kind == "fixed":
        return f"{model} cannot be run in pass mode invariant ({cause}); choose pass mode fast (--pass-mode fast)."
    return f"{model} cannot be run pass by pass ({cause}); choose a model of another family."


# --- the text and the model's own logits ---------------------------------------------------------------------------


@dataclass
class _Probe:
    """A text of T tokens with the model's own logits (T, V) along it; the first `prompt_tokens` are prefilled.

    wrong: tokens that do not continue the text; hidden: (T, d), what the model's body gives, or None where it is not a
    module of its own; coarse: whether the precision rounds more than fp32 does.
    """

    tokens: list[int]
    wrong: list[int]
    prompt_tokens: int
    logits: torch.Tensor
    hidden: torch.Tensor | None
    coarse: bool

    @classmethod
    def of(cls, loaded: LoadedModel, prompt_tokens: int, max_context: int) -> _Probe:
        model = loaded.model
        config = model.config.get_text_config(decoder=True)
        special = {v for name, v in config.to_dict().items() if name.endswith("token_id") and isinstance(v, int)}
        ids = [i for i in range(min(config.vocab_size, 30_000)) if i not in special] or [0]
        generator = torch.Generator().manual_seed(0)
        length = min(prompt_tokens + WIDEST_PASS + 2, max_context)
        drawn = torch.randint(len(ids), (length + WIDEST_PASS,), generator=generator).tolist()
        tokens, wrong = [ids[i] for i in drawn[:length]], [ids[i] for i in drawn[length:]]
        text = torch.tensor([tokens], device=model.device)
        generated = None
        try:
            if not isinstance(model, DraftModel) and length > 1:
                tokens[-1], generated = _generated(model, text[:, :-1])
                text[0, -1] = tokens[-1]
            logits, hidden = _logits_and_hidden(model, text)
        except (torch.OutOfMemoryError, MemoryError):
            raise
        except Exception as error:
            raise SpecVizError(
                f"{loaded.name} ({loaded.family}) cannot continue a text by itself ({_cause(error)}); "
                "choose a model of another family."
            ) from error
        if logits.dim() != 2 or len(logits) != length:
            raise SpecVizError(
                f"{loaded.name} ({loaded.family}) does not give one row of logits for each token "
                f"({tuple(logits.shape)} for {length} tokens); choose a model of another family."
            )
        coarse = loaded.precision != "fp32"
        probe = cls(tokens, wrong, length - WIDEST_PASS - 2, logits, hidden, coarse)
        if generated is None:
            return probe
        if not probe.same(generated, logits[-2:]):
            # some families place tokens by themselves from another number on than generate does
            with suppress(TypeError):
                places = torch.arange(length, device=model.device)[None]
                probe.logits, probe.hidden = _logits_and_hidden(model, text, position_ids=places)
        if not probe.same(generated, probe.logits[-2:]):
            raise SpecVizError(
                f"{loaded.name} ({loaded.family}) is called by generate in a way of its own, which this engine "
                "does not know; choose a model of another family."
            )
        return probe

    def same(self, found: torch.Tensor, own: torch.Tensor) -> bool:
        """Whether rows of logits (n, rows) are the model's own up to rounding."""
        if found.shape != own.shape:
            return False
        return self._differences_pass(_difference(found, own))

    def _differences_pass(self, differences: torch.Tensor) -> bool:
        if not torch.isfinite(differences).all():
            return False
        if not self.coarse:
            return bool(differences.max() <= TOLERANCE)
        return bool(differences.median() <= COARSE_TOLERANCE and differences.max() <= COARSE_LARGEST)

    def own(self, head: OutputHead, first: int, last: int) -> torch.Tensor:
        """The model's own logits after tokens `first` to `last` - 1, by row of the head."""
        rows = self.logits[first:last]
        return head.by_row(rows) if head.token_ids is not None else rows

    def differs(self, runner: ModelRunner) -> str:
        """How the passes of a runner differ from the model's own forward; "" where they do not."""
        at, width = self.prompt_tokens, min(runner.width or WIDEST_PASS, WIDEST_PASS)
        runner.begin(len(self.tokens) + width)
        runner.prefill(self.tokens[:at])
        passes = [
            ("prefill", at, [self.tokens[at], *self.wrong[: width - 1]], 1),
            ("rollback", at + 1, self.tokens[at + 1 : at + 1 + width], width),
        ]
        differences, names = [], []
        for name, start, tokens, right in passes:
            rows = runner.logits(runner.forward(tokens))[:right]
            runner.rollback(len(tokens) - right)
            differences.append(_difference(rows, self.own(runner.head, start, start + right)))
            names += [name] * right
        runner.rollback(1)
        start = at + width
        rows = runner.logits(runner.forward(self.tokens[start : start + 1]))
        differences.append(_difference(rows, self.own(runner.head, start, start + 1)))
        names.append("rollback")
        measured = torch.cat(differences)
        if self._differences_pass(measured):
            return ""
        worst = int(measured.nan_to_num(torch.inf).argmax())
        return (
            f"after the {names[worst]} its logits differ from those of its own forward, by "
            f"{float(measured[worst]):.2g} of their spread"
        )

    def accepts_tree(self, runner: ModelRunner) -> bool:
        """Whether two tokens that continue the same one, in one pass, do not see each other. Call after `differs`."""
        at = self.prompt_tokens
        runner.rollback(runner.length - at)
        sees = torch.ones((3, at + 3), dtype=torch.bool, device=runner.device).tril(at)
        sees[2, at + 1] = False
        try:
            tokens = [self.tokens[at], self.wrong[0], self.tokens[at + 1]]
            rows = runner.logits(runner.forward_tree(tokens, [at, at + 1, at + 1], sees))
        except (torch.OutOfMemoryError, MemoryError):
            raise
        except Exception:  # a family that takes no such mask; its branches are followed one by one
            return False
        return self.same(rows[[0, 2]], self.own(runner.head, at, at + 2))


def _difference(found: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
    """Root mean square difference of each row (n, rows), relative to the spread of the model's own."""
    width = min(found.shape[-1], own.shape[-1])
    finite = torch.isfinite(own[:, :width])
    own = own[:, :width].where(finite, 0)
    gap = (found[:, :width].where(finite, 0) - own).square().mean(-1).sqrt()
    return gap / own.std(-1).clamp(min=1e-9)


def _generated(model: PreTrainedModel, text: torch.Tensor) -> tuple[int, torch.Tensor]:
    """The token with which `generate` continues a text (1, T), and its logits (2, V) for that token and the next."""
    options = {
        "max_new_tokens": 2,
        "do_sample": False,
        "output_logits": True,
        "return_dict_in_generate": True,
        "pad_token_id": 0,
    }
    own, model.generation_config = model.generation_config, GenerationConfig()
    try:
        with quiet_loading():
            try:
                output = model.generate(text, attention_mask=torch.ones_like(text), **options)
            except (torch.OutOfMemoryError, MemoryError):
                raise
            except Exception:  # in some families generate's own cache has another number of layers than the model
                output = model.generate(text, attention_mask=torch.ones_like(text), use_cache=False, **options)
    finally:
        model.generation_config = own
    return int(output.sequences[0, text.shape[1]]), torch.cat(output.logits).float()


def _logits_and_hidden(
    model: PreTrainedModel, text: torch.Tensor, **arguments
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The model's own logits (T, V) of a text (1, T), in fp32, and what its body hands to the head, (T, d)."""
    seen: list[torch.Tensor] = []

    def keep(body: nn.Module, given: tuple, output: object) -> None:
        hidden = getattr(output, "last_hidden_state", None)
        if isinstance(hidden, torch.Tensor) and hidden.shape[:2] == text.shape:
            seen.append(hidden[0])

    hook = model.base_model.register_forward_hook(keep) if model.base_model is not model else None
    try:
        logits = model(input_ids=text, **_without_cache(model), **arguments).logits[0].float()
    finally:
        if hook:
            hook.remove()
    return logits, seen[-1] if seen else None


def _without_cache(module: nn.Module) -> dict:
    parameters = inspect.signature(module.forward).parameters
    return {"use_cache": False} if "use_cache" in parameters else {}


def _find_head(model: PreTrainedModel, probe: _Probe) -> tuple[OutputHead, str]:
    """What turns a pass's result into logits, and which result that is."""
    try:
        head = OutputHead(model)
        own = probe.own(head, 0, len(probe.tokens))
        if probe.hidden is not None and head.fit(model, probe.hidden, lambda logits: probe.same(logits, own)):
            return head, HIDDEN
    except (torch.OutOfMemoryError, MemoryError):
        raise
    except Exception:  # a head that is no projection: the model's own logits serve
        pass
    return OwnLogits(probe.logits.shape[-1]), LOGITS


# --- ways of calling a model ---------------------------------------------------------------------------------------


def _candidates(model: PreTrainedModel, kind: str, result: str, max_context: int) -> Iterator[tuple]:
    """Kinds of pass with what they are made of, from the fastest to the slowest."""
    arguments = ((POSITIONS,), (), (POSITIONS, MASK), (MASK,))
    for given in arguments:
        yield CachedPass, (model, given, result)
    if kind == "growing":  # such a memory has no fixed length
        for given in arguments:
            yield RecurrentPass, (model, given, result)
        for given in arguments:
            yield RecurrentPass, (model, given, result, True)
    for given in arguments[:2]:
        yield WholeTextPass, (model, given, result, max_context)


def _first_exact(
    model: PreTrainedModel,
    head: OutputHead,
    probe: _Probe,
    kind: str,
    width: int | None,
    result: str,
    max_context: int,
) -> tuple[ModelRunner | None, str]:
    """A runner of the first way of calling that gives the model's own logits, or the first way's cause."""
    causes = []
    for make, arguments in _candidates(model, kind, result, max_context):
        try:
            passes = {"growing": None, "fixed": None} | {kind: make(*arguments)}
            runner = ModelRunner(model, head, **passes, width=width, max_context=max_context)
            cause = probe.differs(runner)
        except (torch.OutOfMemoryError, MemoryError):
            raise
        except Exception as error:
            cause = _cause(error)
        if not cause:
            return runner, ""
        causes.append(cause)
    return None, next((cause for cause in causes if " differ from " in cause), causes[0])


def _cause(error: Exception) -> str:
    return f"{type(error).__name__}: {first_line(error)}".rstrip(".")


# --- windows and positions -----------------------------------------------------------------------------------------


@contextmanager
def _short_windows(config: PretrainedConfig) -> Iterator[list[int]]:
    """Windows that masks read from the configuration are `SHORT_WINDOW` tokens for as long as this lasts.

    Yields what they were, where a layer looks through one.
    """
    before = {name: getattr(config, name, None) for name in _SHORTENED}
    shortened = {name: value for name, value in before.items() if isinstance(value, int) and value > SHORT_WINDOW}
    try:
        for name in shortened:
            setattr(config, name, SHORT_WINDOW)
        kinds = getattr(config, "layer_types", None)
        in_use = kinds is None or any("sliding" in kind or "chunked" in kind for kind in kinds)
        yield list(shortened.values()) if in_use else []
    finally:
        for name, value in shortened.items():
            setattr(config, name, value)


def _unread_windows(model: PreTrainedModel, config: PretrainedConfig, tokens: int) -> list[int]:
    """Windows, of layers that look through one, that change nothing when they are shortened.

    A layer may have its window built in, or none in truth: how it looks beyond the window cannot be checked briefly.
    """
    text = torch.arange(tokens, device=model.device)[None] % config.vocab_size
    with _short_windows(config) as windows:
        short = _logits_and_hidden(model, text)[0] if windows else None
    if short is None or tokens <= SHORT_WINDOW:
        return []
    return windows if torch.equal(short, _logits_and_hidden(model, text)[0]) else []


@contextmanager
def _independent_rows(model: PreTrainedModel) -> Iterator[None]:
    """LLM.int8 keeps no outlier columns for as long as this lasts.

    It chooses them over all rows of a pass, so that a row's logits depend on how the text is cut into passes; the check
    asks about everything else.
    """
    states = [module.state for module in model.modules() if getattr(getattr(module, "state", None), "threshold", 0)]
    thresholds = [state.threshold for state in states]
    try:
        for state in states:
            state.threshold = 0.0
        yield
    finally:
        for state, threshold in zip(states, thresholds, strict=True):
            state.threshold = threshold


def _text_length(model: PreTrainedModel, config: PretrainedConfig, max_context: int) -> tuple[int, int]:
    """Tokens to prefill in the check, and the context within which the check holds."""
    windows = [factor * getattr(config, name, 0) for names, factor in ((_BUILT_IN, 1), (_CHUNKS, 2)) for name in names]
    longest = max(window for window in windows if isinstance(window, int))
    room = max_context - WIDEST_PASS - 2
    if longest + SHORT_WINDOW <= LONGEST_TEXT:
        wanted = max(PROMPT_TOKENS, longest + SHORT_WINDOW if longest else 0)
        return max(1, min(wanted, room)), max_context
    return max(1, min(PROMPT_TOKENS, room)), min(max_context, longest)


def _known_positions(model: PreTrainedModel, max_context: int) -> int:
    """Most positions the model knows: families that count from behind the padding token's know fewer than they say."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding) and name.endswith("position_embeddings") and module.padding_idx is not None:
            return min(max_context, module.num_embeddings - module.padding_idx - 1)
    return max_context
