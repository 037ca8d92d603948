"""From a target to its draft: data, training, evaluation, card. What `python -m specviz distill` runs."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specviz.errors import SpecVizError
from specviz.models.distill.card import write_card
from specviz.models.distill.copying import attention_scores, choose_layers, repeated_spans
from specviz.models.distill.evaluate import Agreement, measure_agreement
from specviz.models.distill.generate import TEMPERATURES, write_shards
from specviz.models.distill.prompts import generate_prompts
from specviz.models.distill.texts import LabelledText, read_shards
from specviz.models.distill.train import (
    Trainer,
    TrainSettings,
    choose_head_tokens,
    fit_connector,
    load_checkpoint,
    make_draft,
    save_checkpoint,
)
from specviz.models.draft_model import DraftModel
from specviz.models.loading import load_model


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a distillation stands: `stage` is `texts`, `held-out texts`, `training` or `evaluation`."""

    stage: str
    done: int
    total: int
    note: str = ""


@dataclass(frozen=True, slots=True)
class Distilled:
    """A finished distillation: the folder that holds the draft, and its agreement on held-out prompts."""

    folder: Path
    draft: DraftModel
    agreement: Agreement


def distill(
    target: str | Path | PreTrainedModel,
    out: str | Path,
    *,
    tokenizer: PreTrainedTokenizerBase | None = None,
    layers: Sequence[int] | None = None,
    depth: int = 5,
    head_size: int = 12288,
    repeats: float = 0.2,
    texts: int = 4000,
    held_out_texts: int = 120,
    max_new_tokens: int = 200,
    batch: int = 48,
    settings: TrainSettings | None = None,
    checkpoint_every: int = 200,
    device: str | torch.device = "cpu",
    seed: int = 0,
    progress: Callable[[Progress], bool | None] | None = None,
) -> Distilled | None:
    """Make a draft for `target`: the target writes texts, a few of its layers learn to foretell them.

    Everything is kept in `out`/work as it is made, so the same call after an interruption goes on from there. When the
    draft is finished `out` holds config.json, model.safetensors and README.md.

    Args:
        target: a folder or hub id with safetensors weights, or a loaded model (then give `tokenizer` too).
        out: folder of the draft; it may exist only if it is empty or holds an earlier, unfinished distillation.
        layers: which of the target's layers the draft starts from (default: `choose_layers` picks `depth` of them).
        head_size: tokens the reduced head has rows for.
        repeats: made-up texts that teach copying (`repeated_spans`), per text of the target.
        texts: how many texts the target writes for training, each of up to `max_new_tokens` tokens.
        batch: texts written at a time.
        progress: called often; returning True stops, and `distill` returns None. Calling it again resumes.

    Raises:
        SpecVizError: the target, the folder or a setting cannot be used.
    """
    out = Path(out)
    settings = settings or TrainSettings(seed=seed)
    for name, value in (
        ("depth", depth),
        ("head_size", head_size),
        ("texts", texts),
        ("held_out_texts", held_out_texts),
        ("steps", settings.steps),
    ):
        if value < 1:
            raise SpecVizError(f"{name} is {value}: give a number of at least 1.")
    target, tokenizer = _load(target, tokenizer, device, progress)
    count = target.config.get_text_config().num_hidden_layers
    layers = choose_layers(*attention_scores(target), depth) if layers is None else tuple(layers)
    if not layers or any(not 0 <= layer < count for layer in layers):
        raise SpecVizError(
            f"The target has layers 0 to {count - 1}: choose one or more of them for the draft, not {list(layers)}."
        )
    recipe = _recipe(target, layers, head_size, repeats, texts, max_new_tokens, settings, seed)
    work = _prepare(out, recipe)

    stopped = False

    def tell(stage: str, done: int, total: int, note: str = "") -> bool:
        nonlocal stopped
        stopped = stopped or bool(progress and progress(Progress(stage, done, total, note)))
        return stopped

    try:
        train_texts = _texts(target, tokenizer, work / "texts", texts, False, max_new_tokens, batch, seed, tell)
        held_out = _texts(target, tokenizer, work / "held-out", held_out_texts, True, max_new_tokens, batch, seed, tell)
    except _Stopped:
        return None

    head = choose_head_tokens(train_texts, head_size, target.get_input_embeddings().weight.shape[0])
    draft = make_draft(target, layers, head, seed)
    fit_connector(draft, train_texts)
    trainer = Trainer(draft, settings)
    checkpoint = work / "checkpoint.pt"
    if checkpoint.exists():
        load_checkpoint(trainer, checkpoint)

    def after_step(trainer: Trainer, loss: float) -> bool:
        stop = tell("training", trainer.step, settings.steps, f"loss {loss:.3f}")
        if stop or trainer.step % checkpoint_every == 0:
            save_checkpoint(trainer, checkpoint)
        return stop

    def read_texts() -> list[LabelledText]:
        made = int(repeats * len(train_texts))
        return train_texts + repeated_spans(train_texts, head.tolist(), made, seed=seed + trainer.epoch)

    trainer.train(read_texts, after_step=after_step)
    if stopped:
        return None
    save_checkpoint(trainer, checkpoint)
    finished = trainer.averaged_draft()
    agreement = measure_agreement(
        finished, held_out, progress=lambda done, total: tell("evaluation", done, total) and None
    )
    save_draft(finished, out)
    write_card(out / "README.md", recipe, train_texts, {"Held-out prompts of the training kinds": agreement})
    return Distilled(out, finished, agreement)


