"""A page that needs no other file and no network, and figures inside it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

_WIDTH = 0.7  # the minimum share of its width at which a figure's text is readable
# matplotlib's black, white, and colours of curves in their order; a dark page replaces them
_INK, _GROUND = "#000000", "#ffffff"
_CYCLE = (
    *("#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd"),
    *("#8c564b", "#e377c2", "#7f7f7f", "#bcbd22", "#17becf"),
)


def render(template: Path, curves: str, **values: Any) -> str:
    """Fill a template.

    Args:
        template: The template's path. A template whose name ends in .html extends base.html.
        curves: The text of the figure's SVG file. Empty: no figure.
        values: The template's variables, and ``drawn``, a description of the figure.

    Returns:
        The filled template. In a page every text is escaped.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape
    from markupsafe import Markup, escape

    environment = Environment(
        loader=FileSystemLoader([template.parent, Path(__file__).parent]),
        autoescape=select_autoescape(),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    figure = Markup(inline(curves)) if curves else None
    environment.filters["code"] = lambda text: Markup(re.sub("`(.*?)`", r"<code>\1</code>", str(escape(text))))
    environment.filters["svg"] = lambda text: Markup(inline(text))
    return environment.get_template(template.name).render(curves=figure, cycle=_CYCLE, **values)


def inline(svg: str) -> str:
    """Convert curves.svg to a part of a page: remove its head, and use the page's colours.

    Returns:
        The ``<svg>`` element, at least 0.7 and at most 1.4 times as wide as in the file.
    """
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<!--.*?-->|<metadata>.*?</metadata>|<style.*?</style>", "", svg, flags=re.DOTALL)
    for number, colour in enumerate(_CYCLE):
        svg = svg.replace(colour, f"var(--curve-{number})")
    svg = svg.replace(_INK, "currentColor").replace(_GROUND, "var(--ground)")
    width = re.search(r'width="([\d.]+)pt" height="[\d.]+pt"|$', svg)
    assert width is not None  # the second alternative matches
    if width[1]:
        # 1 pt is 4/3 px
        least, most = (round(float(width[1]) * 4 / 3 * part) for part in (_WIDTH, 1.4))
        svg = svg.replace(f"{width[0]}", f'style="min-width: {least}px; max-width: {most}px"', 1)
    return svg
