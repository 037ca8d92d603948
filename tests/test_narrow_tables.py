"""A table wider than the page says that it scrolls, and only then; words can be reached and read by keyboard there."""

import pytest

from specviz.ui.screenshots import settle

pytestmark = pytest.mark.browser
# Of each table: is it wider than its place, and is the hint below it there?
TABLES = """() => [...document.querySelectorAll('[data-testid=stDataFrame]')].map((table) => {
  const scroller = table.querySelector('.dvn-scroller');
  const below = [...document.querySelectorAll('.scroll-hint')].find(
    (hint) => table.compareDocumentPosition(hint) & Node.DOCUMENT_POSITION_FOLLOWING);
  return [scroller.scrollWidth > scroller.clientWidth + 1, below.getBoundingClientRect().height > 5];
})"""


@pytest.mark.parametrize("name", ["tuning", "context", "precision"])
def test_a_table_says_that_it_scrolls_where_it_does(page, server, name):
    page.goto(f"{server}/{name}")
    for width in (390, 1440):
        page.set_viewport_size({"width": width, "height": 900})
        settle(page)
        found = page.evaluate(TABLES)
        assert found and all(cut == hinted for cut, hinted in found), (width, found)
        assert width > 390 or any(cut for cut, _ in found)


def test_words_are_read_by_keyboard_on_a_phone(page, server):
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto(f"{server}/tuning")
    settle(page)
    terms = page.locator(".under-table .terms .term")
    terms.first.focus()
    for place in range(terms.count()):
        term = terms.nth(place)
        assert term.evaluate("node => node === document.activeElement")
        definition = term.locator(".definition")
        assert definition.is_visible()
        box = definition.bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= 390 and box["y"] >= 0
        page.keyboard.press("Tab")
        assert not definition.is_visible()
