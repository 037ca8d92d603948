"""Lanes, and the app in a real Chromium for the tests that drive it."""

import os
import re
import shutil
from pathlib import Path

import pytest
from sample_recordings import write_sample_gallery

from specviz.trace.project import ENVIRONMENT_VARIABLE
from specviz.ui.screenshots import CHROMIUM_FLAGS, running_app

GALLERY = Path(__file__).parent.parent / "specviz" / "ui" / "gallery"
PRECISIONS, FIDELITY = GALLERY / "precisions", GALLERY / "fidelity"
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # workers share the cores; torch reads this when it is imported
PATIENCE = 120_000  # ms; slow machines may take their time, nothing here is timed


@pytest.fixture(scope="session", autouse=True)
def project_of_the_session(tmp_path_factory):
    """A project folder for what outlives a test, such as a server: no test touches the user's own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(ENVIRONMENT_VARIABLE, str(tmp_path_factory.mktemp("project")))
        yield


@pytest.fixture(autouse=True)
def project(monkeypatch, tmp_path_factory):
    """A project folder of the test's own; it does not exist yet, as with a new user."""
    folder = tmp_path_factory.mktemp("project") / "specviz"
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, str(folder))
    return folder


@pytest.fixture(scope="session")
def gallery(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gallery")
    write_sample_gallery(folder, tokens=128)
    shutil.copytree(PRECISIONS, folder / "precisions")
    shutil.copytree(FIDELITY, folder / "fidelity")
    return folder


@pytest.fixture(scope="session")
def server(gallery):
    """The address of the app with the made-up gallery."""
    with running_app(SPECVIZ_GALLERY=str(gallery), OMP_NUM_THREADS="1") as address:
        yield address


@pytest.fixture(scope="session")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="needs `pip install playwright`")
    with playwright.sync_playwright() as driver:
        try:
            chromium = driver.chromium.launch(executable_path=shutil.which("chromium"), args=list(CHROMIUM_FLAGS))
        except playwright.Error as error:
            pytest.skip(
                f"no Chromium: install one, or run `playwright install chromium` ({str(error).splitlines()[0]})"
            )
        yield chromium
        chromium.close()


@pytest.fixture
def page(browser):
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.set_default_timeout(PATIENCE)
    problems = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("dialog", lambda dialog: problems.append(f"dialog: {dialog.message}"))
    outside = []
    page.on(
        "request",
        lambda r: outside.append(r.url) if not re.match(r"(https?|wss?)://localhost|blob:|data:", r.url) else None,
    )
    yield page
    assert problems == []
    assert outside == []
    page.close()


def pytest_collection_modifyitems(items):
    """The quick lane (`-m quick`) is everything that is neither slow nor in need of a browser."""
    for item in items:
        if not any(item.get_closest_marker(name) for name in ("slow", "browser")):
            item.add_marker("quick")
