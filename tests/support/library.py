"""An importable module with state, for functions in it that travel by value all the same."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

STATE: Any = None
CONFIG: Any = "as imported"
TABLE = {"a": 1}
SENTINEL = object()
LOCK = threading.Lock()


def set_state(value: object) -> None:
    global STATE
    STATE = value


def get_state() -> object:
    return STATE


def is_sentinel(value: object) -> bool:
    return value is SENTINEL


def is_table(value: object) -> bool:
    return value is TABLE


class Outer:
    class Inner:
        def __init__(self, value: int) -> None:
            self.value = value

    @staticmethod
    def double(x: int) -> int:
        return 2 * x

    def method(self) -> str:
        return "method"


def state_reader() -> Callable[[], object]:
    return lambda: STATE


def state_writer() -> Callable[[object], None]:
    def write(value: object) -> None:
        global STATE
        STATE = value

    return write


def config_reader() -> Callable[[], object]:
    return lambda: CONFIG


def user_of_what_has_only_identity() -> Callable[[], tuple[bool, bool, bool]]:
    def use() -> tuple[bool, bool, bool]:
        with LOCK:
            return is_sentinel(SENTINEL), is_table(TABLE), LOCK.locked()

    return use
