"""Objects that a program compares with `is`, such as a default that means "nothing was given".

See README.md, "Sentinels".
"""

from __future__ import annotations

import pickle
from typing import Any, Final

ATOMS: Final = frozenset({type(None), bool, int, float, complex, str, bytes})
"""Types of values that refer to nothing."""
_PLAIN: Final[Any] = object
_MADE_BY_CLASS: Final = 1 << 9  # Py_TPFLAGS_HEAPTYPE


def state_of(value: Any) -> bytes | None:
    """Return the pickled state of an object that is compared by identity; None if it is no such.

    It is one of a class with `object`'s own equality and pickling, whose attributes are plain
    values. A bare `object()` is none: that is always sent as the global that it is.
    """
    kind: Any = type(value)
    if (
        kind.__eq__ is not _PLAIN.__eq__
        or not kind.__flags__ & _MADE_BY_CLASS
        or issubclass(kind, type)
        or kind.__reduce_ex__ is not _PLAIN.__reduce_ex__
        or kind.__reduce__ is not _PLAIN.__reduce__
        or kind.__getstate__ is not _PLAIN.__getstate__
    ):
        return None
    state: Any = _PLAIN.__getstate__(value)
    if state is None:
        return b""
    if type(state) is not dict or not all(type(one) in ATOMS for one in state.values()):
        return None
    return pickle.dumps(state, 5)
