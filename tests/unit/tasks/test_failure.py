"""Exceptions on their way to the parent, and calls as text."""

from __future__ import annotations

import pickle
import sys
import threading
from typing import Any

import numpy as np
import pytest

from mpsched._tasks import failure, functions
from mpsched.errors import DecodeError, RemoteError, TaskTimeout
from tests.support import bombs


def sent(exc: BaseException, note: str = "task 17: f(1)") -> BaseException:
    return failure.decode_exception(failure.encode_exception(exc, task_id=17, note=note))


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as exc:
        return exc


class MessageMade(Exception):
    def __init__(self, ident: int) -> None:
        super().__init__(f"item {ident} failed")
        self.ident = ident


class TwoNeeded(Exception):
    def __init__(self, a: int, b: int) -> None:
        super().__init__(f"{a} and {b}")


class HoldsLock(Exception):
    def __init__(self) -> None:
        super().__init__("holding")
        self.lock = threading.Lock()


class NoText(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


class ReducesToOther(Exception):
    def __reduce__(self) -> Any:
        return int, ("3",)


@pytest.mark.parametrize(
    "error",
    [
        ValueError("x", 1),
        KeyError("k"),
        OSError(2, "No such file", "name"),
        SystemExit(3),
        KeyboardInterrupt(),
        GeneratorExit(),
        BaseException("base"),
        UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
        TaskTimeout("late", seconds=2.0, task_id=3, attempt=1),
    ],
    ids=lambda error: type(error).__name__,
)
def test_failure_keeps_type_arguments_and_fields(error: BaseException) -> None:
    """What the task raised is what the parent raises, whatever class it has."""
    error.add_note("the user's note")
    back = sent(raised(error))
    assert type(back) is type(error)
    assert back.args == error.args
    assert str(back) == str(error)
    fields = {k: v for k, v in vars(back).items() if k != "__notes__"}
    assert fields == {k: v for k, v in vars(error).items() if k != "__notes__"}
    assert back.__notes__ == ["the user's note", "task 17: f(1)"]


def test_failure_cause_is_the_remote_traceback() -> None:
    """Its text has the frames, and the chain of causes and contexts."""
    try:
        try:
            raise LookupError("first")
        except LookupError as first:
            raise ValueError("second") from first
    except ValueError as exc:
        back = sent(exc)
    cause = back.__cause__
    assert isinstance(cause, failure.RemoteTraceback)
    text = str(cause)
    assert "LookupError: first" in text
    assert "direct cause" in text
    assert text.index("first") < text.index("ValueError: second")
    assert "test_failure_cause_is_the_remote_traceback" in text
    again = pickle.loads(pickle.dumps(cause))
    assert str(again) == text


def test_failure_traceback_begins_with_the_users_frame() -> None:
    """Frames of this package above it say nothing to a user; frames below it stay."""
    with pytest.raises(DecodeError) as caught:
        functions.resolve("no_such_module", "f")
    below = str(sent(caught.value).__cause__)
    assert caught.tb is not None
    alone = str(sent(caught.value.with_traceback(caught.tb.tb_next)).__cause__)
    assert "in test_failure_traceback_begins_with_the_users_frame" in below
    assert "in resolve" in below
    assert "in resolve" in alone  # nothing else is there to be shown


def even(n: int) -> None:
    if not n:
        raise KeyError("at the bottom") from raised(ValueError("before"))
    odd(n - 1)


def odd(n: int) -> None:
    even(n - 1)


def test_failure_of_a_deep_stack_shows_its_ends() -> None:
    """Thirty thousand frames would take half a minute to format; in causes, too."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(before + 4_000)
    try:
        for depth in (0, 200, 4_000 - 100):
            with pytest.raises(KeyError) as caught:
                even(depth)
            outer = RuntimeError("outer")
            outer.__cause__ = caught.value
            text = failure.remote_traceback(outer)
            assert "ValueError: before" in text
            assert "at the bottom" in text
            assert "test_failure_of_a_deep_stack" in text
            assert ("frames left out>" in text) == (depth > 300)
            assert text.count("in even") <= 101
    finally:
        sys.setrecursionlimit(before)


def test_failure_is_a_fresh_object_each_time() -> None:
    """Two threads that ask for one result do not share a traceback."""
    data = failure.encode_exception(ValueError(1), task_id=1, note="")
    first, second = failure.decode_exception(data), failure.decode_exception(data)
    assert first is not second
    assert not hasattr(first, "__notes__")


def test_failure_message_made_from_arguments_is_not_wrapped_twice() -> None:
    """An exception that builds its text from an argument arrives as it was, in a group too."""
    back = sent(MessageMade(5))
    assert isinstance(back, MessageMade)
    assert (back.args, back.ident) == (("item 5 failed",), 5)
    group = sent(ExceptionGroup("g", [MessageMade(1), ExceptionGroup("h", [MessageMade(2)])]))
    assert isinstance(group, ExceptionGroup)
    assert repr(group.exceptions[1]) == "ExceptionGroup('h', [MessageMade('item 2 failed')])"
    assert str(group.exceptions[0]) == "item 1 failed"


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (TwoNeeded(1, 2), "1 and 2"),
        (HoldsLock(), "holding"),
        (ReducesToOther("r"), "r"),
        (ValueError(bombs.RaisesAtPickle(SystemExit)), ""),
        (ValueError(bombs.RaisesAtUnpickle(KeyboardInterrupt)), ""),
        (NoText("n"), "<its text cannot be had: SystemExit>"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_failure_what_does_not_survive_has_a_stand_in(error: BaseException, message: str) -> None:
    """It names class and message, and keeps traceback and notes."""
    error.add_note("mine")
    back = sent(raised(error))
    if isinstance(error, NoText):  # survives, only its text does not
        assert type(back) is NoText
        return
    assert isinstance(back, RemoteError)
    kind = type(error)
    name = kind.__qualname__ if kind is ValueError else f"{kind.__module__}.{kind.__qualname__}"
    assert back.class_name == name
    assert back.message == (message or str(error))
    assert name in str(back)
    assert "task 17" in str(back)
    assert back.__notes__ == ["mine", "task 17: f(1)"]
    assert isinstance(back.__cause__, failure.RemoteTraceback)


def test_failure_long_texts_are_cut() -> None:
    """A message of megabytes does not come twice."""
    data = failure.encode_exception(HoldsLock(), task_id=1, note="")
    assert len(data) < 5_000
    huge = TwoNeeded("x" * 10_000_000, 1)  # type: ignore[arg-type]  # anything with a text
    data = failure.encode_exception(huge, task_id=1, note="")
    assert len(data) < 200_000
    back = failure.decode_exception(data)
    assert "characters ..." in str(back.__cause__)


class BadRepr:
    def __repr__(self) -> str:
        raise SystemExit(3)


@pytest.mark.parametrize(
    ("args", "kwargs", "text"),
    [
        ((), {}, "f()"),
        ((1, "abc"), {"key": None}, "f(1, 'abc', key=None)"),
        ((BadRepr(),), {}, "f(<BadRepr: no repr, SystemExit>)"),
        ((np.zeros((1000, 1000)),), {}, "f(<array float64 (1000, 1000)>)"),
        ((list(range(1_000_000)),), {}, "f([0, 1, 2, 3, 4, 5, ...])"),
    ],
)
def test_short_call_shows_a_call(args: Any, kwargs: Any, text: str) -> None:
    """Small values whole, large ones in part, and no error of a `__repr__` comes through."""
    assert failure.short_call("f", args, kwargs) == text


def test_short_call_has_at_most_its_limit() -> None:
    """However many arguments, however long the name."""
    assert len(failure.short_call("f", ("x" * 1000,) * 1000, {})) <= 120
    assert len(failure.short_call("f" * 500, (1,), {}, limit=50)) <= 50
    assert failure.short_call("f", tuple(range(100)), {}, limit=20).endswith("…)")


def test_short_text_never_raises() -> None:
    """An exception without a usable text has one all the same."""
    assert failure.short_text(ValueError("abc")) == "abc"
    assert failure.short_text(ValueError("x" * 500), limit=10) == "x" * 9 + "…"
    assert "SystemExit" in failure.short_text(NoText())


def test_with_siblings_hangs_the_others_on_the_first() -> None:
    """As an attribute and as notes, each once, also when more come later; both travel."""
    first, second, third = ValueError("a"), KeyError("b"), OSError("c")
    assert failure.with_siblings(first, []) is first
    assert not hasattr(first, "siblings")
    assert failure.with_siblings(first, [second, first]) is first
    failure.with_siblings(first, [second, third])
    assert first.siblings == (second, third)  # type: ignore[attr-defined]
    assert first.__notes__ == ["also failed: KeyError: 'b'", "also failed: OSError: c"]
    there: Any = sent(first)
    assert [type(one) for one in there.siblings] == [KeyError, OSError]
    assert there.__notes__[:2] == first.__notes__


class NoRoom(Exception):
    __slots__ = ()

    def __setattr__(self, name: str, value: object) -> None:
        raise TypeError("no attributes")

    def add_note(self, _: str) -> None:
        raise TypeError("no notes")


def test_with_siblings_never_raises() -> None:
    """An exception that takes no attributes and no notes is raised all the same."""
    first = NoRoom()
    assert failure.with_siblings(first, [ValueError()]) is first
