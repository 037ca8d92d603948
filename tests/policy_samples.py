"""One policy of every kind, each with its knobs drawn at random or given."""

from hypothesis import strategies as st

from specviz.replay.contexts import KINDS, flags_as_text
from specviz.replay.policies import (
    AdaEDL,
    ConfidenceThreshold,
    ContextThreshold,
    CostAware,
    CumulativeConfidence,
    DraftVerify,
    DynamicThreshold,
    EntropyBound,
    FixedLength,
    Heuristic,
    Learned,
    LlamaCpp,
    MarginThreshold,
)

ON_FAIL = st.sampled_from(["drop", "keep"])
CHANCE = st.sampled_from([0.0, 0.1, 0.125, 0.25, 0.3, 0.5, 0.75, 0.875, 1.0])
FLAGS = flags_as_text(bytes([0b00001000, 0b00100000, 0b01100000, 0b00010000, 0b10000000, 0b00000100] * 60))

POLICIES = st.one_of(
    st.builds(FixedLength, st.none() | st.integers(1, 9)),
    st.builds(ConfidenceThreshold, CHANCE, ON_FAIL),
    st.builds(CumulativeConfidence, CHANCE, ON_FAIL),
    st.builds(EntropyBound, st.sampled_from([0.0, 0.5, 0.7, 1.0, 1.3]), ON_FAIL),
    st.builds(MarginThreshold, CHANCE, ON_FAIL),
    st.builds(LlamaCpp, CHANCE, st.integers(1, 9), st.integers(0, 4)),
    st.builds(Heuristic, st.integers(1, 9), st.booleans()),
    st.builds(DynamicThreshold, CHANCE),
    st.builds(DraftVerify, CHANCE, CHANCE, CHANCE, ON_FAIL),
    st.builds(AdaEDL, CHANCE, CHANCE, CHANCE, ON_FAIL, st.sampled_from([0.05, 0.3, 1.0])),
    st.builds(
        CostAware,
        st.lists(st.sampled_from([1.0, 1.25, 1.5, 2.0]), min_size=2, max_size=9),
        st.sampled_from([0.0, 0.1, 0.4]),
        st.sampled_from([0.5, 1.0, 2.0]),
        st.lists(CHANCE, min_size=4, max_size=4),
        st.lists(CHANCE, min_size=4, max_size=4),
    ),
    st.builds(Learned, st.lists(st.floats(-2, 2, width=16), min_size=5, max_size=5), st.floats(-1, 1), CHANCE, ON_FAIL),
    st.builds(
        ContextThreshold,
        st.lists(CHANCE, min_size=len(KINDS), max_size=len(KINDS)).map(
            lambda values: dict(zip(KINDS, values, strict=True))
        ),
        st.just(FLAGS),
        ON_FAIL,
    ),
)


def one_of_each() -> list:
    """Fresh policies with knobs that stop some drafts and not others."""
    return [
        FixedLength(),
        ConfidenceThreshold(0.3),
        ConfidenceThreshold(0.3, "keep"),
        CumulativeConfidence(0.1),
        EntropyBound(1.2),
        AdaEDL(0.6, 0.4, 0.1, factor=0.3),
        MarginThreshold(0.2),
        Heuristic(4),
        Heuristic(3, transient=True),
        DynamicThreshold(0.4),
        DraftVerify(0.6, 0.4, 0.1),
        DraftVerify(0.6, 0.4, 0.1, "drop"),
        LlamaCpp(0.3, 6, 2),
        CostAware([1.0, 1.1, 1.2, 1.3, 1.5], 0.15, 0.8, [0.1, 0.3, 0.5, 0.7, 0.9], [0.3, 0.4, 0.5, 0.6, 0.7]),
        Learned([2.0, -0.3, 1.0, -0.1, 0.5], -0.5, 0.5),
        ContextThreshold({kind: place / 10 for place, kind in enumerate(KINDS)}, FLAGS),
    ]
