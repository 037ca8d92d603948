"""Figures in one HTML file that works without a network.

`plotly-cartesian.min.js.gz` is the part of plotly.js that draws axes, lines, bars and heat maps, packed: the npm
package `plotly.js-cartesian-dist-min` of the version that plotly for Python brings with it (licence: MIT, beside it).
The whole library takes 4.8 MB in a page, this part 0.7 MB; the browser unpacks it, and the
figures too.
"""

import gzip
from base64 import b64encode
from collections.abc import Iterable
from html import escape
from pathlib import Path

import plotly.graph_objects as go

LIBRARY = Path(__file__).parent / "plotly-cartesian.min.js.gz"
HEIGHT = 400  # pixels, of a figure that states none
START = """
const unpacked = (packed) => {
  const bytes = Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
};
const charts = [...document.querySelectorAll(".chart")];
(async () => {
  const library = document.createElement("script");
  library.textContent = await unpacked(document.getElementById("plotly-library").textContent);
  document.head.append(library);
  for (const place of charts) {
    const { data, layout } = JSON.parse(await unpacked(place.dataset.figure));
    await Plotly.newPlot(place, data, layout, { displaylogo: false, responsive: true });
  }
})().catch(() => charts.forEach((place) => place.append("This browser cannot draw this chart.")));
"""


def charts_html(figures: Iterable[go.Figure]) -> str:
    """Figures as HTML to put into a page once, with what draws them; nothing is fetched. Texts in them stay texts."""
    places = "".join(_place(figure) for figure in figures)
    return (
        f"{places}<noscript><p>The charts need JavaScript, which is switched off here.</p></noscript>"
        f'<script type="text/plain" id="plotly-library">{b64encode(LIBRARY.read_bytes()).decode("ascii")}</script>'
        f"<script>{START}</script>"
    )


def _place(figure: go.Figure) -> str:
    title, height = escape(figure.layout.title.text or ""), figure.layout.height or HEIGHT
    packed = b64encode(gzip.compress(figure.to_json().encode("utf-8"), mtime=0)).decode("ascii")
    return (
        f'<div class="chart" role="group" aria-label="{title}" style="height: {height}px; margin-top: 24px" '
        f'data-figure="{packed}"></div>'
    )
