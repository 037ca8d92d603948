"""The target writes texts, and its distribution is kept at every position: the training data of a draft.

Decoding is batched over a static key-value cache; the labels are stored as the tokens are made, so no second pass is
needed. Works for any causal language model of transformers with a rollback-free static cache.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.cache_utils import StaticCache

from specviz.models.distill.prompts import Prompt
from specviz.models.distill.texts import LabelledText, write_shard

# Sampling temperatures and their shares. The draft will follow a greedy target, so most texts are greedy; sampled texts
# show it more varied contexts.
TEMPERATURES = ((0.0, 0.65), (0.7, 0.35))


def encode_prompt(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Token ids of one user message, chat-formatted where the tokenizer has a chat template."""
    if tokenizer.chat_template is None:
        return list(tokenizer(text)["input_ids"])
    messages = [{"role": "user", "content": text}]
    return list(
        tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, return_dict=True)[
            "input_ids"
        ]
    )


def end_token_ids(target: PreTrainedModel) -> tuple[int, ...]:
    """Every id that ends a text of this model."""
    ids = target.generation_config.eos_token_id
    if ids is None:
        return ()
    return (ids,) if isinstance(ids, int) else tuple(ids)


@torch.no_grad()
def write_texts(
    target: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    temperatures: Sequence[float],
    kinds: Sequence[str],
    top_k: int = 32,
    keep_hidden: bool = False,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> list[LabelledText]:
    """Continue a batch of prompts together and label every new token.

    Args:
        prompts: token ids, one sequence per text; shorter ones are padded on the left.
        temperatures: one per text; 0 means greedy.
        progress: called with the number of new tokens after every step.

    Returns:
        One text per prompt, in order.
    """
    device, vocabulary = target.device, target.config.get_text_config().vocab_size
    rng = torch.Generator(device).manual_seed(seed)
    width, total = max(map(len, prompts)), max(map(len, prompts)) + max_new_tokens
    ids = torch.zeros(len(prompts), width, dtype=torch.long, device=device)
    mask = torch.ones(len(prompts), total, dtype=torch.long, device=device)
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :] = torch.tensor(prompt, device=device)
        mask[row, : width - len(prompt)] = 0
    temperature = torch.tensor(temperatures, device=device)
    greedy = temperature == 0
    ends = torch.tensor(end_token_ids(target), dtype=torch.long, device=device)

    cache = StaticCache(config=target.config, max_cache_len=total)
    parameters = inspect.signature(type(target.base_model).forward).parameters
    cache_argument = {"cache" if "cache" in parameters else "past_key_values": cache}  # transformers before 5.20
    rows = torch.arange(len(prompts), device=device)
    out: list[list[tuple[int, np.ndarray, np.ndarray, np.ndarray]]] = [[] for _ in prompts]
    positions = (mask[:, :width].cumsum(-1) - 1).clamp_min(0)
    for step in range(max_new_tokens):
        hidden = target.base_model(
            input_ids=ids, attention_mask=mask, position_ids=positions, **cache_argument
        ).last_hidden_state[:, -1]
        logits = target.get_output_embeddings()(hidden).float()
        top_logits, top_ids = logits.topk(min(top_k, vocabulary), dim=-1)
        top_logp = top_logits - logits.logsumexp(-1, keepdim=True)
        token = top_ids[:, 0]
        if not greedy.all():  # Gumbel-max sampling for the rows that are not greedy
            scaled = logits[~greedy] / temperature[~greedy, None]
            token = token.clone()
            token[~greedy] = (scaled - torch.empty_like(scaled).exponential_(generator=rng).log()).argmax(-1)

        kept_hidden = hidden.float().cpu().numpy() if keep_hidden else np.zeros((len(rows), 0), np.float32)
        columns = zip(
            rows.tolist(), token.tolist(), top_ids.cpu().numpy(), top_logp.cpu().numpy(), kept_hidden, strict=True
        )
        for row, one_token, one_ids, one_logp, one_hidden in columns:
            out[row].append((one_token, one_ids, one_logp, one_hidden))
        if progress:
            progress(len(rows))

        alive = ~torch.isin(token, ends)
        if not alive.any() or step == max_new_tokens - 1:
            break
        positions = positions[:, -1:] + 1
        ids = token[:, None]
        # Finished texts are dropped from the batch.
        if not alive.all():
            keep = alive.nonzero()[:, 0]
            for layer in cache.layers:
                layer.keys, layer.values = layer.keys[keep], layer.values[keep]
            rows, ids, mask, positions = rows[keep], ids[keep], mask[keep], positions[keep]
            temperature, greedy = temperature[keep], greedy[keep]

    return [
        LabelledText(
            kind=kind,
            mode="greedy" if t == 0 else f"t{t:g}",
            ids=np.concatenate([np.asarray(prompt, np.int32), np.array([entry[0] for entry in entries], np.int32)]),
            prompt_len=len(prompt),
            top_ids=np.stack([entry[1] for entry in entries]),
            top_logp=np.stack([entry[2] for entry in entries]),
            hidden=np.stack([entry[3] for entry in entries]),
        )
        for kind, t, prompt, entries in zip(kinds, temperatures, prompts, out, strict=True)
    ]


