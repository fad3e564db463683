"""Whether two buffers hold the same bytes, on more than one core. See README.md, "Buffer cache"."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from typing import TYPE_CHECKING, Final, cast, final

from mpsched._base import cpus

if TYPE_CHECKING:
    from collections.abc import Callable

# Bytes that a thread compares at once. Smaller: threads meet at the GIL more often. Larger: one that
# gets no core keeps the others waiting, and a difference is noticed later.
_BLOCK: Final = 2 << 20

# Buffers from so many bytes on are compared by several threads. Smaller: to start one, a tenth of a
# millisecond, takes longer than what it saves.
_SHARED_FROM: Final = 16 << 20

# Most threads, the caller's among them: with some cores the memory is busy.
_MOST_THREADS: Final = 4


def equal(one: memoryview, other: memoryview) -> bool:
    """Compare two flat views of the same length, byte by byte, to the last one.

    100 MB take 16 ms, 9.5 on two cores, and without NumPy 50: nothing else here tells where a buffer
    lies. Other threads may run meanwhile.
    """
    memcmp = _memcmp()
    here, there = address_of(one), address_of(other)
    if memcmp is None or not here or not there:
        return all(
            _equal_block(one[start : start + _BLOCK], other[start : start + _BLOCK])
            for start in range(0, one.nbytes, _BLOCK)
        )
    if one.nbytes < _SHARED_FROM:
        return memcmp(here, there, one.nbytes) == 0
    comparison = _Comparison(one, other, functools.partial(_equal_at, memcmp, here, there))
    return comparison.shared(min(_MOST_THREADS, cpus.affinity_count()))


def address_of(raw: memoryview) -> int:
    """Return where a buffer lies; 0 where only a NumPy that is not loaded could tell."""
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return 0
    return cast("int", numpy.frombuffer(raw, "u1").__array_interface__["data"][0])


@final
class _Comparison:
    """One comparison; each thread takes the next block until there is none, or two differ.

    The views are held here, so the memory stays where it is as long as a thread reads it.
    """

    def __init__(
        self, one: memoryview, other: memoryview, same: Callable[[int, int], bool]
    ) -> None:
        self._views = one, other
        self._nbytes = one.nbytes
        self._same = same
        # Its `next` is one operation of the interpreter: no block is taken twice, or by nobody.
        self._starts = iter(range(0, one.nbytes, _BLOCK))
        # Blocks that were found equal. Only all of them together are an answer: a thread that an
        # exception ends leaves one out.
        self._equal: list[int] = []
        self._over = False

    def shared(self, threads: int) -> bool:
        """Compare with so many threads, or with those that can be had."""
        others = [threading.Thread(target=self._work, daemon=True) for _ in range(threads - 1)]
        started = []
        try:
            with contextlib.suppress(RuntimeError):  # no further thread, or the program ends
                for thread in others:
                    thread.start()
                    started.append(thread)
            self._work()
        except BaseException:
            self._over = True
            raise
        finally:
            for thread in started:
                thread.join()
        return sum(self._equal) == self._nbytes

    def _work(self) -> None:
        for start in self._starts:
            if self._over:
                return
            count = min(_BLOCK, self._nbytes - start)
            if not self._same(start, count):
                self._over = True
                return
            self._equal.append(count)


def _equal_at(
    memcmp: Callable[[int, int, int], int], one: int, other: int, start: int, count: int
) -> bool:
    return memcmp(one + start, other + start, count) == 0


def _equal_block(one: memoryview, other: memoryview) -> bool:
    """Compare eight bytes at a time: views compare item by item, and a word is no float (NaN)."""
    whole = one.nbytes & ~7
    if one[:whole].cast("Q") != other[:whole].cast("Q"):
        return False
    return one[whole:] == other[whole:]


@functools.cache
def _memcmp() -> Callable[[int, int, int], int] | None:
    """Return the C library's `memcmp`, which lets other threads run; None where it cannot be had."""
    with contextlib.suppress(ImportError, OSError, AttributeError):
        import ctypes  # NumPy has imported it, and without NumPy there are no addresses

        memcmp = ctypes.CDLL(None).memcmp
        memcmp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
        return cast("Callable[[int, int, int], int]", memcmp)
    return None
