"""The picture of the speed-ups."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from benchmarks import picture
from benchmarks.harness import Measure, Row, Run


def never(_: Run) -> float:
    raise AssertionError("no sample is taken here")


def measure(name: str) -> Measure:
    return Measure("forkjoin", name, "x", ("mpsched", "<peer>"), (), never)


def row(name: str, system: str, value: float) -> Row:
    return Row("forkjoin", name, system, value, "x", value, value)


def test_picture_has_a_bar_for_each_system_of_each_speed_up() -> None:
    """Longest first is no rule: mpsched is; what is no speed-up is left out."""
    names = ["fib: T_S / T_2", "sort: T_S / T_2", "fib: cost"]
    rows = [
        row(names[0], "<peer>", 1.0),
        row(names[0], "mpsched", 2.0),
        row(names[1], "mpsched", 1.5),
        row(names[2], "mpsched", 9.0),
    ]
    lines = picture.speed_ups([measure(name) for name in names], rows, "a & b")
    root = ET.fromstring("\n".join(lines))
    space = "{http://www.w3.org/2000/svg}"
    texts = [element.text for element in root.iter(f"{space}text")]
    assert texts[1:] == ["mpsched", "<peer>", "fib", "2.00", "1.00", "sort", "1.50"]
    widths = [int(bar.get("width", "")) for bar in root.iter(f"{space}rect")][-3:]
    assert widths[0] == 2 * widths[1]
    assert abs(widths[2] - 1.5 * widths[1]) <= 1


def test_picture_of_nothing_is_a_picture() -> None:
    """A run without speed-ups is no error."""
    assert ET.fromstring("\n".join(picture.speed_ups([], [], ""))).tag.endswith("svg")
