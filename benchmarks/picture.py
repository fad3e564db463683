"""A picture of speed-ups, for people who look at tables last: bars, in SVG."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from .harness import OURS, Measure, Row

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_WIDTH = 760
_LEFT = 250  # where the bars begin
_BAR = 13  # height of one
_GAP = 16  # between two measures
_TOP = 58
_COLOURS = ("#1a7f5a", "#8a94a6", "#c0a060", "#b06a6a")
_RATIO = "T_S / T_2"


def speed_ups(measures: Sequence[Measure], rows: Sequence[Row], taken_on: str) -> Iterator[str]:
    """The lines of an SVG file: for each measure of a speed-up, a bar for each system.

    Measures that no row belongs to are left out, and so are those that are no ratio T_S / T_2.
    """
    groups = [
        (measure, found)
        for measure in measures
        if _RATIO in measure.name
        and (found := [row for row in rows if row.measure == measure.name and row.value > 0])
    ]
    systems = list(dict.fromkeys(row.system for _, found in groups for row in found))
    systems.sort(key=lambda system: system != OURS)
    colour = dict(zip(systems, _COLOURS * len(systems), strict=False))
    most = max((row.value for _, found in groups for row in found), default=2.0)
    scale = (_WIDTH - _LEFT - 50) / max(most, 2.0)
    height = _TOP + sum(_BAR * len(found) + _GAP for _, found in groups) + 10
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" '
        'font-family="sans-serif" font-size="12">'
    )
    yield f"<title>Speed-ups over plain Python, two workers. {escape(taken_on)}</title>"
    yield f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>'
    yield '<text x="10" y="20" font-size="14">Times faster than plain Python, two workers</text>'
    for number, system in enumerate(systems):
        x = _LEFT + 170 * (number % 3)
        y = 34 + 14 * (number // 3)
        yield f'<rect x="{x}" y="{y - 9}" width="10" height="10" fill="{colour[system]}"/>'
        yield f'<text x="{x + 15}" y="{y}">{escape(system)}</text>'
    for mark in (1, 2):
        at = f"{_LEFT + mark * scale:.0f}"
        yield (
            f'<line x1="{at}" y1="{_TOP - 8}" x2="{at}" y2="{height - 8}" '
            'stroke="#cccccc" stroke-dasharray="3 3"/>'
        )
    y = _TOP
    for measure, found in groups:
        name = measure.name.partition(f": {_RATIO}")[0]
        middle = y + _BAR * len(found) / 2 + 4
        yield f'<text x="{_LEFT - 8}" y="{middle:.0f}" text-anchor="end">{escape(name)}</text>'
        for row in sorted(found, key=lambda row: systems.index(row.system)):
            width = row.value * scale
            yield (
                f'<rect x="{_LEFT}" y="{y}" width="{width:.0f}" height="{_BAR - 2}" '
                f'fill="{colour[row.system]}"/>'
            )
            yield f'<text x="{_LEFT + width + 5:.0f}" y="{y + _BAR - 3}">{row.value:.2f}</text>'
            y += _BAR
        y += _GAP
    yield "</svg>"
