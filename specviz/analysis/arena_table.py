"""The arena as tables: its policies, their curves, their differences."""

import pandas as pd

from specviz.analysis.arena import Arena, Entry


def arena_table(result: Arena) -> pd.DataFrame:
    """One row per policy, the fastest first.

    Columns: policy, knob, chosen (the value that either half chose for the other), speedup, low, high (on prompts that
    did not choose; interval over prompts and pass times), level, chosen_speedup (on those that did), captured,
    captured_low, captured_high (share of the optimal oracle's gain), tokens_per_pass, waste (share of draft steps whose
    token was not accepted), beats (policies that are surely slower), oracle, prompts, max_draft, pass_mode, target,
    draft, target_precision, draft_precision, device.
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
            "beats": sum(faster == entry.label for faster, _ in result.sure),
            "oracle": entry.oracle,
        }
        for entry in result.entries
    ]
    return _described(pd.DataFrame(rows), result)


def curve_table(result: Arena) -> pd.DataFrame:
    """One row per policy and value of its knob, those without a knob left out.

    Columns: policy, knob, value, speedup (each prompt under what the other half taught), and what was run as in
    `arena_table`.
    """
    rows = [
        {"policy": entry.label, "knob": entry.knob, "value": value, "speedup": speedup}
        for entry in result.policies
        for value, speedup in zip(entry.values.tolist(), entry.curve.tolist(), strict=True)
    ]
    return _described(pd.DataFrame(rows), result)


def pair_table(result: Arena) -> pd.DataFrame:
    """One row per two policies, the surest difference first.

    Columns: faster, slower, p (two-sided, sign-flip test over prompts), sure (stands after Holm's correction at 5 %),
    and what was run as in `arena_table`.
    """
    rows = [
        {"faster": faster, "slower": slower, "p": chance, "sure": (faster, slower) in result.sure}
        for (faster, slower), chance in sorted(result.tests.items(), key=lambda item: item[1])
    ]
    return _described(pd.DataFrame(rows), result)


def _described(frame: pd.DataFrame, result: Arena) -> pd.DataFrame:
    pair = ("target", "draft", "target_precision", "draft_precision", "device")
    return frame.assign(
        prompts=len(result.plain_seconds),
        max_draft=result.max_draft,
        pass_mode=result.pass_mode,
        **{name: getattr(result.pair, name) for name in pair},
    )


def chosen_values(entry: Entry) -> str:
    """The knob's values of both halves in words, one where they agree."""
    return " / ".join(dict.fromkeys(f"{value:g}" for value in entry.chosen))
