"""How fast the live panel answers, in a real Chromium: `python -m specviz.ui.frame_times`.

Drags the threshold of a recording of 512 tokens across its whole range and back, in each reading of the output, and
times frames; then how long the first panel, a change of draft length and the charts below the panel take. The same drag
over the gallery's comparison of four combinations of precisions. Exit status 1 if a bar is missed. Needs
`pip install playwright` and a Chromium; nothing leaves this machine.
"""

import argparse
import itertools
import math
import os
import platform
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from specviz.analysis import CostModel
from specviz.replay.policies import ON_FAIL
from specviz.trace import Recording, RecordingSet
from specviz.trace.recording import BRANCH_COLUMNS, POSITION_COLUMNS, TOP_COLUMNS
from specviz.ui.gallery import ItemInfo, list_items, load_item, write_item
from specviz.ui.panel_data import pack_rounds
from specviz.ui.screenshots import CHROMIUM_FLAGS, PATIENCE_MS, running_app, settle

TOKENS = 512
ITEM = "joined"
READINGS = ("text", "text with ghosts", "rounds")
GAMMAS = (5, 16)
MOVES = 150  # pointer moves in one sweep across the slider
MOVE_SECONDS = 0.012
THERE = [place / MOVES for place in range(MOVES + 1)]  # shares of the slider
REPEATS = 5
PRECISIONS = ".precisions"  # the panel with several combinations of precisions

# The bars, in milliseconds.
FRAME_95, FRAME_LONGEST = 33.5, 100  # two frames of a 60 Hz screen are 33.3, and moments have a grain of 0.1
FIRST_FRAME, FIRST_PANEL, CHARTS, GAMMA_CHANGE = 2500, 3000, 700, 150

RECORD_FRAMES = """() => {
  window.frames_seen = [];
  const look = (now) => { window.frames_seen.push(now); if (!window.frames_stop) requestAnimationFrame(look); };
  window.frames_stop = false;
  requestAnimationFrame(look);
}"""
STOP_FRAMES = "() => { window.frames_stop = true; return window.frames_seen; }"
# Resolves with the moment of the next painted frame.
PAINTED = "() => new Promise((done) => requestAnimationFrame(() => setTimeout(() => done(performance.now()), 0)))"
# From now on, keeps the moment of the pointer's release and of the latest change inside any chart.
WATCH_CHARTS = """() => {
  window.released = window.drawn = null;
  addEventListener('pointerup', () => { window.released = performance.now(); }, { capture: true, once: true });
  const chart = '[data-testid=stPlotlyChart]';
  window.watcher?.disconnect();
  window.watcher = new MutationObserver((changes) => {
    if (changes.some(({ target }) => target.closest?.(chart) || target.querySelector?.(chart))) {
      window.drawn = performance.now();
    }
  });
  window.watcher.observe(document.querySelector('[data-testid=stMainBlockContainer]'), {
    subtree: true, childList: true, attributes: true,
  });
}"""
CHARTS_QUIET = """([heading, quiet]) => window.drawn && performance.now() - window.drawn > quiet
  && [...document.querySelectorAll('h3')].some((head) => head.textContent.includes(heading))"""
CHARTS_MS = "() => window.drawn - window.released"
QUIET_MS = 1000
# From now on, keeps the moments of the next click and of the frame that shows another choice on this panel.
WATCH_CHOICE = """(panel, attribute) => {
  addEventListener('click', () => { window.chosen = performance.now(); }, { capture: true, once: true });
  const watcher = new MutationObserver(() => {
    watcher.disconnect();
    requestAnimationFrame(() => setTimeout(() => { window.shown = performance.now(); }, 0));
  });
  watcher.observe(panel, { attributeFilter: [attribute] });
}"""
WATCH_RELEASE = """() => {
  addEventListener('pointerup', () => { window.released = performance.now(); }, { capture: true, once: true });
}"""
# Milliseconds from the release until the address bar holds this threshold.
LINK_MS = """(tau) => new Promise((done) => {
  const look = () => {
    if (new URLSearchParams(location.search).get('tau') === tau) done(performance.now() - window.released);
    else requestAnimationFrame(look);
  };
  look();
})"""


@dataclass(frozen=True)
class Line:
    """One line of the table: what was measured, in milliseconds, and the most that is allowed."""

    what: str
    found: float
    allowed: float

    def __str__(self) -> str:
        verdict = "ok" if self.found <= self.allowed else "TOO SLOW"
        return f"{self.what:<66} {self.found:8.1f} ms   at most {self.allowed:6.1f}   {verdict}"


