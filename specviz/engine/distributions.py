"""What a stopping policy may know of a draft's distribution."""

from __future__ import annotations

import torch


def distribution_statistics(logits: torch.Tensor) -> torch.Tensor:
    """Row of the arg max, its probability, entropy (nats) and top-1 minus top-2 probability.

    fp32 logits (n, rows) to (n, 4) in float64, in which row numbers and fp32 values are exact. Rows of -inf have
    probability 0 and add nothing to the entropy.
    """
    log_probabilities = torch.log_softmax(logits, dim=-1)
    probabilities = log_probabilities.exp()
    best_two = probabilities.topk(2, dim=-1).values
    entropy = torch.special.entr(probabilities).sum(-1)
    return torch.stack(
        (
            logits.argmax(-1).double(),
            best_two[:, 0].double(),
            entropy.double(),
            (best_two[:, 0] - best_two[:, 1]).double(),
        ),
        dim=-1,
    )
