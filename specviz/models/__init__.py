"""What is run: the catalogue of pairs, loading at a precision, the built-in pair, distillation."""
