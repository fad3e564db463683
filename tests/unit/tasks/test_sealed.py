"""Rows of values: what travels as it is, what is copied, what is pickled by itself."""

from __future__ import annotations

import copyreg
import enum
from collections import Counter, OrderedDict, defaultdict, namedtuple
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as hyp

from mpsched._tasks import codec, sealed
from mpsched._tasks.sealed import Row, Sealed
from mpsched.errors import DecodeError
from tests.support import bombs

Pair = namedtuple("Pair", "left right")  # noqa: PYI024 - the plainest kind of subclass


class Colour(enum.IntEnum):
    RED = 1


class Text(str):
    __slots__ = ()


class Items(list[Any]):
    """A list with an attribute, which a copy of the list alone would lose."""


numbers = hyp.none() | hyp.booleans() | hyp.integers() | hyp.floats(allow_nan=False)
texts = hyp.text("a\u00e9\x93\U0001f600", max_size=4)
plain = numbers | texts | hyp.binary(max_size=4) | hyp.just("__main__") | hyp.just("\x93")
inside = plain | hyp.lists(plain, max_size=3).map(tuple)
constants = plain | hyp.lists(inside, max_size=4).map(tuple)
copied = (
    hyp.lists(inside, max_size=4)
    | hyp.dictionaries(inside, inside, max_size=4)
    | hyp.sets(inside, max_size=4)
)
nested = hyp.recursive(
    constants | copied,
    lambda inner: (
        hyp.lists(inner, max_size=3)
        | hyp.lists(inner, max_size=3).map(tuple)
        | hyp.dictionaries(texts, inner, max_size=3)
    ),
    max_leaves=8,
)


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal, with the same types inside."""
    if type(one) is not type(other) or one != other:
        return False
    if isinstance(one, (list, tuple)):
        return all(map(same, one, other))
    if isinstance(one, dict):
        return all(map(same, one, other)) and all(map(same, one.values(), other.values()))
    return isinstance(one, (set, frozenset)) or repr(one) == repr(other)


def taken(value: Any) -> Any:
    """Return what a worker takes of a result."""
    if type(value) in codec.PLAIN_TYPES:
        return value
    settled = sealed.settle(value)
    return settled if settled is not None else Sealed(*codec.encode_result(value, 1 << 30), [])


def through(values: list[Any]) -> Row:
    """Return the row of results at its receiver."""
    row = sealed.pack([taken(value) for value in values])
    return Row(row.data, row.buffers)


@given(hyp.lists(numbers | hyp.lists(numbers, max_size=4).map(tuple), max_size=6))
def test_sealed_rows_of_numbers_arrive_as_they_are(values: list[Any]) -> None:
    """Numbers and tuples of them, with type, sign and every digit, whichever way they are packed."""
    data = sealed.pack_constants(values)
    assert data is not None
    for packed in (data, sealed.pack_settled(values), sealed.pack_plain(values)):
        assert same(Row(packed).plain, values)


@settings(max_examples=60)
@given(hyp.lists(constants, max_size=6))
def test_sealed_rows_of_constants_arrive_as_they_are(values: list[Any]) -> None:
    """A row of what nobody can change needs no copy: `settle` returns the very object."""
    data = sealed.pack_constants(values)
    assert data is not None
    assert same(Row(data).plain, values)
    for value in values:
        assert sealed.constant(value)
        assert type(value) in codec.PLAIN_TYPES or sealed.settle(value) is value


@settings(max_examples=60)
@given(hyp.lists(nested, min_size=1, max_size=5))
def test_sealed_rows_of_all_kinds_arrive_as_they_are(values: list[Any]) -> None:
    """Singly and in one go: each value equal, with the same types inside."""
    row = through(values)
    assert len(row) == len(values)
    assert same([row.load(index) for index in range(len(row))], values)
    harmless = row.harmless()
    assert harmless is None or same(harmless, values)


@settings(max_examples=60)
@given(copied)
def test_sealed_copies_do_not_change_with_the_original(value: Any) -> None:
    """What can be changed is settled as a copy; of what is in it nothing can be changed."""
    settled = sealed.settle(value)
    assert same(settled, value)
    assert settled is not value
    assert not sealed.constant(value)
    assert sealed.pack_constants([1, value]) is None
    before = len(value)
    value.clear()
    assert len(settled) == before


@pytest.mark.parametrize(
    "value",
    [
        [[]],
        [((),)],
        ([],),
        (((1,),),),
        {"a": {}},
        {(): ((), ((),))},
        [bytearray()],
        frozenset({1}),
        bytearray(b"a"),
        complex(1, 2),
        range(3),
        Pair(1, 2),
        (Pair(1, 2),),
        [Pair(1, 2)],
        Colour.RED,
        (Colour.RED,),
        {"a": Colour.RED},
        {Colour.RED},
        Text("a"),
        [Text("a")],
        {Text("a"): 1},
        Items([1]),
        OrderedDict(a=1),
        Counter("a"),
        defaultdict(int, a=1),
        np.float64(1.5),
        (np.float64(1.5),),
        [np.arange(3)],
    ],
    ids=repr,
)
def test_sealed_other_values_are_pickled_by_themselves(value: Any) -> None:
    """Subclasses, objects and what is nested deeper are neither constant nor copied."""
    assert sealed.settle(value) is None
    assert not sealed.constant(value)
    assert sealed.pack_constants([(1, 2), value]) is None
    assert sealed.pack_constants([value]) is None
    arrived = through([1, value, (2, 3)]).load(1)
    assert type(arrived) is type(value)
    assert repr(arrived) == repr(value)


@pytest.mark.parametrize("make", [tuple, list, set, lambda some: dict.fromkeys(some, 1)])
def test_sealed_only_small_containers_are_looked_into(make: Any) -> None:
    """With more than 64 elements the look would cost as much as pickling."""
    assert sealed.settle(make(range(64))) == make(range(64))
    assert sealed.settle(make(range(65))) is None
    assert sealed.settle((1, tuple(range(64)))) is not None
    assert sealed.settle((1, tuple(range(65)))) is None


def test_sealed_row_shares_nothing_that_can_be_changed() -> None:
    """One object returned for two items is two objects at the receiver."""
    for value in ([1], {"a": 1}, {1}, [[1]]):
        row = through([value, value])
        one, other = row.load(0), row.load(1)
        assert one == other == value
        assert one is not other
        both = row.harmless()
        assert both is not None
        assert both[0] is not both[1]


@pytest.mark.parametrize("value", ["__main__", ["__main__", ["\x93"]], {"__main__": ["main"]}])
def test_sealed_text_that_looks_like_a_module_is_only_text(value: Any) -> None:
    """It is loaded in one go with its neighbours."""
    row = through([value, [[1]]])
    assert row.harmless() == [value, [[1]]]
    assert row.load(0) == value


def test_sealed_row_that_names_globals_is_loaded_one_by_one() -> None:
    """What may run code when it is unpickled fails alone."""
    bad = Sealed(codec.encode([bombs.RaisesAtUnpickle(ValueError)], threshold=1 << 30)[0], [], [])
    packed = sealed.pack([(1, 2), bad, [3]])
    row = Row(packed.data)
    assert row.harmless() is None
    assert (row.load(0), row.load(2)) == ((1, 2), [3])
    with pytest.raises(DecodeError):
        row.load(1)


def test_sealed_row_with_buffers_is_loaded_one_by_one() -> None:
    """Each value gets its own buffers."""
    one = Sealed(*codec.encode_result([np.arange(100)], 8), [])
    two = Sealed(*codec.encode_result({"a": np.arange(50)}, 8), [])
    packed = sealed.pack([one, (1,), two])
    row = Row(packed.data, [buffer.raw() for buffer in packed.buffers])
    assert row.harmless() is None
    assert row.load(0)[0].tolist() == list(range(100))
    assert row.load(1) == (1,)
    assert row.load(2)["a"].tolist() == list(range(50))


def test_sealed_extension_code_that_only_the_worker_has_is_an_error_of_its_item() -> None:
    """Such a code names no global in the bytes; loading the row in one go gives way."""
    copyreg.add_extension(Pair.__module__, Pair.__qualname__, 240)
    try:
        coded = Sealed(codec.encode([Pair(1, 2)], threshold=1 << 30)[0], [], [])
        row = Row(sealed.pack([(1, 2), coded]).data)
        assert row.harmless() is None  # as there may be such codes anywhere
    finally:
        copyreg.remove_extension(Pair.__module__, Pair.__qualname__, 240)
    assert row.harmless() is None
    assert row.load(0) == (1, 2)
    with pytest.raises(DecodeError, match="extension code"):
        row.load(1)