def save_draft(draft: DraftModel, folder: Path) -> None:
    """Write the draft's own weights (bf16) and config into `folder`, each to a temporary name first."""
    weights = {
        name: (weight.to(torch.bfloat16) if weight.is_floating_point() else weight).contiguous().cpu()
        for name, weight in draft.state_dict().items()
        if name not in DraftModel.not_stored
    }
    config = copy.deepcopy(draft.config)
    config.dtype, config.architectures = "bfloat16", [DraftModel.__name__]
    temporary = folder / f".saving-{os.getpid()}"
    save_file(weights, temporary, metadata={"format": "pt"})
    temporary.chmod(0o644)
    os.replace(temporary, folder / "model.safetensors")
    config.to_json_file(temporary)
    os.replace(temporary, folder / "config.json")


def _load(
    target: str | Path | PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase | None,
    device: str | torch.device,
    progress: Callable[[Progress], bool | None] | None,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    if isinstance(target, PreTrainedModel):
        if tokenizer is None:
            raise SpecVizError("A loaded target needs its tokenizer as well: pass tokenizer=.")
        return target.eval(), tokenizer

    def report(stage: str, done: float | None, total: float | None) -> None:
        if progress:
            progress(Progress(stage, int(done or 0), int(total or 0), ""))

    loaded = load_model(str(target), "fp32", str(device), progress=report)
    loaded.model.name_or_path = loaded.name  # of a model from the hub, the folder's name is only a commit
    return loaded.model.requires_grad_(True), loaded.tokenizer


def _prepare(out: Path, recipe: dict) -> Path:
    """Make the working folder; one made with other settings is refused, so data of two recipes never mix."""
    work = out / "work"
    if out.is_dir() and any(out.iterdir()) and not (work / "recipe.json").exists():
        raise SpecVizError(f"{out} is not empty and holds no unfinished distillation: choose a new folder.")
    work.mkdir(parents=True, exist_ok=True)
    written = json.dumps(recipe, indent=1)
    note = work / "recipe.json"
    if note.exists() and note.read_text(encoding="utf-8") != written:
        raise SpecVizError(
            f"{out} holds a distillation with other settings: choose a new folder or repeat those settings."
        )
    temporary = work / f".recipe-{os.getpid()}"
    temporary.write_text(written, encoding="utf-8")
    os.replace(temporary, note)
    return work


def _recipe(
    target: PreTrainedModel,
    layers: Sequence[int],
    head_size: int,
    repeats: float,
    texts: int,
    max_new_tokens: int,
    settings: TrainSettings,
    seed: int,
) -> dict:
    return {
        "target": Path(str(target.name_or_path)).name or type(target).__name__,
        "layers": list(layers),
        "head_size": head_size,
        "repeats": repeats,
        "texts": texts,
        "max_new_tokens": max_new_tokens,
        "seed": seed,
        "training": {name: list(v) if isinstance(v, tuple) else v for name, v in asdict(settings).items()},
    }


def _texts(
    target: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    texts: int,
    held_out: bool,
    max_new_tokens: int,
    batch: int,
    seed: int,
    tell: Callable[[str, int, int, str], bool],
) -> list[LabelledText]:
    """Texts of the target for training (most greedy, some sampled) or, all greedy, for evaluation."""
    stage = "held-out texts" if held_out else "texts"
    tokens = 0

    def after_step(new: int) -> None:
        nonlocal tokens
        tokens += new
        done = min(texts, len(list(folder.glob("*.npz"))) * batch)
        if tell(stage, done, texts, f"{tokens} tokens"):
            raise _Stopped

    paths = write_shards(
        target,
        tokenizer,
        generate_prompts(seed, held_out=held_out),
        folder,
        texts=texts,
        batch=batch,
        max_new_tokens=max_new_tokens,
        temperatures=((0.0, 1.0),) if held_out else TEMPERATURES,
        keep_hidden=not held_out,
        seed=seed,
        progress=after_step,
    )
    return read_shards(paths)


class _Stopped(Exception):
    """The progress callback asked to stop."""
