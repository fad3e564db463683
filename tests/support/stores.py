"""Shared memory whose stores are counted, so that a writer can be killed before any of them.

A process that is killed leaves exactly the stores that it has made, in order: SIGKILL at any instant
is the same as no store from the k-th on, for some k. So a protocol that is right for every k is right
wherever its process is killed.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from mpsched._tasks import state as st

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Killed(BaseException):
    """The process that ran this code has ended; nothing that it does from here on is seen."""


class Stores:
    """Counts the stores of all views that share it.

    Attributes:
        count: stores made since `reset`.
    """

    def __init__(self) -> None:
        self.count = 0
        self._limit: int | None = None
        self._meanwhile: tuple[int, Callable[[], None]] | None = None

    def before(self) -> None:
        """A store is about to be made.

        Raises:
            Killed: It is the one before which the process dies, or a later one: code that runs on
                (`finally`) makes no store either.
        """
        if self._limit is not None and self.count >= self._limit:
            raise Killed
        if self._meanwhile is not None and self.count == self._meanwhile[0]:
            (_, action), self._meanwhile = self._meanwhile, None
            count = self.count
            action()
            self.count = count
        self.count += 1

    @contextmanager
    def killed_before(self, store: int) -> Iterator[None]:
        """Let the block make `store` stores and no more; swallows the death."""
        self.count, self._limit = 0, store
        try:
            yield
        except Killed:
            pass
        finally:
            self._limit = None

    @contextmanager
    def meanwhile(self, store: int, action: Callable[[], None]) -> Iterator[None]:
        """Let somebody else do something just before store number `store` of the block."""
        self.count, self._meanwhile = 0, (store, action)
        try:
            yield
        finally:
            self._meanwhile = None

    def of(self, action: Callable[[], object]) -> int:
        """Return how many stores an action makes."""
        self.count = 0
        action()
        return self.count


class View:
    """A memoryview whose stores go through a `Stores`; slices and casts of it do as well."""

    def __init__(self, memory: memoryview, stores: Stores) -> None:
        self._memory = memory
        self._stores = stores

    def __len__(self) -> int:
        return len(self._memory)

    def __getitem__(self, key: Any) -> Any:
        found = self._memory[key]
        return type(self)(found, self._stores) if isinstance(key, slice) else found

    def __setitem__(self, key: Any, value: Any) -> None:
        self._stores.before()
        self._memory[key] = value

    def __bytes__(self) -> bytes:
        return bytes(self._memory)

    def cast(self, form: Any) -> View:
        return type(self)(self._memory.cast(form), self._stores)

    def tolist(self) -> list[int]:
        words: list[int] = self._memory.tolist()
        return words


class StateView(View):
    """State words: every store of one must be a move that `state.ALLOWED` has."""

    def __setitem__(self, key: Any, value: Any) -> None:
        old = self._memory[key].tolist() if isinstance(key, slice) else [self._memory[key]]
        new = list(value) if isinstance(key, slice) else [value]
        for before, after in zip(old, new, strict=True):
            check_move(before, after)
        super().__setitem__(key, value)


def check_move(before: int, after: int) -> None:
    """Assert that a state word may change from `before` to `after`, or stay."""
    old, new = st.parts(before)[0], st.parts(after)[0]
    assert before == after or new in st.ALLOWED[old], f"{st.parts(before)} -> {st.parts(after)}"


def as_memory(view: View) -> memoryview:
    """Pass a view off as what it stands for."""
    return cast("memoryview", view)
