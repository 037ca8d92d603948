"""What the README says of files and commands is what they are."""

import subprocess
import sys
from pathlib import Path

from specviz.trace import ROUND_COLUMNS, STEP_COLUMNS, columns_as_markdown
from specviz.trace.csv_files import TEXT_COLUMNS

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_every_column_is_documented_as_it_is():
    for columns in (ROUND_COLUMNS, STEP_COLUMNS, TEXT_COLUMNS):
        assert columns_as_markdown(columns) in README


def test_the_commands_it_names_exist():
    for command in ("run", "record", "sweep", "compare", "tune", "arena", "calibration", "distill", "bench"):
        assert f"python -m specviz {command}" in README
        done = subprocess.run([sys.executable, "-m", "specviz", command, "--help"], cwd=ROOT, capture_output=True)
        assert done.returncode == 0


def test_rooms_without_torch_and_streamlit_stay_so():
    code = (
        "import sys; import specviz.trace, specviz.replay, specviz.analysis, specviz.plots; "
        "sys.exit(bool({'torch', 'streamlit', 'transformers'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0
