"""Training a draft on labelled texts.

The loss at each output position is cross-entropy against a mix of the target's distribution (its most likely tokens,
renormalised over those the head has a row for) and its arg max alone. The arg max counts because acceptance by a greedy
target asks for nothing else, and it makes the draft's confidence an estimate of its chance of acceptance. Where the
target's hidden states were kept, the head's input is pulled towards them too (as in EAGLE, Li et al. 2024): they
say more per token than a few probabilities do, which counts when texts are few.
"""

from __future__ import annotations

import copy
import os
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedModel

from specviz.models.distill.evaluate import padded_ids
from specviz.models.distill.texts import LabelledText
from specviz.models.draft_model import DraftConfig, DraftModel


@dataclass(frozen=True, slots=True)
class TrainSettings:
    """How a draft is trained. The learning rate warms up, stays, then falls linearly to zero over the last `decay`."""

    steps: int = 4000
    batch_tokens: int = 1024
    learning_rate: float = 8e-4
    warmup_steps: int = 50
    decay: float = 0.4
    betas: tuple[float, float] = (0.9, 0.98)
    weight_decay: float = 0.01
    clip_norm: float = 1.0
    hard_weight: float = 0.4
    hidden_weight: float = 0.5
    average_decay: float = 0.99
    seed: int = 0

    def learning_rate_at(self, step: int) -> float:
        """Learning rate of step `step`, counted from 0."""
        warm = min(1.0, (step + 1) / self.warmup_steps) if self.warmup_steps else 1.0
        left = (self.steps - step) / max(1.0, self.decay * self.steps)
        return self.learning_rate * min(warm, left, 1.0)


def choose_head_tokens(texts: Sequence[LabelledText], size: int, vocab_size: int) -> torch.Tensor:
    """(size,) the tokens a reduced head should have rows for, most useful first.

    Tokens count as often as the target ranks them first, and a little as often as it ranks them among its first
    eight. The rest is filled with the lowest ids: byte-pair encoders number frequent merges first.
    """
    counts: Counter[int] = Counter()
    for text in texts:
        counts.update(dict(Counter(text.output_ids.tolist())))
        counts.update(dict(Counter(text.top_ids[:, 0].tolist())))
        for token, n in Counter(text.top_ids[:, 1:8].ravel().tolist()).items():
            counts[token] += 0.05 * n
    by_use = [token for token, _ in counts.most_common()]
    chosen = list(dict.fromkeys([*by_use, *range(vocab_size)]))[: min(size, vocab_size)]
    return torch.tensor(chosen)


