"""Full measurements with tables and verdicts: `python -m specviz bench KIND`. Called by the command line only."""
