"""Pictures of every page at two widths, light and dark: `python -m specviz.ui.screenshots OUT`.

Needs `pip install playwright` and a Chromium; nothing leaves this machine.
"""

import argparse
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PAGES = {
    "explore": "",
    "thresholds": "thresholds",
    "precision": "precision",
    "arena": "arena",
    "tuning": "tuning",
    "calibration": "calibration",
    "context": "context",
    "fidelity": "fidelity",
    "race": "race",
    "learn": "learn",
    "data": "data",
}
WIDTHS = (1440, 390)
SCHEMES = ("light", "dark")
CHROMIUM_FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
PATIENCE_MS = 120_000
TALLEST = 9000  # pixels


@contextmanager
def running_app(**environment: str) -> Iterator[str]:
    """The app on a free port of this machine; yields its address and ends it afterwards."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "streamlit", "run", "app.py"]
    command += ["--server.port", str(port), "--server.fileWatcherType", "none"]
    process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, **environment}, stdout=subprocess.DEVNULL)
    address = f"http://localhost:{port}"
    try:
        for _ in range(240):
            try:
                urllib.request.urlopen(f"{address}/_stcore/health", timeout=5)
                break
            except OSError:
                time.sleep(0.5)
        yield address
    finally:
        process.terminate()
        process.wait(30)


def settle(page) -> None:
    """Wait until the page has drawn everything it is going to draw."""
    page.wait_for_selector("[data-testid=stMainBlockContainer] h1", timeout=PATIENCE_MS)
    page.wait_for_selector("[data-testid=stApp][data-test-script-state=notRunning]", timeout=PATIENCE_MS)
    page.wait_for_function(
        "() => !document.querySelector('[data-testid=stStatusWidget], [data-testid=stSkeleton], [data-stale=true]')",
        timeout=PATIENCE_MS,
    )
    page.wait_for_function("() => document.querySelector('[data-testid=stEvent] style')", timeout=PATIENCE_MS)
    page.wait_for_timeout(1500)


def take_pictures(
    folder: Path, pages: Sequence[str], widths: Sequence[int] = WIDTHS, schemes: Sequence[str] = SCHEMES
) -> list[Path]:
    """Write the pictures into `folder` and return their paths."""
    from playwright.sync_api import sync_playwright

    folder.mkdir(parents=True, exist_ok=True)
    taken = []
    with running_app() as address, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=list(CHROMIUM_FLAGS))
        for scheme in schemes:
            for width in widths:
                page = browser.new_page(viewport={"width": width, "height": 1000}, color_scheme=scheme)
                for name in pages:
                    page.goto(f"{address}/{PAGES[name]}", timeout=PATIENCE_MS)
                    settle(page)
                    height = page.evaluate(
                        "document.querySelector('[data-testid=stMainBlockContainer]').scrollHeight + 60"
                    )
                    page.set_viewport_size({"width": width, "height": min(int(height), TALLEST)})
                    settle(page)
                    taken.append(folder / f"{name}-{width}-{scheme}.png")
                    page.screenshot(path=taken[-1])
                    page.set_viewport_size({"width": width, "height": 1000})
                    print(taken[-1], flush=True)
                page.close()
        browser.close()
    return taken


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, help="folder for the pictures")
    parser.add_argument("--pages", nargs="+", choices=PAGES, default=list(PAGES))
    parser.add_argument("--widths", nargs="+", type=int, default=list(WIDTHS), help="of the window, in pixels")
    parser.add_argument("--schemes", nargs="+", choices=SCHEMES, default=list(SCHEMES))
    options = parser.parse_args()
    take_pictures(options.out, options.pages, options.widths, options.schemes)
