"""Full measurements, each with its table and a verdict: `python -m specviz bench KIND`. Called by the command line only."""
