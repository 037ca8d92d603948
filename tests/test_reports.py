"""Reports as one HTML file: small, dated, and with charts that a browser draws from disk without a network."""

import gzip
import re
from datetime import UTC, datetime, timedelta

import plotly.graph_objects as go
import pytest
from plotly.offline import get_plotlyjs_version
from sample_recordings import sample_cost, sample_recording, sample_words

from specviz import cli
from specviz.analysis.tuning_report import made_at
from specviz.plots.offline import LIBRARY, charts_html
from specviz.ui.gallery import gallery_folder
from specviz.ui.report import html_report
from specviz.ui.shown import Shown

MOST_BYTES = 1_000_000
MARKS = ".main-svg .trace path, .main-svg .heatmaplayer image"  # what is drawn of data
TOKENS = {token: word.encode() for token, word in enumerate(sample_words())}
DATE = r"Made on (\d{4}-\d\d-\d\d at \d\d:\d\d) UTC\."


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """The report of the longest trace that the app records and that of a tuning, with the number of charts in each."""
    folder = tmp_path_factory.mktemp("reports")
    trace, tuning = folder / "trace.html", folder / "tuning.html"
    long = Shown("s", "A long text", sample_recording(1024), sample_cost(), TOKENS)
    trace.write_text(html_report(long, 0.2, 8), "utf-8")
    sets = sorted(map(str, gallery_folder().glob("*.parquet")))
    assert cli.main(["tune", *sets, "--html", str(tuning)]) == 0
    return {trace: 4, tuning: 2}


def test_a_report_is_small_dated_and_refers_to_nothing_outside(reports):
    for file in reports:
        page = file.read_text("utf-8")
        assert file.stat().st_size <= MOST_BYTES, f"{file.name}: {file.stat().st_size}"
        (made,) = re.findall(DATE, page)
        age = datetime.now(UTC) - datetime.strptime(made, "%Y-%m-%d at %H:%M").replace(tzinfo=UTC)
        assert timedelta(0) <= age < timedelta(hours=1)
        assert not re.search(r"<(script|link|img|iframe)[^>]*(src|href)=|url\(|@import", page)
        assert "<noscript>" in page


def test_the_date_is_in_universal_time(monkeypatch):
    monkeypatch.setenv("TZ", "Pacific/Auckland")
    assert abs(datetime.now(UTC) - datetime.strptime(made_at()[8:-5], "%Y-%m-%d at %H:%M").replace(tzinfo=UTC)) < (
        timedelta(minutes=2)
    )


def test_what_draws_the_charts_is_of_the_version_that_plotly_writes_for():
    head = gzip.decompress(LIBRARY.read_bytes())[:200].decode("utf-8")
    major = get_plotlyjs_version().partition(".")[0]  # figures of a later minor version draw as well
    assert f" v{major}." in head and "MIT license" in head
    assert "MIT License" in LIBRARY.with_name("plotly-cartesian.LICENSE").read_text("utf-8")


def test_texts_in_figures_stay_texts():
    page = charts_html([go.Figure(layout={"title": '"></div><script>alert(1)</script>'})])
    assert page.count("<script") == 2 and "alert(1)<" not in page and '"&quot;&gt;' in page


@pytest.mark.browser
def test_a_browser_draws_every_chart_of_a_report_from_disk(browser, reports):
    for file, charts in reports.items():
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        requests, errors = [], []
        page.on("request", lambda request, kept=requests: kept.append(request.url))
        page.on("pageerror", lambda error, kept=errors: kept.append(str(error)))
        page.goto(file.as_uri())
        drawn = page.locator(".chart").filter(has=page.locator(MARKS))
        drawn.nth(charts - 1).wait_for()
        assert errors == [] and all(url == file.as_uri() or url[:5] in ("data:", "blob:") for url in requests)
        assert drawn.count() == charts == page.locator(".chart").count()
        for place in range(charts):
            chart = drawn.nth(place)
            chart.scroll_into_view_if_needed()
            assert chart.locator(".gtitle").first.is_visible()
            box, inner = chart.bounding_box(), chart.locator(".main-svg").first.bounding_box()
            assert box["height"] >= 300 and abs(box["height"] - inner["height"]) < 2 and inner["width"] > 600
        page.set_viewport_size({"width": 390, "height": 844})
        page.wait_for_function("document.documentElement.scrollWidth <= 390")  # the charts follow
        for wide in page.locator(".wide").all():  # what is cut there says so
            assert wide.evaluate("box => box.scrollWidth > box.clientWidth")
            assert page.get_by_text("Scroll the table sideways").is_visible()
        page.close()
