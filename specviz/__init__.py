"""SpecViz: see and move the trade-offs of speculative decoding with confidence thresholding."""

__version__ = "0.1.0"
