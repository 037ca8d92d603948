"""axe-core finds nothing serious on any page, wide and narrow, light and dark."""

import pytest
from conftest import PATIENCE

from specviz.ui.screenshots import PAGES, SCHEMES, WIDTHS, settle

pytestmark = pytest.mark.browser
GRAVE = ("serious", "critical")


@pytest.fixture(scope="module")
def axe():
    module = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="needs `pip install axe-playwright-python`"
    )
    return module.Axe()


def grave_violations(axe, page):
    """One line for each place that breaks a rule gravely."""
    found = axe.run(page).response["violations"]
    return [
        f"{rule['id']} ({rule['impact']}): {node['target']} {node['html'][:200]} {node['failureSummary'][:300]}"
        for rule in found
        for node in rule["nodes"]
        if rule["impact"] in GRAVE
    ]


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", PAGES)
def test_no_grave_violation(axe, browser, server, name, scheme):
    page = browser.new_page(color_scheme=scheme, viewport={"width": WIDTHS[0], "height": 1000})
    page.set_default_timeout(PATIENCE)
    page.goto(f"{server}/{PAGES[name]}")
    found = {}
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 1000})
        settle(page)
        found[width] = grave_violations(axe, page)
        sideways = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        assert page.evaluate(sideways) <= 0, f"{name} scrolls sideways at {width} pixels"
    page.close()
    assert not any(found.values()), "\n".join(line for lines in found.values() for line in lines)


def test_a_grave_violation_is_noticed(axe, browser):
    page = browser.new_page()
    page.set_content('<html lang="en"><title>x</title><main><h1>x</h1><img src="x"><button></button></main></html>')
    assert {line.split()[0] for line in grave_violations(axe, page)} == {"image-alt", "button-name"}
    page.close()
