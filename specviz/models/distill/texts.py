"""Labelled texts on disk: what the target wrote and what it would have said at each position.

A shard is one `.npz` file (numbers and fixed-width strings only, loaded without pickle), written to a temporary name
and renamed, so a shard that exists is whole.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np


@dataclass(frozen=True, slots=True)
class LabelledText:
    """A prompt and its continuation, with the target's distribution at every position of the continuation.

    Attributes:
        kind: family of the prompt.
        mode: how the continuation was drawn: `greedy` or `t0.7` (sampling temperature).
        ids: (prompt_len + n,) token ids.
        prompt_len: tokens of the prompt.
        top_ids: (n, k) the target's k most likely tokens at each output position, best first.
        top_logp: (n, k) their log-probabilities in nats.
        hidden: (n, d) the target's last hidden state there, or (n, 0) where it was not kept.
    """

    kind: str
    mode: str
    ids: np.ndarray
    prompt_len: int
    top_ids: np.ndarray
    top_logp: np.ndarray
    hidden: np.ndarray

    @property
    def output_ids(self) -> np.ndarray:
        return self.ids[self.prompt_len :]


def write_shard(path: Path, texts: Sequence[LabelledText]) -> None:
    """Write `texts` as one shard, all or nothing."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.part")
    with open(temporary, "wb") as file:
        np.savez(
            file,
            kind=np.array([text.kind for text in texts]),
            mode=np.array([text.mode for text in texts]),
            length=np.array([len(text.ids) for text in texts], np.int64),
            prompt_len=np.array([text.prompt_len for text in texts], np.int64),
            ids=np.concatenate([text.ids for text in texts]).astype(np.int32),
            top_ids=np.concatenate([text.top_ids for text in texts]).astype(np.int32),
            top_logp=np.concatenate([text.top_logp for text in texts]).astype(np.float16),
            hidden=np.concatenate([text.hidden for text in texts]).astype(np.float16),
        )
    os.replace(temporary, path)


def read_shard(path: Path) -> list[LabelledText]:
    """Read one shard in the order it was written."""
    with np.load(path, allow_pickle=False) as data:
        columns = {name: data[name] for name in data.files}
    ends = np.cumsum(columns["length"])
    label_ends = np.cumsum(columns["length"] - columns["prompt_len"])
    texts = []
    for i, (end, label_end) in enumerate(zip(ends, label_ends, strict=True)):
        n = int(columns["length"][i] - columns["prompt_len"][i])
        labels = slice(int(label_end) - n, int(label_end))
        texts.append(
            LabelledText(
                kind=str(columns["kind"][i]),
                mode=str(columns["mode"][i]),
                ids=columns["ids"][int(end - columns["length"][i]) : int(end)],
                prompt_len=int(columns["prompt_len"][i]),
                top_ids=columns["top_ids"][labels],
                top_logp=columns["top_logp"][labels],
                hidden=columns["hidden"][labels],
            )
        )
    return texts


def read_shards(paths: Iterable[Path]) -> list[LabelledText]:
    """Read several shards, in the order of their paths given."""
    return [text for path in paths for text in read_shard(path)]
