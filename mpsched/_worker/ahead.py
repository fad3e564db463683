"""What a worker knows of a root before it is its own. See README.md, "Early roots"."""

from __future__ import annotations

import io
import pickle
from typing import TYPE_CHECKING, Any, NoReturn, final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


@final
class Ahead:
    """A call that was read before its time: nothing of the user's has run for it.

    Attributes:
        fn, args: what is called.
        told: seed, limit, whether it blocks, version: what the frame says of its run.
    """

    __slots__ = ("_handle", "_ident", "args", "fn", "told")

    def __init__(
        self,
        handle: int,
        ident: int,
        fn: Callable[..., Any],
        args: Any,
        told: Sequence[Any],
    ) -> None:
        self._handle = handle
        self._ident = ident
        self.fn = fn
        self.args = args
        self.told = told

    def is_of(self, handle: int, ident: int) -> bool:
        """Whether it is the call of an entry that this worker has claimed; a task's id never comes again."""
        return handle == self._handle and ident == self._ident


def loads(data: bytes) -> Any:
    """Unpickle values that name nothing: no class, so nothing that could run.

    Raises:
        pickle.UnpicklingError: it names something.
    """
    return _Plain(io.BytesIO(data)).load()


class _Plain(pickle.Unpickler):
    def find_class(self, module: str, name: str, /) -> NoReturn:
        raise pickle.UnpicklingError(f"{module}.{name}")
