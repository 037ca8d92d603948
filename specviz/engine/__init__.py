"""Running a pair: decoding loops, acceptance rules, hooks, clocks, caches."""