def joined_recording(tokens: int = TOKENS) -> tuple[Recording, CostModel, dict[int, bytes]]:
    """The gallery's texts end to end as if they were one output: no text anyone wrote, but tokens, confidences and
    branches of real models, of the length that the bars are about."""
    items = [load_item(name) for name in list_items()]
    parts = []
    for item in items:
        recording = item.recordings.recordings[0]
        parts.append(
            (recording, max(0, len(recording.output_ids) - recording.max_draft))
        )  # later branches are cut short
    arrays = {}
    for column in (*POSITION_COLUMNS, *TOP_COLUMNS):
        arrays[column.name] = np.concatenate([getattr(one, column.name)[:kept] for one, kept in parts])[:tokens]
    arrays["output_ids"] = np.concatenate([one.output_ids[:kept] for one, kept in parts])[:tokens]
    lengths = np.concatenate([np.diff(one.branch_offsets)[:kept] for one, kept in parts])[:tokens]
    arrays["branch_offsets"] = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    for column in BRANCH_COLUMNS:
        values = np.concatenate([getattr(one, column.name)[: one.branch_offsets[kept]] for one, kept in parts])
        arrays[column.name] = values[: arrays["branch_offsets"][-1]]
    first = parts[0][0]
    recording = replace(
        first, prompt="(several texts in a row)", finish_reason="length", max_new_tokens=tokens, **arrays
    ).validate()
    bytes_of = {token: text for item in items for token, text in item.tokens.items()}
    return recording, CostModel.from_json(items[0].recordings.cost_model), bytes_of


def device() -> str:
    """Processor, cores this process may use, and operating system."""
    name = platform.processor() or platform.machine()
    if os.path.exists("/proc/cpuinfo"):
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
        name = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), name)
    return f"{name}, {len(os.sched_getaffinity(0))} cores"


def percentile_95(values: list[float]) -> float:
    return sorted(values)[math.ceil(0.95 * len(values)) - 1]


def open_panel(page, address: str, gamma: int, panel: str = ".panel") -> float:
    """Open a page and return the milliseconds until its panel is painted."""
    start = time.perf_counter()
    page.goto(f"{address}?item={ITEM}&tau=0.5&gamma={gamma}")
    page.wait_for_selector(f"{panel}[data-tau]", timeout=PATIENCE_MS)
    page.evaluate(PAINTED)
    return 1e3 * (time.perf_counter() - start)


def seconds_of_packing(recording: Recording, gamma: int, cost: CostModel, on_fail: str) -> float:
    start = time.process_time()
    pack_rounds(recording, gamma, cost, on_fail)
    return time.process_time() - start


def choose_reading(page, reading: str) -> None:
    page.click(f"button[data-reading={reading.split()[0]}]")
    if reading == READINGS[1]:
        page.check(".ghost-switch input")


def drag(page, shares: list[float]) -> list[float]:
    """Drag the handle along these shares of the slider; returns the times of frames meanwhile, in milliseconds."""
    box = page.locator(".slider").bounding_box()
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + shares[0] * box["width"], middle)
    page.mouse.down()
    page.evaluate(RECORD_FRAMES)
    for share in shares[1:]:
        page.mouse.move(box["x"] + share * box["width"], middle)
        time.sleep(MOVE_SECONDS)
    moments = page.evaluate(STOP_FRAMES)
    page.mouse.up()
    return np.diff(moments).tolist()


def let_go(page, share: float, panel: str, watch: str) -> float:
    """Move the handle to this share of the slider, start the script `watch` and let go; the threshold there."""
    box = page.locator(".slider").bounding_box()
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] / 2, middle)
    page.mouse.down()
    page.mouse.move(box["x"] + share * box["width"], middle, steps=5)
    page.evaluate(PAINTED)
    tau = float(page.locator(f"{panel}[data-tau]").get_attribute("data-tau"))
    page.evaluate(watch)
    page.mouse.up()
    return tau


def release_to_charts(page, share: float) -> float:
    """Milliseconds from letting go of the handle at this share of the slider until every chart is drawn anew."""
    tau = let_go(page, share, ".panel", WATCH_CHARTS)
    page.wait_for_function(CHARTS_QUIET, arg=[f"τ = {tau:.3f}", QUIET_MS], timeout=PATIENCE_MS)
    return page.evaluate(CHARTS_MS)


def release_to_link(page, share: float) -> float:
    """Milliseconds from letting go of the handle at this share of the slider until the page has followed: its link."""
    tau = let_go(page, share, PRECISIONS, WATCH_RELEASE)
    return page.evaluate(LINK_MS, f"{tau:.9g}")


def change(page, attribute: str, value: str) -> float:
    """Milliseconds from the click on a draft length or a fate of the token that fails to the painted panel that shows
    it.

    Args:
        attribute: of the panel: data-gamma or data-fate.
    """
    page.locator(".panel").evaluate(WATCH_CHOICE, attribute)
    page.locator(".panel").get_by_role("radio", name=value, exact=True).click()
    page.wait_for_selector(f'.panel[{attribute}="{value}"]', timeout=PATIENCE_MS)
    page.evaluate(PAINTED)
    return page.evaluate("() => window.shown - window.chosen")


