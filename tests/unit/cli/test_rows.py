"""Values as JSON, and rows as lines."""

from __future__ import annotations

import collections
import dataclasses
import datetime as dt
import decimal
import enum
import fractions
import json
import math
import pathlib
import uuid
from typing import Any, ClassVar, NamedTuple

import pytest
from hypothesis import given, strategies as st

from mpsched.cli import rows
from mpsched.cli.rows import NotJson, encode


class Color(enum.Enum):
    RED = "red"
    PLACE = pathlib.PurePosixPath("/a")


class Number(enum.IntEnum):
    ONE = 1


@dataclasses.dataclass
class Page:
    kind: ClassVar[str] = "page"
    number: int
    words: set[Any]
    text: float = math.nan


class Pair(NamedTuple):
    left: int
    right: int


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (None, None),
        (True, True),
        (10**30, 10**30),
        (1.5, 1.5),
        (math.nan, None),
        (math.inf, None),
        ([1.0, -math.inf, {"a": math.nan}], [1.0, None, {"a": None}]),
        ("é\n\u2028", "é\n\u2028"),
        ((1, (2,)), [1, [2]]),
        (Pair(1, 2), [1, 2]),
        (collections.deque([1]), [1]),
        (range(3), [0, 1, 2]),
        ({3, 1, 2}, [1, 2, 3]),
        (frozenset({"b", 1, "a"}), [1, "a", "b"]),
        (collections.Counter("aab"), {"a": 2, "b": 1}),
        (
            {7: "a", 2.5: "b", None: "c", True: "d"},
            {"7": "a", "2.5": "b", "null": "c", "true": "d"},
        ),
        ({dt.date(2026, 1, 2): 1}, {"2026-01-02": 1}),
        ({pathlib.PurePosixPath("a/b"): 1, Color.RED: 2}, {"a/b": 1, "red": 2}),
        (dt.datetime(2026, 1, 2, 3, 4), "2026-01-02T03:04:00"),
        (dt.time(1, 2), "01:02:00"),
        (dt.timedelta(minutes=2), 120.0),
        (pathlib.PurePosixPath("a/b"), "a/b"),
        (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (decimal.Decimal("1.10"), "1.10"),
        (decimal.Decimal("NaN"), None),
        (fractions.Fraction(1, 3), "1/3"),
        (Color.RED, "red"),
        (Color.PLACE, "/a"),
        (Number.ONE, 1),
        (Page(3, {"b", "a"}), {"number": 3, "words": ["a", "b"], "text": None}),
    ],
)
def test_rows_values_that_have_a_json_form(value: object, plain: object) -> None:
    """Each kind of value, alone and inside another that sends it the slow way."""
    for wrapped, expected in (
        (value, plain),
        ([value, math.nan], [plain, None]),
        ({"a": {"b": value}}, {"a": {"b": plain}}),
    ):
        data = encode(wrapped)
        assert json.loads(data) == expected
        assert b"\n" not in data
        assert "\u2028" not in data.decode("utf-8")


def test_rows_numpy_values() -> None:
    """Scalars, arrays, NaN, dates, keys of NumPy."""
    np = pytest.importorskip("numpy")
    value = {
        "int": np.int64(3),
        "bool": np.bool_(True),
        "float": np.float32(0.5),
        "long": np.longdouble(0.25),
        "nan": np.float64("nan"),
        "array": np.arange(6).reshape(2, 3),
        "holes": np.array([1.0, np.nan]),
        "zero": np.array(7),
        "date": np.datetime64("2026-01-02"),
        "dates": np.array(["2026-01-02", "NaT"], "datetime64[D]"),
        "objects": np.array([pathlib.PurePosixPath("a"), {1}], dtype=object),
        "text": np.str_("x"),
        np.int64(5): 1,
    }
    assert json.loads(encode(value)) == {
        "int": 3,
        "bool": True,
        "float": 0.5,
        "long": 0.25,
        "nan": None,
        "array": [[0, 1, 2], [3, 4, 5]],
        "holes": [1.0, None],
        "zero": 7,
        "date": "2026-01-02",
        "dates": ["2026-01-02", "NaT"],
        "objects": ["a", [1]],
        "text": "x",
        "5": 1,
    }


class Raising:
    def __fspath__(self) -> str:
        raise RuntimeError("no path today")


def endless() -> list[Any]:
    value: list[Any] = [1]
    value.append({"again": value})
    return value


def huge() -> int:
    return int("9" * 4000) ** 2


def deep() -> list[Any]:
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (b"abc", "result: bytes"),
        ({"pages": [1, {"cover": b"x"}]}, "result.pages[1].cover: bytes"),
        ({"a b": object()}, "result['a b']: object"),
        (Page(1, {b"x"}), "result.words[0]: bytes"),
        (1j, "result: complex"),
        ({(1, 2): 3}, "a key of type tuple, (1, 2)"),
        ({"a": {b"k": 3}}, "result.a: a key of type bytes"),
        ((n for n in range(3)), "return list(...)"),
        (lambda: 0, "result: function"),
        (Page, "result: type"),
        (endless, "result[1].again: the value contains itself"),
        (deep, "nested too deeply"),
        (Raising(), "no path today"),
        (huge, "result"),
    ],
)
def test_rows_values_without_json_form_name_their_place(value: Any, said: str) -> None:
    """What JSON cannot hold is refused with its place and type."""
    if any(value is maker for maker in (endless, deep, huge)):  # too large for a test's name
        value = value()
    with pytest.raises(NotJson) as caught:
        encode(value)
    assert said in str(caught.value)


plain_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(plain_values)
def test_rows_plain_values_come_back_the_same(value: object) -> None:
    """What JSON knows survives, in one line of UTF-8."""
    data = encode(value)
    assert json.loads(data) == value
    assert len(data.decode("utf-8").splitlines()) <= 1


@given(st.text(st.characters()), st.binary())
def test_rows_any_text_and_any_bytes_of_a_name(text: str, raw: bytes) -> None:
    """Lone surrogates, which stand for bytes that are no UTF-8, survive as escapes."""
    name = raw.decode("utf-8", "surrogateescape")
    line = rows.row(3, text + name, True, b"null", 0.5, 1)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert json.loads(line)["input"] == text + name
    line.decode("utf-8")


def test_rows_keys_are_in_their_order() -> None:
    """A row's keys are those of the specification, in its order."""
    line = rows.row(0, ["a", "b"], False, rows.error_fragment("E", "m", "t", "error"), None, 2, "p")
    assert list(json.loads(line)) == [
        "i",
        "input",
        "ok",
        "error",
        "seconds",
        "attempts",
        "printed",
    ]
    assert json.loads(line)["error"] == {
        "type": "E",
        "message": "m",
        "traceback": "t",
        "why": "error",
    }
    assert json.loads(line)["seconds"] is None


def test_rows_long_messages_are_cut() -> None:
    """An error's message does not make a row of megabytes."""
    assert len(rows.error_fragment("E", "x" * 10**6, "", "error")) < 10_000
