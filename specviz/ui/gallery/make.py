"""Records the gallery anew: `python -m specviz.ui.gallery.make [FOLDER]`, on the built-in pair.

The prompts are of kinds the draft foresees well and of kinds it does not, and none of them was in its training. What a
recording holds is what happened, whichever way it turned out.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path

from specviz.engine.engine import Engine
from specviz.engine.recording import record
from specviz.measure.costs import measured_costs
from specviz.models.defaults import PASS_MODE
from specviz.models.loading import encode_prompt, load_pair
from specviz.models.precision import natural_precision
from specviz.models.sources import BUILTIN_DRAFT, BUILTIN_TARGET
from specviz.models.token_text import TokenText
from specviz.trace import RecordingSet
from specviz.ui.gallery import ItemInfo, gallery_folder, write_item

NEW_TOKENS = 160
PASSAGE = (
    "The old tram depot at the edge of town stood empty for eleven years. Last spring a group of neighbours rented it "
    "for one euro a month, swept out the broken glass and opened a repair workshop. On Saturdays people bring kettles, "
    "radios and bicycles; volunteers show them how to mend things instead of throwing them away. The council first "
    "feared noise and parked cars, but now plans to give the group a second hall."
)


@dataclass(frozen=True)
class Planned:
    name: str
    prompt: str
    info: ItemInfo


# Whether a kind counts as known is decided by the draft's card: agreement of at least 0.45 on held-out prompts of it.
PLAN = (
    Planned(
        "baker-rolls",
        "A baker makes 24 rolls every hour and sells 17 of them. How many rolls are left after 5 hours?",
        ItemInfo("The baker's rolls", "arithmetic", True, "Words of a sum are easy to foresee, its digits are not."),
    ),
    Planned(
        "tram-depot",
        f"Summarize: {PASSAGE}",
        ItemInfo(
            "The tram depot", "summary", True, "The target copies the passage, and the draft has learnt to copy too."
        ),
    ),
    Planned(
        "lighthouse-seal",
        "Tell me a bedtime story about a lighthouse keeper and a lost seal.",
        ItemInfo("The lost seal", "story", False, "Stock phrases of a story are drafted, names and turns are not."),
    ),
    Planned(
        "zugfahrt",
        "Translate German to English: Der letzte Zug nach Hamburg fährt heute wegen Bauarbeiten schon um neun Uhr ab.",
        ItemInfo(
            "The last train", "translation", True, "The target garbles the sentence instead; the draft follows it."
        ),
    ),
    Planned(
        "autumn-leaves",
        "Explain to a child why leaves change colour in autumn.",
        ItemInfo("Autumn leaves", "explanation", True, "Free words: the draft is seldom sure, and then seldom right."),
    ),
    Planned(
        "rainy-tent",
        "List six things that keep you dry in a tent when it rains all night.",
        ItemInfo("A dry tent", "list", True, "Asked for a list, the target rambles, and the draft loses the thread."),
    ),
    Planned(
        "seconds-to-hours",
        "Write a Python function that turns a number of seconds into hours, minutes and seconds.",
        ItemInfo(
            "Seconds to hours", "code", False, "Code that repeats itself: long sure stretches between doubtful ones."
        ),
    ),
    Planned(
        "cold-flat",
        "Write a short email asking a landlord to repair the heating.",
        ItemInfo(
            "The cold flat", "email", False, "Greeting and thanks are a matter of course, the matter itself is not."
        ),
    ),
    Planned(
        "string-quartet",
        "Which instruments play in a string quartet, and what does each of them do?",
        ItemInfo("The string quartet", "question", False, "Facts: a small draft does not know what the target knows."),
    ),
)


def make(folder: Path) -> None:
    """Record every planned item into `folder`, one cost model for all of them."""
    precision = natural_precision("auto")
    engine = Engine(load_pair(BUILTIN_TARGET, BUILTIN_DRAFT, precision, precision), pass_mode=PASS_MODE)
    encoded = {item.name: encode_prompt(engine.pair, item.prompt) for item in PLAN}
    lengths = [len(ids) for ids in encoded.values()]
    contexts = (min(lengths), max(lengths), max(lengths) + NEW_TOKENS)
    costs = measured_costs(engine, contexts).to_json()
    token_text = TokenText(engine.pair.tokenizer)
    for order, item in enumerate(PLAN):
        recording = record(
            engine,
            encoded[item.name],
            max_new_tokens=NEW_TOKENS,
            prompt=item.prompt,
            prompt_id=item.name,
            category=item.info.kind,
        )
        agreed = (recording.draft_token == recording.output_ids).mean()
        print(f"{item.name}: {len(recording.output_ids)} tokens, the draft agrees at {agreed:.2f}", flush=True)
        recordings = RecordingSet([recording], costs)
        write_item(item.name, replace(item.info, order=order), recordings, token_text.bytes_of, folder)


if __name__ == "__main__":
    make(Path(sys.argv[1]) if len(sys.argv) > 1 else gallery_folder())
