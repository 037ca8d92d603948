"""The frame of the app is on screen before the libraries of a page are imported."""

import subprocess
import sys
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from specviz.ui.opening import import_behind_placeholder

ROOT = Path(__file__).parent.parent
HEAVY = ("pandas", "plotly", "pyarrow", "scipy", "sklearn", "torch", "transformers")


def run_apart(script: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True, timeout=120
    ).stdout


def test_what_comes_before_the_frame_imports_no_heavy_library():
    light = "import sys, streamlit; before = set(sys.modules); import specviz.ui, specviz.ui.opening\n"
    script = f"{light}print(sorted(set({HEAVY!r}) & set(sys.modules) - before))"
    assert run_apart(script).strip() == "[]"


def test_the_first_page_imports_neither_torch_nor_scikit_learn_nor_the_whole_of_scipy_stats():
    script = (
        "import sys; from pathlib import Path; from specviz.ui.opening import import_behind_placeholder as load\n"
        "load(Path('specviz/ui/visits.py'), Path('pages/explore.py'))\n"
        "print(sorted({'torch', 'transformers', 'sklearn', 'scipy.stats'} & set(sys.modules)))"
    )
    assert run_apart(script).strip() == "[]"


def test_modules_are_imported_also_by_their_name_in_a_package(tmp_path):
    source = tmp_path / "page.py"
    source.write_text("import json\nfrom xml import dom\nfrom xml.dom import minidom as mini\n")
    before = set(sys.modules)
    import_behind_placeholder(source)
    assert {"xml.dom", "xml.dom.minidom"} <= set(sys.modules), before


def test_every_page_is_preceded_by_an_emptied_placeholder():
    """It is there in every run, so that nothing after it moves."""
    app = AppTest.from_file(str(ROOT / "app.py"), default_timeout=120)
    for _ in range(2):
        app.run()
        drawn = [str(html.value) for html in app.get("html") if not str(html.value).startswith("<style>")]
        assert not app.exception and "opening" not in "".join(drawn)


@pytest.mark.browser
def test_the_frame_comes_first_on_a_server_that_has_just_started(browser):
    """In a new server's first session the placeholder is seen, under the links to all pages, and then the page."""
    from specviz.ui.screenshots import running_app

    with running_app(OMP_NUM_THREADS="1") as address:
        page = browser.new_page()
        page.add_init_script(
            "new MutationObserver(() => { if (document.querySelector('.opening')) window.opening_seen = "
            "document.querySelectorAll('[data-testid^=stTopNavLink]').length; })"
            ".observe(document, { subtree: true, childList: true })"
        )
        page.goto(address)
        page.wait_for_selector("[data-testid=stMainBlockContainer] h1")
        assert page.evaluate("window.opening_seen") > 0
        assert page.locator(".opening").count() == 0
        page.close()
