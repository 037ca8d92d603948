"""The app in a real Chromium. Run alone with `pytest -m browser`, left out with `-m "not browser"`."""

import re
import shutil
import time
import zipfile
from pathlib import Path

import pytest
from sample_recordings import sample_recording, write_sample_gallery

from specviz.analysis.precision_files import read_comparison
from specviz.replay import ConfidenceThreshold, replay
from specviz.trace import read_trace_csv
from specviz.ui.precision_panel import pack_lines
from specviz.ui.screenshots import CHROMIUM_FLAGS, running_app

PRECISIONS = Path(__file__).parent.parent / "specviz" / "ui" / "gallery" / "precisions"
pytestmark = pytest.mark.browser
PATIENCE = 120_000  # ms; slow machines may take their time, nothing here is timed

# What the panel shows in its rounds reading: every token's status in order, and the rounds they belong to.
READ_PANEL = """(root) => ({
  tau: Number(root.dataset.tau), gamma: Number(root.dataset.gamma),
  starts: [...root.querySelectorAll('.strip.rounds .round')].map((row) => Number(row.dataset.start)),
  statuses: [...root.querySelectorAll('.strip.rounds [data-status]')].map((token) => token.dataset.status),
})"""


def read_panel(page):
    return page.locator(".panel").evaluate(READ_PANEL)


def wait_until(page, condition):
    """Poll the panel until `condition` of what it shows is true; return what it shows."""
    deadline = time.monotonic() + PATIENCE / 1000
    while not condition(shown := read_panel(page)):
        assert time.monotonic() < deadline, shown
        page.wait_for_timeout(30)
    return shown


@pytest.fixture(scope="module")
def gallery(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gallery")
    write_sample_gallery(folder, tokens=128)
    shutil.copytree(PRECISIONS, folder / "precisions")
    return folder


@pytest.fixture(scope="module")
def server(gallery):
    """The address of the app with the made-up gallery."""
    with running_app(SPECVIZ_GALLERY=str(gallery), OMP_NUM_THREADS="1") as address:
        yield address


@pytest.fixture(scope="module")
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


def open_panel(page, address):
    page.goto(address)
    page.wait_for_selector(".panel[data-tau]")
    return page.locator(".slider").bounding_box()


def expected(tau, gamma, tokens=128):
    trace = replay(sample_recording(tokens, 0, 0.85), ConfidenceThreshold(tau), gamma)
    return trace.rounds["start"].tolist(), trace.steps["status"].tolist()


@pytest.mark.parametrize("gamma", [3, 8])
def test_during_a_drag_the_statuses_on_screen_are_those_of_the_replay(page, server, gamma):
    box = open_panel(page, f"{server}/?item=ocean&tau=0.3&gamma={gamma}")
    page.click("button[data-reading=rounds]")
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + 0.3 * box["width"], middle)
    page.mouse.down()
    seen = set()
    for stop in (0.12, 0.41, 0.635, 0.88, 0.99):
        page.mouse.move(box["x"] + stop * box["width"], middle, steps=8)
        screen = wait_until(page, lambda shown: abs(shown["tau"] - stop) < 0.01)  # noqa: B023
        assert screen["gamma"] == gamma
        starts, statuses = expected(screen["tau"], gamma)
        assert screen["starts"] == starts
        assert screen["statuses"] == statuses
        seen.add(tuple(statuses))
    assert len(seen) == 5
    page.mouse.up()
    # Let go: the address and the charts follow.
    page.wait_for_url(re.compile(rf"tau={screen['tau']:.9g}"))
    page.get_by_text(f"at τ = {screen['tau']:.3f} and γ = {gamma}").wait_for()


def test_text_from_models_and_prompts_stays_text(page, server):
    open_panel(page, f"{server}/?item=ocean")
    strip = page.locator(".strip.text")
    text = strip.inner_text()
    for literal in ("<script>alert(1)</script>", '=cmd("x")', "**bold** [x](http://y)", "⟨202e⟩שלום"):
        assert literal in text
    assert page.locator(".prompt-text").inner_text() == "Facts about the ocean, please. <b>&</b> =1+1"
    assert page.locator(".panel script, .panel a, .panel b").count() == 0


def test_keyboard_alone(page, server):
    open_panel(page, f"{server}/?item=ocean&tau=0.5&gamma=5")
    slider = page.locator(".slider")
    slider.focus()
    for key, tau in [("ArrowRight", 0.51), ("ArrowLeft", 0.5), ("End", 1), ("Home", 0)]:
        page.keyboard.press(key)
        page.locator(f'.slider[aria-valuenow="{tau:.4f}"]').wait_for()
    before = read_panel(page)["tau"]
    page.keyboard.press("n")
    change = wait_until(page, lambda shown: shown["tau"] > before)["tau"]
    assert expected(change, 5) != expected(before, 5)
    assert expected(change - 1e-6, 5) == expected(before, 5)
    assert "speedup" in slider.get_attribute("aria-valuetext")
    page.get_by_role("radio", name="3", exact=True).click()
    shown = wait_until(page, lambda shown: shown["gamma"] == 3)
    assert shown["tau"] == change
    page.locator(".strip.text").focus()
    page.keyboard.press("ArrowRight")
    page.locator(".card").wait_for()
    assert "confidence of the draft" in page.locator(".card").inner_text()
    page.keyboard.press("Enter")
    page.locator(".card.is-pinned").wait_for()
    page.keyboard.press("Escape")
    page.locator(".card").wait_for(state="hidden")


