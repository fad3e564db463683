"""Objects that go off: when they are pickled, or when they are unpickled."""

from __future__ import annotations

from typing import Any


class RaisesAtPickle:
    """Raises when it is pickled."""

    def __init__(self, error: type[BaseException]) -> None:
        self.error = error

    def __reduce__(self) -> Any:
        raise self.error("at pickling")

    def __call__(self) -> None: ...


class RaisesAtUnpickle:
    """Raises when it is unpickled."""

    def __init__(self, error: type[BaseException]) -> None:
        self.error = error

    def __reduce__(self) -> Any:
        return raise_it, (self.error,)


def raise_it(error: type[BaseException]) -> None:
    raise error("at unpickling")


class WritesAtUnpickle:
    """Fills its array with ones when it is unpickled."""

    def __init__(self, array: Any) -> None:
        self.array = array

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.array[:] = 1