@torch.no_grad()
def label_text(
    target: PreTrainedModel,
    ids: Sequence[int],
    prompt_len: int,
    *,
    kind: str,
    mode: str,
    top_k: int = 32,
    keep_hidden: bool = False,
) -> LabelledText:
    """Label a text that exists already: the target's distribution at each position after the prompt."""
    tokens = torch.tensor([list(ids)], device=target.device)
    hidden = target.base_model(input_ids=tokens, use_cache=False).last_hidden_state[0, prompt_len - 1 : -1]
    logits = target.get_output_embeddings()(hidden).float()
    top_logits, top_ids = logits.topk(min(top_k, logits.shape[-1]), dim=-1)
    return LabelledText(
        kind=kind,
        mode=mode,
        ids=np.asarray(ids, np.int32),
        prompt_len=prompt_len,
        top_ids=top_ids.cpu().numpy(),
        top_logp=(top_logits - logits.logsumexp(-1, keepdim=True)).cpu().numpy(),
        hidden=hidden.float().cpu().numpy() if keep_hidden else np.zeros((len(hidden), 0), np.float32),
    )


def write_shards(
    target: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Iterator[Prompt],
    folder: Path,
    *,
    texts: int,
    batch: int = 48,
    pool: int = 8,
    max_new_tokens: int = 200,
    max_prompt_tokens: int = 400,
    temperatures: Sequence[tuple[float, float]] = TEMPERATURES,
    top_k: int = 32,
    keep_hidden: bool = False,
    seed: int = 0,
    progress: Callable[[int], None] | None = None,
) -> list[Path]:
    """Write `texts` labelled texts as shards of one batch each, and return their paths.

    `pool` batches of prompts are sorted by length before they are cut into batches, so little is padded. A shard that
    exists is not made again, so a stopped run continues where it was.
    """
    folder.mkdir(parents=True, exist_ok=True)
    temperature_rng = np.random.default_rng(seed)
    values, shares = zip(*temperatures, strict=True)
    paths = []
    for first in range(0, texts, batch * pool):
        chosen = []
        while len(chosen) < min(batch * pool, texts - first):
            prompt = next(prompts)
            ids = encode_prompt(tokenizer, prompt.text)
            if len(ids) <= max_prompt_tokens:
                chosen.append((prompt.kind, ids, float(temperature_rng.choice(values, p=shares))))
        chosen.sort(key=lambda item: len(item[1]))
        for start in range(0, len(chosen), batch):
            rows = chosen[start : start + batch]
            path = folder / f"texts-{seed}-{first + start:06d}.npz"
            paths.append(path)
            if not path.exists():
                kinds, ids, chosen_temperatures = zip(*rows, strict=True)
                labelled = write_texts(
                    target,
                    ids,
                    max_new_tokens=max_new_tokens,
                    temperatures=chosen_temperatures,
                    kinds=kinds,
                    top_k=top_k,
                    keep_hidden=keep_hidden,
                    seed=seed * 1_000_003 + first + start,
                    progress=progress,
                )
                write_shard(path, labelled)
    return paths
