"""Running a pair to measure it."""