def test_own_prompt_to_a_finished_trace_and_reload_finds_it(page, server, tmp_path):
    from tiny_models import save_pair

    target, draft = save_pair(tmp_path, chat=True)
    prompt = "the cat <script>alert(1)</script> =1+1 **b**"
    open_panel(page, server)
    page.get_by_text("Your own prompt").click()
    page.get_by_label("Your prompt").fill(prompt)
    page.get_by_label("Pair").click()
    page.get_by_role("option", name="Another pair").click()
    page.get_by_label("Target", exact=True).fill(str(target))
    page.keyboard.press("Tab")
    page.get_by_label("Draft", exact=True).fill(str(draft))
    page.keyboard.press("Tab")
    page.get_by_label("Most tokens").fill("40")
    page.keyboard.press("Tab")
    page.get_by_role("button", name="Run and record").click()
    page.get_by_role("button", name="Stop").wait_for()
    page.wait_for_url(re.compile("run="))
    page.reload()
    page.locator(".prompt-text", has_text=prompt).wait_for()
    page.locator(".speed-figure", has_text=re.compile(r"\d\.\d\d")).wait_for()
    assert page.locator(".strip.text .tk").count() == 40
    page.goto(page.url.replace("/?", "/data?"))
    with page.expect_download() as download:
        page.get_by_text("This trace as CSV").click()
    with zipfile.ZipFile(download.value.path()) as archive:
        archive.extractall(tmp_path / "trace")
    trace, tokens = read_trace_csv(tmp_path / "trace")
    assert trace.run.prompt == prompt
    assert len(trace.run.output_ids) == 40
    assert set(trace.run.output_ids) <= set(tokens)


def test_every_combination_of_precisions_answers_to_the_threshold(page, server):
    """While the handle moves, the numbers of all lines are those of their curves, over either baseline."""
    comparison = read_comparison(PRECISIONS)
    page.goto(server)  # the navigation is set up by the first page
    page.wait_for_selector(".panel[data-tau]")
    page.goto(f"{server}/precision?tau=0.3&gamma=3")
    panel = page.locator(".precisions[data-tau]")
    panel.wait_for()
    box = page.locator(".precisions .slider").bounding_box()
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + 0.3 * box["width"], middle)
    page.mouse.down()
    for stop in (0.12, 0.5, 0.87):
        page.mouse.move(box["x"] + stop * box["width"], middle, steps=5)
        deadline = time.monotonic() + PATIENCE / 1000
        while abs(float(panel.get_attribute("data-tau")) - stop) > 0.01:
            assert time.monotonic() < deadline
            page.wait_for_timeout(30)
        tau = float(panel.get_attribute("data-tau"))
        rows = panel.locator("tbody tr").all_inner_texts()
        for row, line in zip(rows, pack_lines(comparison, comparison.combinations, 3), strict=True):
            index = round(1000 * tau)
            label, own, full, rate, plain = row.split()[:5]
            assert label == line["label"]
            assert (own, full) == (f"{line['speedup'][index]:.2f}", f"{line['overFull'][index]:.2f}")
            assert (rate, plain) == (f"{line['rate'][index]:.1f}", f"{line['plainRate']:.1f}")
    page.mouse.up()
    page.wait_for_url(re.compile(rf"tau={tau:.9g}"))
    assert panel.locator(".speeds .plain").count() == 0, "over its own baseline there is but one line at 1"
    page.get_by_role("radio", name="plain decoding at bf16").click()
    assert panel.locator(".speeds .plain").count() == len(comparison.combinations)
    page.locator(".precisions .slider").focus()
    page.keyboard.press("Home")
    page.wait_for_selector('.precisions[data-tau="0"]')
    page.get_by_role("radio", name="6", exact=True).click()
    page.wait_for_selector('.precisions[data-gamma="6"]')
    assert panel.get_attribute("data-tau") == "0"


def test_two_sessions_do_not_see_each_other(browser, server):
    first, second = browser.new_page(), browser.new_page()
    for page, tau in ((first, 0.2), (second, 0.8)):
        page.set_default_timeout(PATIENCE)
        open_panel(page, f"{server}/?item=ocean&tau={tau}&gamma=4")
    first.locator(".slider").focus()
    first.keyboard.press("End")
    first.wait_for_url(re.compile("tau=1&"))
    assert read_panel(second)["tau"] == 0.8
    assert "tau=0.8" in second.url
    first.close()
    second.close()