def measure(say: Callable[[str], None] = print) -> bool:
    """Print every line and return whether all bars are met."""
    from playwright.sync_api import sync_playwright

    recording, cost, tokens = joined_recording()
    lines: list[Line] = []

    def report(line: Line) -> None:
        lines.append(line)
        say(str(line))

    for gamma, on_fail in itertools.product(GAMMAS, ON_FAIL):
        packing = statistics.median(seconds_of_packing(recording, gamma, cost, on_fail) for _ in range(REPEATS))
        report(Line(f"packing γ = {gamma}, {on_fail}, CPU, median of {REPEATS}", 1e3 * packing, 150))

    with tempfile.TemporaryDirectory() as folder:
        write_item(
            ITEM,
            ItemInfo("Texts in a row", "texts", True),
            RecordingSet([recording], cost.to_json()),
            lambda token: tokens[token],
            Path(folder),
        )
        with running_app(SPECVIZ_GALLERY=folder) as address, sync_playwright() as driver:
            browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=list(CHROMIUM_FLAGS))
            say(f"Chromium {browser.version}, {TOKENS} tokens, on {device()}")
            _measure_page(browser, address, report)
            browser.close()
        # The comparison is the gallery's own.
        with running_app() as address, sync_playwright() as driver:
            browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=list(CHROMIUM_FLAGS))
            _measure_first_frame(browser, address, report)
            _measure_precisions(browser, address, report)
            browser.close()
    return all(line.found <= line.allowed for line in lines)


def _measure_drag(page, what: str, report: Callable[[Line], None]) -> None:
    frames = drag(page, THERE + THERE[::-1])
    settle(page)
    words = f"drag, {what}: {len(frames)} frames"
    report(Line(f"{words}, 95th percentile", percentile_95(frames), FRAME_95))
    report(Line(f"{words}, longest", max(frames), FRAME_LONGEST))


def _measure_first_frame(browser, address: str, report: Callable[[Line], None]) -> None:
    """Of a server that nobody has asked for a page yet: the links to all pages, and a placeholder or the page."""
    page = browser.new_page(viewport={"width": 1440, "height": 1000})
    start = time.perf_counter()
    page.goto(address, wait_until="commit")
    page.wait_for_selector("[data-testid^=stTopNavLink]", timeout=PATIENCE_MS)
    page.wait_for_selector("[data-testid=stMainBlockContainer] :is(h1, .opening)", timeout=PATIENCE_MS)
    page.evaluate(PAINTED)
    report(Line("page opened to frame, new server", 1e3 * (time.perf_counter() - start), FIRST_FRAME))
    page.close()


def _measure_precisions(browser, address: str, report: Callable[[Line], None]) -> None:
    page = browser.new_page(viewport={"width": 1440, "height": 1000})
    open_panel(page, f"{address}/precision", GAMMAS[0], PRECISIONS)
    settle(page)
    number = page.locator(f"{PRECISIONS} tbody tr").count()
    _measure_drag(page, f"{number} combinations", report)
    followed = []
    for share in np.linspace(0.05, 0.95, REPEATS):
        followed.append(release_to_link(page, float(share)))
        settle(page)
    report(Line(f"release to page, {number} combinations, longest of {REPEATS}", max(followed), CHARTS))
    page.close()


def _measure_page(browser, address: str, report: Callable[[Line], None]) -> None:
    def new_page():
        return browser.new_page(viewport={"width": 1440, "height": 1000})

    page = new_page()
    open_panel(page, address, GAMMAS[0])  # warms the server
    settle(page)
    page.close()
    opened = []
    for _ in range(REPEATS):
        page = new_page()
        opened.append(open_panel(page, address, GAMMAS[0]))
        page.close()
    report(Line(f"page opened to first panel, longest of {REPEATS}", max(opened), FIRST_PANEL))

    for gamma in GAMMAS:
        page = new_page()
        open_panel(page, address, gamma)
        settle(page)
        for reading in READINGS:
            choose_reading(page, reading)
            page.wait_for_timeout(300)
            _measure_drag(page, f"γ = {gamma}, {reading}", report)
        choose_reading(page, READINGS[0])
        drawn = []
        for share in np.linspace(0.05, 0.95, REPEATS):
            drawn.append(release_to_charts(page, float(share)))
            settle(page)
        report(Line(f"release to all charts, γ = {gamma}, longest of {REPEATS}", max(drawn), CHARTS))
        page.close()

    page = new_page()
    open_panel(page, address, 3)
    settle(page)
    changed = []
    for gamma in (4, 6, 8, 10, 12):
        changed.append(change(page, "data-gamma", str(gamma)))
        settle(page)
    report(Line(f"draft length chosen to panel, median of {len(changed)}", statistics.median(changed), GAMMA_CHANGE))
    changed = []
    for fate in ("keep", "drop", "keep"):
        changed.append(change(page, "data-fate", fate))
        settle(page)
    report(Line(f"drop or keep chosen to panel, median of {len(changed)}", statistics.median(changed), GAMMA_CHANGE))
    _measure_drag(page, "γ = 12, keep", report)
    page.close()


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    sys.exit(not measure())
