"""The arena as a table."""

import pandas as pd

from specviz.analysis.arena import Arena, Entry


def arena_table(result: Arena) -> pd.DataFrame:
    """One row per policy, the fastest first.

    Columns: policy, knob, chosen (the value that either half chose for the other), speedup, low, high (on prompts that
    did not choose; interval over prompts), level, chosen_speedup (on those that did), captured, captured_low,
    captured_high (share of the optimal oracle's gain), tokens_per_pass, waste (share of draft steps whose token was not
    accepted), oracle, prompts, max_draft, pass_mode, target, draft, target_precision, draft_precision, device.
    """
    rows = [
        {
            "policy": entry.label,
            "knob": entry.knob,
            "chosen": chosen_values(entry),
            "speedup": entry.speedup.value,
            "low": entry.speedup.low,
            "high": entry.speedup.high,
            "level": result.level,
            "chosen_speedup": entry.chosen_speedup,
            "captured": entry.captured.value,
            "captured_low": entry.captured.low,
            "captured_high": entry.captured.high,
            "tokens_per_pass": entry.tokens_per_pass,
            "waste": entry.waste,
            "oracle": entry.oracle,
        }
        for entry in result.entries
    ]
    pair = ("target", "draft", "target_precision", "draft_precision", "device")
    return pd.DataFrame(rows).assign(
        prompts=len(result.plain_seconds),
        max_draft=result.max_draft,
        pass_mode=result.pass_mode,
        **{name: getattr(result.pair, name) for name in pair},
    )


def chosen_values(entry: Entry) -> str:
    """The knob's values of both halves in words, one where they agree."""
    return " / ".join(dict.fromkeys(f"{value:g}" for value in entry.chosen))