def make_draft(target: PreTrainedModel, layers: Sequence[int], head_tokens: torch.Tensor, seed: int = 0) -> DraftModel:
    """A draft with copies of some of the target's layers, where it has Llama-like ones, under its embedding.

    A target of another architecture gives its embedding only; the layers start from random weights.
    """
    source = target.config.get_text_config()
    heads = source.num_attention_heads
    names = set(dict(target.named_parameters()))
    llama_like = f"model.layers.{layers[0]}.self_attn.q_proj.weight" in names
    config = DraftConfig(
        draft_vocab_size=len(head_tokens),
        vocab_size=target.get_input_embeddings().weight.shape[0],
        hidden_size=target.get_input_embeddings().weight.shape[1],
        intermediate_size=getattr(source, "intermediate_size", None) or 4 * source.hidden_size,
        num_hidden_layers=len(layers),
        num_attention_heads=heads,
        num_key_value_heads=getattr(source, "num_key_value_heads", None) or heads,
        head_dim=getattr(source, "head_dim", None) or source.hidden_size // heads,
        hidden_act="silu",
        max_position_embeddings=source.max_position_embeddings,
        rms_norm_eps=getattr(source, "rms_norm_eps", 1e-5),
        rope_parameters=getattr(source, "rope_parameters", None),
        attention_bias=f"model.layers.{layers[0]}.self_attn.q_proj.bias" in names,
        bos_token_id=source.bos_token_id,
        eos_token_id=source.eos_token_id,
        pad_token_id=source.pad_token_id,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        draft = DraftModel(config).to(target.device, torch.float32)
    draft.lm_head.token_ids.copy_(head_tokens)
    torch.nn.init.eye_(draft.lm_head.connector.weight)
    torch.nn.init.zeros_(draft.lm_head.connector.bias)
    if llama_like:
        own = draft.state_dict()
        with torch.no_grad():
            for name, weight in target.state_dict().items():
                place = _place_in_draft(name, layers)
                if place in own and own[place].shape == weight.shape:
                    own[place].copy_(weight)
    draft.attach_embedding(target)
    return draft


def _place_in_draft(name: str, layers: Sequence[int]) -> str | None:
    """The draft's name of a target's parameter; None for a layer that is not taken."""
    if not name.startswith("model.layers."):
        return name if name.startswith("model.norm") else None
    number, rest = name.removeprefix("model.layers.").split(".", 1)
    return f"model.layers.{list(layers).index(int(number))}.{rest}" if int(number) in layers else None


@torch.no_grad()
def fit_connector(draft: DraftModel, texts: Sequence[LabelledText], ridge: float = 1e-3, batch: int = 8) -> None:
    """Set the head's linear map to the least-squares one from the draft's hidden state to the target's.

    In closed form this makes early layers of a target predict its output about as well as they linearly can (a tuned
    lens, Belrose et al. 2023), a far better start than the identity. Texts without kept hidden states are left out.

    Args:
        ridge: weight of the penalty, relative to the mean square of the hidden states.
    """
    texts = [text for text in texts if text.hidden.shape[1]]
    torch.nn.init.ones_(draft.model.norm.weight)
    size = draft.config.hidden_size
    gram = torch.zeros(size + 1, size + 1, dtype=torch.float64)
    moment = torch.zeros(size + 1, size, dtype=torch.float64)
    for start in range(0, len(texts), batch):
        chosen = texts[start : start + batch]
        hidden = draft.model(input_ids=padded_ids(chosen, draft.device), use_cache=False)[0]
        inputs = torch.cat([hidden[i, t.prompt_len - 1 : len(t.ids) - 1] for i, t in enumerate(chosen)]).double().cpu()
        inputs = torch.cat([inputs, torch.ones(len(inputs), 1, dtype=inputs.dtype)], dim=1)
        gram += inputs.T @ inputs
        moment += inputs.T @ torch.from_numpy(np.concatenate([text.hidden for text in chosen])).double()
    gram.diagonal().add_(ridge * gram.diagonal().mean())
    solution = torch.linalg.solve(gram, moment).float().to(draft.device)
    draft.lm_head.connector.weight.copy_(solution[:-1].T)
    draft.lm_head.connector.bias.copy_(solution[-1])


def distillation_loss(
    draft: DraftModel, texts: Sequence[LabelledText], row_of_token: torch.Tensor, settings: TrainSettings
) -> torch.Tensor:
    """Mean loss over all output positions of `texts`; `row_of_token` is (vocab_size,), -1 where the head has no row."""
    device = draft.device
    hidden = draft.model(input_ids=padded_ids(texts, device), use_cache=False)[0]
    at_outputs = torch.cat([hidden[i, text.prompt_len - 1 : len(text.ids) - 1] for i, text in enumerate(texts)])
    top_ids = torch.from_numpy(np.concatenate([text.top_ids for text in texts]).astype(np.int64)).to(device)
    top_logp = torch.from_numpy(np.concatenate([text.top_logp for text in texts])).to(device, torch.float32)

    seen_by_head = draft.lm_head.connector(at_outputs)
    logp = draft.lm_head.rows(seen_by_head).log_softmax(-1)
    rows = row_of_token[top_ids]
    teacher = top_logp.exp() * (rows >= 0)
    known = teacher.sum(-1, keepdim=True).clamp_min(1e-6)
    chosen = logp.gather(-1, rows.clamp_min(0))
    soft = -(teacher / known * chosen).sum(-1)
    hard = -chosen[:, 0] * (rows[:, 0] >= 0)
    loss = ((1 - settings.hard_weight) * soft + settings.hard_weight * hard).mean()

    if settings.hidden_weight:
        with_hidden = [i for i, text in enumerate(texts) if text.hidden.shape[1]]
        if with_hidden:
            wanted = torch.from_numpy(np.concatenate([texts[i].hidden for i in with_hidden])).to(device, torch.float32)
            kept = torch.cat([torch.full((len(t.output_ids),), bool(t.hidden.shape[1])) for t in texts]).to(device)
            error = (seen_by_head[kept] - wanted).square().mean() / wanted.var()
            loss = loss + settings.hidden_weight * error
    return loss


def batches_of_epoch(texts: Sequence[LabelledText], batch_tokens: int, seed: int, epoch: int) -> list[list[int]]:
    """Cut one shuffled pass over `texts` into batches of alike length and at most about `batch_tokens` tokens."""
    rng = random.Random(f"{seed}-{epoch}")
    order = list(range(len(texts)))
    rng.shuffle(order)
    batches: list[list[int]] = []
    # Sorting within chunks of the shuffled order keeps batches random but little padded.
    for start in range(0, len(order), 256):
        batch: list[int] = []
        for i in sorted(order[start : start + 256], key=lambda i: len(texts[i].ids)):
            if batch and (len(batch) + 1) * len(texts[i].ids) > batch_tokens:
                batches.append(batch)
                batch = []
            batch.append(i)
        batches.append(batch)
    rng.shuffle(batches)
    return batches


class Trainer:
    """Trains a draft step by step; `state_dict` and `load_state_dict` make a stopped run continue exactly."""

    def __init__(self, draft: DraftModel, settings: TrainSettings):
        self.draft = draft
        self.settings = settings
        self.step = 0
        self.epoch = 0
        self.batch_in_epoch = 0
        self.parameters = {name: p for name, p in draft.named_parameters() if p.requires_grad}
        self.average = {name: p.detach().clone() for name, p in self.parameters.items()}
        matrices = [p for p in self.parameters.values() if p.ndim > 1]
        vectors = [p for p in self.parameters.values() if p.ndim <= 1]
        self.optimiser = torch.optim.AdamW(
            [{"params": matrices, "weight_decay": settings.weight_decay}, {"params": vectors, "weight_decay": 0.0}],
            lr=settings.learning_rate,
            betas=settings.betas,
            fused=True,
        )
        self.row_of_token = torch.full((draft.config.vocab_size,), -1, device=draft.device)
        self.row_of_token[draft.head_token_ids] = torch.arange(len(draft.head_token_ids), device=draft.device)

    def train(
        self,
        read_texts: Callable[[], Sequence[LabelledText]],
        *,
        after_step: Callable[[Trainer, float], bool | None] | None = None,
    ) -> None:
        """Train the steps that are left.

        Args:
            read_texts: called at the start of every epoch, so texts written meanwhile join the next one.
            after_step: called with this trainer and the step's loss; returning True stops the training.
        """
        settings = self.settings
        self.draft.train()
        while self.step < settings.steps:
            texts = read_texts()
            batches = batches_of_epoch(texts, settings.batch_tokens, settings.seed, self.epoch)
            while self.batch_in_epoch < len(batches) and self.step < settings.steps:
                loss = self._train_step([texts[i] for i in batches[self.batch_in_epoch]])
                self.batch_in_epoch += 1
                if after_step and after_step(self, loss):
                    return
            if self.batch_in_epoch >= len(batches):
                self.epoch, self.batch_in_epoch = self.epoch + 1, 0

    def _train_step(self, texts: Sequence[LabelledText]) -> float:
        for group in self.optimiser.param_groups:
            group["lr"] = self.settings.learning_rate_at(self.step)
        loss = distillation_loss(self.draft, texts, self.row_of_token, self.settings)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(list(self.parameters.values()), self.settings.clip_norm)
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        self.step += 1
        # The average forgets its start faster at first.
        decay = min(self.settings.average_decay, self.step / (self.step + 10))
        with torch.no_grad():
            torch._foreach_lerp_(list(self.average.values()), list(self.parameters.values()), 1 - decay)
        return float(loss.detach())

    def averaged_draft(self) -> DraftModel:
        """A copy of the draft with the running average of its weights, sharing the frozen ones."""
        frozen = {id(p): p for p in self.draft.parameters() if not p.requires_grad}
        draft = copy.deepcopy(self.draft, memo=frozen)
        draft.load_state_dict(self.average, strict=False)
        return draft.eval()

    def state_dict(self) -> dict:
        """Everything a stopped run needs: weights, their average, optimiser, and the place in the data."""
        return {
            "settings": {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self.settings).items()},
            "place": [self.step, self.epoch, self.batch_in_epoch],
            "weights": {name: p.detach() for name, p in self.parameters.items()},
            "average": self.average,
            "optimiser": self.optimiser.state_dict(),
        }

    def load_state_dict(self, state: dict) -> None:
        """Continue from `state_dict()` of a run on a draft of the same shape; the settings may differ."""
        self.step, self.epoch, self.batch_in_epoch = state["place"]
        with torch.no_grad():
            for name, p in self.parameters.items():
                p.copy_(state["weights"][name])
                self.average[name].copy_(state["average"][name])
        self.optimiser.load_state_dict(state["optimiser"])


def save_checkpoint(trainer: Trainer, path: Path) -> None:
    """Write the trainer's state, all or nothing."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.part")
    torch.save(trainer.state_dict(), temporary)
    os.replace(temporary, path)


def load_checkpoint(trainer: Trainer, path: Path) -> None:
    """Continue from a checkpoint written by `save_checkpoint`; tensors and plain values only are read."""
    trainer.load_state_dict(torch.load(path, map_location=trainer.draft.device, weights_only=True))
