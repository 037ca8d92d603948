"""The app in a real Chromium. Run alone with `pytest -m browser`, left out with `-m "not browser"`."""

import re
import time
import zipfile
from dataclasses import replace

import numpy as np
import pytest
from conftest import FIDELITY, PATIENCE, PRECISIONS
from sample_recordings import PAIR, sample_recording, sample_words

from specviz.analysis.fidelity_files import read_fidelity
from specviz.analysis.precision_files import read_comparison
from specviz.replay import ConfidenceThreshold, replay
from specviz.trace import RecordingSet, read_trace_csv, write_recordings
from specviz.ui.fidelity import BECAME
from specviz.ui.precision_panel import pack_lines
from specviz.ui.screenshots import running_app, settle
from specviz.ui.token_texts import display_text

pytestmark = pytest.mark.browser

# What the panel shows. In its rounds reading: every token's status in order, the rounds they belong to, and how far
# below the last pixel in view the rows go that are drawn. In its text reading: the status of every output token.
READ_PANEL = """(root) => ({
  tau: Number(root.dataset.tau), gamma: Number(root.dataset.gamma),
  starts: [...root.querySelectorAll('.strip.rounds .round')].map((row) => Number(row.dataset.start)),
  statuses: [...root.querySelectorAll('.strip.rounds [data-status]')].map((token) => token.dataset.status),
  text: [...root.querySelectorAll('.strip.text .tk')].map((token) => token.dataset.status),
  shade: root.querySelector('.strip.rounds .rest').getBoundingClientRect().top
    - root.querySelector('.strip.rounds').getBoundingClientRect().bottom,
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


def open_panel(page, address):
    page.goto(address)
    page.wait_for_selector(".panel[data-tau]")
    return page.locator(".slider").bounding_box()


def replayed(tau, gamma, tokens=128):
    return replay(sample_recording(tokens, 0, 0.85), ConfidenceThreshold(tau), gamma)


def expected(tau, gamma):
    trace = replayed(tau, gamma)
    return trace.rounds["start"].tolist(), trace.steps["status"].tolist()


def committed_statuses(trace):
    return trace.steps["status"][np.isin(trace.steps["status"], ("accepted", "correction", "bonus", "plain"))].tolist()


@pytest.mark.parametrize("gamma", [3, 8])
@pytest.mark.parametrize("reading", ["text", "rounds"])
def test_during_a_drag_the_statuses_on_screen_are_those_of_the_replay(page, server, gamma, reading):
    box = open_panel(page, f"{server}/?item=ocean&tau=0.3&gamma={gamma}")
    page.click(f"button[data-reading={reading}]")
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + 0.3 * box["width"], middle)
    page.mouse.down()
    seen = set()
    for stop in (0.12, 0.41, 0.635, 0.88, 0.99):
        page.mouse.move(box["x"] + stop * box["width"], middle, steps=8)
        screen = wait_until(page, lambda shown: abs(shown["tau"] - stop) < 0.01)  # noqa: B023
        assert screen["gamma"] == gamma
        starts, statuses = expected(screen["tau"], gamma)
        if reading == "text":
            assert screen["text"] == committed_statuses(replayed(screen["tau"], gamma))
        else:
            drawn = len(screen["starts"])
            assert drawn == len(starts) or screen["shade"] > 0  # what is not drawn is out of view
            assert screen["starts"] == starts[:drawn]
            assert screen["statuses"] == statuses[: len(screen["statuses"])]
            assert len(screen["statuses"]) == (replayed(screen["tau"], gamma).steps["round"] < drawn).sum()
        seen.add(tuple(statuses))
    assert len(seen) == 5
    page.mouse.up()
    # Let go: the address and the charts follow.
    page.wait_for_url(re.compile(rf"tau={screen['tau']:.9g}"))
    page.get_by_text(f"at τ = {screen['tau']:.3f}, γ = {gamma} and drop").wait_for()


def test_scrolling_draws_the_other_rounds(page, server):
    open_panel(page, f"{server}/?item=ocean&tau=0.5&gamma=5")
    page.click("button[data-reading=rounds]")
    strip = page.locator(".strip.rounds")
    starts, statuses = expected(0.5, 5)
    assert len(read_panel(page)["starts"]) < len(starts)
    for _ in range(60):
        strip.evaluate("(node) => { node.scrollTop = node.scrollHeight; }")
        page.wait_for_timeout(50)
        if len(read_panel(page)["starts"]) == len(starts):
            break
    screen = read_panel(page)
    assert (screen["starts"], screen["statuses"]) == (starts, statuses)


def test_ghosts_are_the_drafted_tokens_that_did_not_make_it(page, server):
    open_panel(page, f"{server}/?item=ocean&tau=0.5&gamma=5")
    page.check(".ghost-switch input")
    page.locator(".strip.text .ghost").first.wait_for()
    strip, trace = page.locator(".strip.text"), replayed(0.5, 5)
    strip.evaluate("(node) => { node.style.maxHeight = 'none'; }")  # all of it in view
    wanted = [status for status in trace.steps["status"] if status in ("rejected", "discarded", "withheld")]
    page.wait_for_function(
        "([strip, number]) => strip.querySelectorAll('.ghost').length === number",
        arg=[strip.element_handle(), len(wanted)],
    )
    assert strip.locator(".ghost").evaluate_all("(all) => all.map((node) => node.dataset.status)") == wanted


def test_a_lesson_that_asks_what_is_struck_out_shows_it(page, server):
    page.goto(server)  # the navigation is set up by the first page
    page.wait_for_selector(".panel[data-tau]")
    page.goto(f"{server}/learn")
    lesson = page.locator(".panel:has(.strip:visible):has(.slider:visible)").first
    lesson.locator(".strip.text .ghost.rejected").first.wait_for()
    assert lesson.locator(".ghost-switch input").is_checked()
    lesson.locator(".slider").focus()
    page.keyboard.press("End")  # nothing is proposed, so nothing can be rejected
    lesson.locator(".strip.text .ghost.rejected").first.wait_for(state="hidden")
    assert lesson.locator(".strip.text .ghost.withheld").count() > 0


def test_play_drafts_verifies_judges_and_commits_round_by_round(page, server):
    open_panel(page, f"{server}/?item=ocean&tau=0.4&gamma=5")
    rounds = replayed(0.4, 5).rounds
    page.locator(".stage-title").evaluate(
        """(title) => {
          window.said = [];
          const look = () => { if (window.said.at(-1) !== title.textContent) window.said.push(title.textContent); };
          new MutationObserver(look).observe(title, { childList: true, characterData: true, subtree: true });
        }"""
    )
    page.locator(".pace select").select_option("10")
    page.get_by_role("button", name="play").click()
    page.wait_for_function("() => window.said.some((words) => words.startsWith('Round 4 of'))")
    page.get_by_role("button", name="pause").click()
    said = page.evaluate("() => window.said")
    number = len(rounds["round"])
    for row in range(3):
        proposed, accepted, emitted = (int(rounds[name][row]) for name in ("proposed", "accepted", "emitted"))
        tokens = "1 token" if proposed == 1 else f"{proposed} tokens"
        head = f"Round {row + 1} of {number}: "
        assert said[4 * row : 4 * row + 4] == [
            f"{head}the draft proposes",
            f"{head}one pass of the target checks {tokens}",
            f"{head}{accepted} of {proposed} accepted" if proposed else f"{head}nothing was proposed",
            f"{head}{emitted} committed",
        ]
    # Paused: nothing moves, and what is not committed yet is not shown.
    title = page.locator(".stage-title").inner_text()
    page.wait_for_timeout(700)
    assert page.locator(".stage-title").inner_text() == title
    later = page.locator(".strip.text .tk.later").count()
    at = int(re.match(r"Round (\d+)", title).group(1)) - 1
    assert 128 - later in (rounds["start"][at], rounds["start"][at] + rounds["emitted"][at])
    # It goes on where it stood; the whole text comes back on demand.
    page.get_by_role("button", name="play").click()
    page.wait_for_function(f"() => window.said.at(-1).startsWith('Round {at + 2} of')")
    page.get_by_role("button", name="whole text").click()
    page.locator(".stage").wait_for(state="hidden")
    assert page.locator(".strip.text .tk.later").count() == 0


def test_an_uploaded_set_can_be_explored_and_a_foreign_file_is_refused(page, server, tmp_path):
    words = sample_words()
    pair = replace(PAIR, target="somebody's target")  # its tokens' texts are in the file alone
    recording = replace(sample_recording(64, 5, prompt="mine <b>&</b> =1+1"), pair=pair)
    tokens = {token: f"{word.strip()}@".encode() for token, word in enumerate(words)}
    good, foreign = tmp_path / "mine.parquet", tmp_path / "foreign.parquet"
    write_recordings(RecordingSet([recording], tokens=tokens), good)
    content = bytearray(good.read_bytes())
    content[len(content) // 2] ^= 1
    foreign.write_bytes(content)
    page.goto(f"{server}/data")
    chooser = page.locator("input[type=file]").first
    chooser.set_input_files(foreign)
    page.get_by_text("This file cannot be used.").wait_for()
    page.get_by_text("damaged or no recording set; record it again or choose another file.").wait_for()
    chooser.set_input_files(good)
    page.get_by_text("Loaded and kept.").wait_for()
    page.get_by_role("link", name="Explore").last.click()  # the one that opens this set
    page.locator(".prompt-text", has_text="mine <b>&</b> =1+1").wait_for()
    shown = page.locator(".strip.text .tk:visible")  # the page before may still be there, hidden
    expect = pytest.importorskip("playwright.sync_api").expect
    expect(shown).to_have_count(64, timeout=PATIENCE)
    assert [text.strip() for text in shown.all_inner_texts()] == [
        display_text(tokens[token]).strip() for token in recording.output_ids.tolist()
    ]


@pytest.mark.parametrize(("format", "begin"), [("SVG", b"<svg"), ("PNG", b"\x89PNG\r\n\x1a\n")])
def test_the_camera_saves_a_figure(page, server, format, begin):
    page.goto(f"{server}/data")
    page.get_by_role("radio", name=format).click()
    settle(page)  # the choice has reached the server
    page.get_by_role("link", name="Explore").click()
    figure = page.locator("[data-testid=stPlotlyChart]").first
    figure.locator(".main-svg").first.wait_for()
    figure.hover()
    with page.expect_download() as download:
        figure.locator(".modebar-btn[data-title*=ownload]").click()
    with open(download.value.path(), "rb") as file:
        assert file.read(8).startswith(begin)
    assert download.value.suggested_filename == f"specviz.{format.lower()}"


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
    for _ in range(3):
        page.keyboard.press("Tab")
    outline = page.evaluate("[document.activeElement.innerText, getComputedStyle(document.activeElement).outlineStyle]")
    assert outline == ["Thresholds", "solid"]
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
    assert page.get_by_label("Your prompt").input_value() == prompt
    page.locator(".speed-figure", has_text=re.compile(r"\d\.\d\d")).wait_for()
    assert page.locator(".strip.text .tk").count() == 40
    page.get_by_test_id("stTopNav").get_by_role("link", name="Data").click()
    page.wait_for_url(re.compile(r"/data\?.*run="))
    with page.expect_download() as download:
        page.get_by_text("This trace as CSV").click()
    with zipfile.ZipFile(download.value.path()) as archive:
        archive.extractall(tmp_path / "trace")
    trace, tokens = read_trace_csv(tmp_path / "trace")
    assert trace.run.prompt == prompt
    assert len(trace.run.output_ids) == 40
    assert set(trace.run.output_ids) <= set(tokens)
    page.get_by_role("link", name="Explore").click()
    page.locator(".prompt-text:visible", has_text=prompt).wait_for()
    assert "item=" not in page.url  # so that the other pages begin with the run too


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


def test_a_link_to_a_page_may_be_the_first_thing_a_server_is_asked_for(gallery, page):
    with running_app(SPECVIZ_GALLERY=str(gallery), OMP_NUM_THREADS="1") as address:
        page.goto(f"{address}/race")
        page.locator("[data-testid=stMainBlockContainer] h1").first.wait_for()
        page.get_by_role("link", name="Thresholds").first.wait_for()
        assert page.locator("[data-testid=stSidebarNav]").count() == 0
        assert page.locator("[data-testid=stMainBlockContainer] h1").first.inner_text() == "The same text, twice"


def test_a_token_clicked_on_the_fidelity_page_is_the_one_in_the_picture(page, server):
    page.goto(f"{server}/fidelity")
    tokens = page.locator(".marked button")
    for place in (5, 9):
        tokens.nth(place).click()
        page.locator('.marked button[aria-pressed="true"]').and_(tokens.nth(place)).wait_for()
        token = read_fidelity(FIDELITY).trace[place]
        page.get_by_text(f"{BECAME[token.status]} (output token {token.position + 1})").wait_for()
