"""Made-up recordings of readable text, for tests of the app: no model has said any of this."""

from pathlib import Path

import numpy as np

from specviz.analysis import CostModel, PassTimes, Timing
from specviz.trace import PairInfo, Recording, RecordingSet
from specviz.trace.recording import TOP_TOKENS

TEXT = """The ocean covers more than seventy per cent of the planet. 1. It holds about 97 % of all water on Earth.
2. Its deepest place, the Challenger Deep, lies almost eleven kilometres under the surface. 3. Most of it has never been
seen by anyone; maps of the moon are better. 4. Its plants make at least half of the oxygen that we breathe. 5. Warm and
cold currents carry heat around the world, and without them winters in Europe would be much harder than they are.
"""
PAIR = PairInfo("made-up target", "made-up draft", "", "", "bf16", "bf16", "CPU, made-up", {"numpy": "2"})


def sample_words() -> list[str]:
    """A vocabulary: token id to text. The last four try to be something else than text."""
    words = []
    for line in TEXT.splitlines():
        words += [" " + word for word in line.split()]
        words.append("\n")
    return sorted(set(words)) + ["<script>alert(1)</script>", '=cmd("x")', " **bold** [x](http://y)", "\u202eשלום"]


def sample_recording(
    tokens: int = 128, seed: int = 0, skill: float = 0.8, max_draft: int = 8, prompt: str = "List five facts."
) -> Recording:
    """A recording of `tokens` tokens whose draft is right with chance about `skill`."""
    source = np.random.default_rng(seed)
    words = sample_words()
    index = {word: token for token, word in enumerate(words)}
    text = [index[" " + word] for line in TEXT.splitlines() for word in line.split()]
    output = np.array((text * (tokens // len(text) + 1))[:tokens], np.int32)
    output[5::17] = len(words) - 4 + np.arange(len(output[5::17])) % 4

    def draw(size, right):
        spread = source.beta(np.where(right, 5, 1.6), np.where(right, 0.9, 1.7), size)
        return np.clip(spread, 0.02, 0.9999).astype(np.float32)

    right = source.random(tokens) < skill * (0.75 + 0.25 * np.sin(np.arange(tokens) / 9))
    wrong_token = (output + 1 + source.integers(0, len(words) - 2, tokens)) % len(words)
    draft = np.where(right, output, wrong_token).astype(np.int32)
    confidence = draw(tokens, right)
    offsets = [0]
    for position in range(tokens):
        offsets.append(offsets[-1] + (0 if right[position] else max(0, min(max_draft - 1, tokens - 2 - position))))
    steps = offsets[-1]
    branch_confidence = draw(steps, source.random(steps) < 0.5)

    def top(first, probability):
        ids = (first[:, None] + np.arange(TOP_TOKENS) * 7) % len(words)
        rest = (1 - probability[:, None]) * np.array([0.5, 0.25, 0.12, 0.06])
        return ids.astype(np.int32), np.concatenate([probability[:, None], rest], axis=1).astype(np.float32)

    target_probability = draw(tokens, right)
    draft_top, target_top = top(draft, confidence), top(output, target_probability)

    def entropy(probability):
        return (-2 * np.log(probability)).astype(np.float32)

    return Recording(
        prompt_id=f"sample-{seed}",
        category="sample",
        prompt=prompt,
        pair=PAIR,
        settings={"pass_mode": "invariant", "rule": "greedy"},
        seed=0,
        finish_reason="length",
        max_new_tokens=tokens,
        output_limit=2048,
        max_draft=max_draft,
        eos_ids=(),
        prompt_ids=np.arange(20, dtype=np.int32),
        output_ids=output,
        draft_token=draft,
        draft_confidence=confidence,
        draft_entropy=entropy(confidence),
        draft_margin=confidence * np.float32(0.8),
        draft_prob_of_emitted=np.where(right, confidence, (1 - confidence) / 3).astype(np.float32),
        target_prob_of_draft_token=np.where(right, target_probability, (1 - target_probability) / 3).astype(np.float32),
        target_rank_of_draft_token=np.where(right, 1, 3).astype(np.int32),
        target_entropy=entropy(target_probability),
        target_prob_of_emitted=target_probability,
        target_margin=np.full(tokens, 2, np.float32),
        draft_top_ids=draft_top[0],
        draft_top_probs=draft_top[1],
        target_top_ids=target_top[0],
        target_top_probs=target_top[1],
        branch_offsets=np.array(offsets, np.int32),
        branch_token=source.integers(0, len(words), steps).astype(np.int32),
        branch_confidence=branch_confidence,
        branch_entropy=entropy(branch_confidence),
        branch_margin=branch_confidence * np.float32(0.8),
    ).validate()


def sample_cost(longest_draft: int = 8) -> CostModel:
    """Made-up times: a draft step takes a fifth of a target pass."""

    def timing(values):
        values = np.asarray(values, float)
        return Timing(values, values * 0.97, values * 1.05)

    times = PassTimes(
        widths=(longest_draft + 1,),
        target_pass=timing([[0.060, 0.066]]),
        draft_step=timing([[0.009, 0.010], [0.011, 0.012]]),
        plain_step=timing([0.050, 0.054]),
        round_overhead=timing(0.001),
    )
    return CostModel(PAIR, (1, 1024), {"invariant": times}, repeats=5)


def sample_set(recordings: list[Recording] | None = None) -> RecordingSet:
    """A recording set with its cost model."""
    recordings = recordings or [sample_recording()]
    return RecordingSet(recordings, sample_cost(recordings[0].max_draft).to_json())


def write_sample_gallery(folder: Path, tokens: int = 128) -> None:
    """Three items, one of them of a kind that the draft does not know."""
    from specviz.ui.gallery import ItemInfo, write_item

    words = sample_words()
    for order, (name, title, known, skill) in enumerate(
        [
            ("ocean", "Facts about the ocean", True, 0.85),
            ("soup", "A recipe for soup", True, 0.75),
            ("verse", "A sonnet", False, 0.4),
        ]
    ):
        info = ItemInfo(title, "list", known, "Made-up numbers, for tests.", order)
        recording = sample_recording(tokens, order, skill, prompt=f"{title}, please. <b>&</b> =1+1")
        write_item(name, info, sample_set([recording]), lambda token: words[token].encode(), folder)
