"""`python -m specviz`."""

from specviz.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
