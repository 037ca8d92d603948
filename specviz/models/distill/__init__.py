"""Making a draft for a target: prompts, texts written by the target, training, evaluation."""

from specviz.models.distill.distill import Distilled, Progress, distill

__all__ = ["Distilled", "Progress", "distill"]
