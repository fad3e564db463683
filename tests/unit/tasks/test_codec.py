"""Objects to bytes and back, in one process."""

from __future__ import annotations

import pickle
import sys
import threading
import types
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from mpsched._tasks import codec
from mpsched.errors import DecodeError, EncodeError, ResultEncodeError
from tests.support import bombs

MANY = 1 << 30


@dataclass
class Point:
    x: int


plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(),
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(plain)
def test_codec_plain_data_is_the_same_afterwards(value: Any) -> None:
    """Arguments and results of plain data arrive equal, and with the same types."""
    for data, buffers in (codec.encode(value, threshold=1), codec.encode_result(value, 1)):
        assert buffers == []
        assert repr(codec.decode(data)) == repr(value)


def test_codec_plain_arguments_are_bare_pickles() -> None:
    """What plain pickle can do is what plain pickle gives."""
    value = (1, "abc", [2.5], Point(3))
    assert codec.encode(value, threshold=MANY) == (pickle.dumps(value, 5), [])


@pytest.mark.parametrize(("threshold", "apart"), [(800, 2), (801, 1), (1600, 1), (1601, 0)])
def test_codec_buffers_from_the_threshold_on_stay_apart(threshold: int, apart: int) -> None:
    """A buffer of exactly the threshold is out of band, one byte less is in band; order is kept."""
    value: Any = (np.arange(100.0), "between", np.arange(200.0), np.arange(3.0))
    for encode in (codec.encode_result, lambda v, n: codec.encode(v, threshold=n)):
        data, buffers = encode(value, threshold)
        assert [buffer.raw().nbytes for buffer in buffers] == [800, 1600][2 - apart :]
        back = codec.decode(data, buffers)
        assert [np.array_equal(a, b) for a, b in zip(back, value, strict=True)] == [True] * 4


def test_codec_buffers_stay_apart_by_value_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """An array inside an instance of a `__main__` class is not copied either."""
    main = types.ModuleType("__main__")
    exec("class Holder:\n    def __init__(self, a): self.a = a", vars(main))
    monkeypatch.setitem(sys.modules, "__main__", main)
    array = np.arange(1000.0)
    data, buffers = codec.encode((vars(main)["Holder"](array), 5), threshold=8000)
    assert len(data) < 8000
    assert len(buffers) == 1
    holder, five = codec.decode(data, buffers)
    assert np.shares_memory(holder.a, array)
    assert five == 5


def test_codec_needs_by_value_sees_main_only_as_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A class of `__main__` is seen; a source text that has the word in it is not."""
    main = types.ModuleType("__main__")
    exec("class C: pass", vars(main))
    monkeypatch.setitem(sys.modules, "__main__", main)
    assert codec.needs_by_value(pickle.dumps([vars(main)["C"]()], 5))
    assert not codec.needs_by_value(pickle.dumps('if __name__ == "__main__": run()', 5))


@pytest.mark.parametrize(
    "error", [ValueError, RecursionError, MemoryError, SystemExit, GeneratorExit, BaseException]
)
def test_codec_whatever_pickling_raises_is_an_encode_error(error: type[BaseException]) -> None:
    """An argument or a result whose `__reduce__` raises, or exits, fails alone."""
    bomb = bombs.RaisesAtPickle(error)
    with pytest.raises(EncodeError) as caught:
        codec.encode((1, bomb), threshold=MANY)
    assert isinstance(caught.value.__cause__, error)
    with pytest.raises(ResultEncodeError) as other:
        codec.encode_result([bomb], MANY)
    assert isinstance(other.value.__cause__, error)
    with pytest.raises(EncodeError):
        codec.dumps_callable(bomb)


def test_codec_ctrl_c_while_pickling_is_no_encode_error() -> None:
    """It goes to the caller; in a worker, where no such thing comes from outside, it does not."""
    bomb = bombs.RaisesAtPickle(KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        codec.encode(bomb, threshold=MANY)
    with pytest.raises(KeyboardInterrupt):
        codec.dumps_callable(bomb)
    with pytest.raises(ResultEncodeError):
        codec.encode_result(bomb, MANY)


@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt, BaseException])
def test_codec_a_result_that_cannot_be_unpickled_is_found(error: type[BaseException]) -> None:
    """The worker unpickles once what is more than plain data."""
    with pytest.raises(ResultEncodeError, match="cannot be unpickled") as caught:
        codec.encode_result({"a": bombs.RaisesAtUnpickle(error)}, MANY)
    assert isinstance(caught.value.__cause__, error)


def test_codec_a_name_that_was_data_before_is_found_too() -> None:
    """A global whose name is in the pickle already, as a text, is no way around the check."""
    bomb = bombs.RaisesAtUnpickle(ValueError)
    texts = [bomb.__reduce__()[0].__name__, bomb.__reduce__()[0].__module__]
    with pytest.raises(ResultEncodeError):
        codec.encode_result([*texts, bomb], MANY)
    with pytest.raises(ResultEncodeError):
        codec.encode_result([*map(str, range(300)), *texts, bomb], MANY)


def test_codec_plain_results_are_not_unpickled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check costs nothing where nothing can go wrong."""
    checked: list[Any] = []
    monkeypatch.setattr(codec, "_check", lambda *args: checked.append(args))
    for value in (None, 1, "a", b"b", 1.5, [1, "a"], {"k": (1, 2.5)}, {1, 2}):
        codec.encode_result(value, MANY)
    assert checked == []
    codec.encode_result(Point(1), MANY)
    assert len(checked) == 1


