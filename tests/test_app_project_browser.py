"""Recording a set, finding it again, renaming and deleting it, in a real Chromium with a tiny pair."""

import re

import pytest
from conftest import PATIENCE

from specviz.trace import kept
from specviz.ui.screenshots import running_app, settle

pytestmark = pytest.mark.browser


@pytest.fixture
def own_server(gallery, tmp_path, project):
    """The app with a project folder and a cache of its own."""
    with running_app(SPECVIZ_GALLERY=str(gallery), SPECVIZ_CACHE=str(tmp_path / "cache"), OMP_NUM_THREADS="1") as at:
        yield at


@pytest.mark.slow
def test_record_a_set_reload_choose_it_on_tuning_rename_and_delete_it(page, own_server, tmp_path):
    from tiny_models import save_pair

    expect = pytest.importorskip("playwright.sync_api").expect
    target, draft = save_pair(tmp_path, chat=True)
    page.goto(own_server)  # the navigation is set up by the first page
    page.wait_for_selector(".panel[data-tau]")
    page.goto(f"{own_server}/data")
    page.get_by_text("Nothing is kept yet").wait_for()
    page.get_by_text("Choose prompts and a pair").click()
    page.locator(".st-key-sweep-pair input").first.click()
    page.get_by_role("option", name="Another pair").click()
    page.get_by_label("Target", exact=True).fill(str(target))
    page.keyboard.press("Tab")
    page.get_by_label("Draft", exact=True).fill(str(draft))
    page.keyboard.press("Tab")
    page.get_by_label("Most tokens").fill("24")
    page.keyboard.press("Tab")
    page.get_by_label("Most prompts").fill("3")
    page.keyboard.press("Tab")
    page.locator("input[type=file]").nth(1).set_input_files(
        {"name": "p.txt", "mimeType": "text/plain", "buffer": b"the cat\na dog\n<b>the mat</b>\n"}
    )
    settle(page)
    page.get_by_role("button", name="Record this set").click()
    page.get_by_role("button", name="Stop").wait_for()
    page.reload()
    page.get_by_text("Recorded 3 prompts. Open the set in:").wait_for()
    assert page.get_by_label("Target", exact=True).input_value() == str(target)
    (entry,) = kept.kept_sets().values()
    assert entry.sources["target"] == str(target)
    page.get_by_role("link", name="Tuning").last.click()
    page.wait_for_url(re.compile(f"/tuning.*set={entry.name}"))
    page.get_by_text("Recommendation").wait_for()
    chosen = page.locator(".st-key-tuning-set input")
    expect(chosen).to_have_value("Your set: 3 prompts: the cat", timeout=PATIENCE)
    page.goto(f"{own_server}/data")
    row = page.locator("[class*=st-key-kept-row-0]")
    row.get_by_role("button", name="Rename").click()
    page.get_by_role("dialog").get_by_label("Title").fill("Cats <b>& dogs</b>")
    page.keyboard.press("Tab")
    page.get_by_role("dialog").get_by_role("button", name="Save").click()
    expect(row).to_contain_text("Cats <b>& dogs</b>", timeout=PATIENCE)
    with page.expect_download() as download:
        row.get_by_role("button", name="Download").click()
    assert download.value.suggested_filename == "Cats-b-dogs-b.parquet"
    with open(download.value.path(), "rb") as file:
        assert file.read() == entry.path.read_bytes()
    page.goto(f"{own_server}/tuning?set={entry.name}")
    expect(chosen).to_have_value("Your set: Cats <b>& dogs</b>", timeout=PATIENCE)
    page.goto(f"{own_server}/data?set={entry.name}")
    row.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_text("Cats <b>& dogs</b>").wait_for()
    page.keyboard.press("Escape")
    assert list(kept.kept_sets()) == [entry.name]
    row.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    page.get_by_text("Nothing is kept yet").wait_for()
    assert kept.kept_sets() == {}
    assert "no longer in the project folder" not in page.locator("body").inner_text()