def test_codec_checking_a_result_leaves_its_bytes_alone() -> None:
    """Unpickling that writes into its array writes into a copy."""
    array = np.zeros(1000)
    data, buffers = codec.encode_result(bombs.WritesAtUnpickle(array), 1000)
    assert len(buffers) == 1
    assert array.sum() == 0
    back = codec.decode(data, [bytearray(buffer.raw()) for buffer in buffers])
    assert back.array.sum() == 1000


@pytest.mark.parametrize("error", [ValueError, SystemExit, ImportError])
def test_codec_whatever_unpickling_raises_is_a_decode_error(error: type[BaseException]) -> None:
    """Arguments in the worker and results in the parent fail alone; decode_result returns it."""
    data = pickle.dumps(bombs.RaisesAtUnpickle(error))
    with pytest.raises(DecodeError, match=error.__name__) as caught:
        codec.decode(data)
    assert isinstance(caught.value.__cause__, error)
    value, problem = codec.decode_result(data)
    assert value is None
    assert isinstance(problem, DecodeError)
    assert codec.decode_result(pickle.dumps(5)) == (5, None)


class _Tree:
    def __init__(self, **parts: object) -> None:
        self.__dict__.update(parts)


@pytest.mark.parametrize(
    ("args", "path"),
    [
        ((1, {"lock": threading.Lock()}), "args[1]['lock']"),
        (([0] * 1000 + [threading.Lock()],), "args[0][1000]"),
        ((_Tree(a=_Tree(b=[threading.Lock()])),), "args[0].a.b[0]"),
        (({1: {2: {3: threading.Lock()}}},), "args[0][1][2][3]"),
        ((threading.Lock(),), "args[0]"),
    ],
)
def test_codec_errors_name_the_part(args: tuple[Any, ...], path: str) -> None:
    """The text has the path to what cannot be pickled, and its type."""
    for obj, label in ((args, "args"), ((args, {}), "call")):
        with pytest.raises(EncodeError) as caught:
            codec.encode(obj, threshold=MANY, label=label)
        assert str(caught.value).startswith(f"{path} cannot be pickled, it is a _thread.lock: ")
    with pytest.raises(EncodeError, match=r"^name cannot be pickled"):
        codec.encode(((), {"name": threading.Lock()}), threshold=MANY, label="call")


def test_codec_errors_of_deep_nesting_say_so() -> None:
    """A RecursionError is named as what it is."""
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(EncodeError, match=r"args is nested too deeply") as caught:
        codec.encode(deep, threshold=MANY)
    assert isinstance(caught.value.__cause__, RecursionError)
    while deep:  # freeing it in one go would recurse as deeply
        deep = deep.pop()


def test_codec_callables_that_pickle_plainly_are_new_each_time() -> None:
    """A bound method brings its own object to each use."""
    data = codec.dumps_callable([3, 1].append)
    first, second = codec.loads_callable(data), codec.loads_callable(data)
    assert first.__self__ == [3, 1]  # type: ignore[attr-defined]  # a bound method
    assert first.__self__ is not second.__self__  # type: ignore[attr-defined]  # as above


def test_codec_stateless_functions_are_loaded_once() -> None:
    """The same content is the same function while it is in use, a closure over a list is not."""
    n, kept = 5, [5]
    data = codec.dumps_callable(lambda x: x + n)
    assert codec.loads_callable(data) is codec.loads_callable(data)
    assert codec.loads_callable(data)(1) == 6
    data = codec.dumps_callable(lambda: kept)
    assert codec.loads_callable(data) is not codec.loads_callable(data)


def test_codec_encode_held_returns_what_must_be_kept() -> None:
    """Nothing for plain values; the block of a shared array for that."""
    from mpsched import arrays

    assert codec.encode_held(((1,), {}), MANY)[2] == []
    shared = arrays.shared_array(4)
    _, _, held = codec.encode_held(((shared,), {}), MANY)
    assert len(held) == 1
    _, held = codec.dumps_callable_held(lambda: shared)
    assert len(held) == 1
