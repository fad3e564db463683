"""The recursive programs that are measured: plain, forking, and cut into tasks by hand.

Workers import them by name, so they live in a module. Each program comes as

- `*_plain`: what one writes without any pool; its time is T_S,
- a forking form, for `mpsched`,
- `*_parts`: the calls that somebody gets who has no nested tasks and cuts the program at its top by
  hand, into a few dozen; and what joins their results,

and where it is measured there, a form for Dask, whose tasks may wait for tasks of their own.
"""

from __future__ import annotations

import hashlib
import importlib
import struct
import sys
import time
from typing import TYPE_CHECKING, Any

import mpsched

from . import work

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray


def timed(fn: Callable[..., Any], *args: Any) -> tuple[float, Any]:
    """Call a function; return the seconds it took, and its result."""
    begun = time.perf_counter()
    result = fn(*args)
    return time.perf_counter() - begun, result


# --- fib: the cost of a spawn ----------------------------------------------------------------------

FIB_SPAWNS = {22: 28_656, 27: 317_810}
"""Spawns of `fib(n)`: fib(n + 1) - 1."""


def fib_plain(n: int) -> int:
    return n if n < 2 else fib_plain(n - 1) + fib_plain(n - 2)


def fib(n: int) -> int:
    """Without any cut-off: every call but the smallest spawns."""
    if n < 2:
        return n
    first = mpsched.spawn(fib, n - 1)
    return fib(n - 2) + first.join()


def fib_cut(n: int) -> int:
    """Cut off at 15, as everybody does."""
    if n < 15:
        return fib_plain(n)
    first = mpsched.spawn(fib_cut, n - 1)
    return fib_cut(n - 2) + first.join()


def fib_parts(n: int, depth: int = 6) -> list[tuple[Any, ...]]:
    if depth == 0 or n < 2:
        return [(fib_plain, n)]
    return fib_parts(n - 1, depth - 1) + fib_parts(n - 2, depth - 1)


def fib_dask(n: int) -> int:
    """Cut off at 24: a task costs milliseconds."""
    if n < 24:
        return fib_plain(n)
    first = _dask_submit(fib_dask, n - 1)
    rest = fib_dask(n - 2)
    return rest + int(_dask_wait([first])[0])


def _dask_submit(fn: Callable[..., Any], *args: Any) -> Any:
    import distributed

    return distributed.get_client().submit(fn, *args, pure=False)


def _dask_wait(futures: list[Any]) -> list[Any]:
    """Wait in a task for tasks; the worker takes up others meanwhile."""
    distributed: Any = importlib.import_module("distributed")  # untyped in part
    client = distributed.get_client()
    distributed.secede()
    try:
        return list(client.gather(futures))
    finally:
        distributed.rejoin()


# --- n queens --------------------------------------------------------------------------------------


def queens_plain(n: int, rows: tuple[int, ...] = ()) -> int:
    """Count the placings of n queens, the first of them given."""
    if len(rows) == n:
        return 1
    return sum(queens_plain(n, (*rows, column)) for column in range(n) if is_safe(rows, column))


def is_safe(rows: tuple[int, ...], column: int) -> bool:
    """Whether a queen in the next row is attacked by none of the given ones."""
    distance = len(rows)
    for other in rows:
        if other == column or abs(other - column) == distance:
            return False
        distance -= 1
    return True


def queens(n: int, rows: tuple[int, ...] = ()) -> int:
    """Spawn for the first three rows."""
    if len(rows) == 3:
        return queens_plain(n, rows)
    tasks = [mpsched.spawn(queens, n, (*rows, c)) for c in range(n) if is_safe(rows, c)]
    return sum(task.join() for task in reversed(tasks))


def queens_parts(n: int) -> list[tuple[Any, ...]]:
    pairs = ((one, two) for one in range(n) for two in range(n))
    return [(queens_plain, n, pair) for pair in pairs if is_safe(pair[:1], pair[1])]


def queens_dask(n: int, rows: tuple[int, ...] = ()) -> int:
    """As tasks for the first two rows."""
    if len(rows) == 2:
        return queens_plain(n, rows)
    tasks = [_dask_submit(queens_dask, n, (*rows, c)) for c in range(n) if is_safe(rows, c)]
    return sum(_dask_wait(tasks))


# --- UTS: unbalanced tree search -------------------------------------------------------------------


class Tree:
    """A random tree whose shape SHA-1 decides: whoever counts its nodes rightly ran each once.

    The root has `b` children; any other node has `m` with the probability `q`, else none.
    """

    def __init__(self, b: int, q: float, m: int, r: int, nodes: int) -> None:
        self.b = b
        self.m = m
        self.nodes = nodes
        self.root = hashlib.sha1(bytes(16) + _BE.pack(r)).digest()
        self.below = int(q * 2**31)  # a node has children if its number is smaller

    def first(self) -> list[bytes]:
        """Return the root's children."""
        return [hashlib.sha1(self.root + _BE.pack(i)).digest() for i in range(self.b)]


_BE = struct.Struct(">I")
T3 = Tree(2000, 0.124875, 8, 42, nodes=4_112_897)
UTS_DEPTH = 4000
"""A recursion limit that lets T3's 1,572 levels nest, with what called them."""
_SHA1 = hashlib.sha1
_TAILS = [_BE.pack(i) for i in range(8)]


def children(node: bytes) -> list[bytes]:
    """Return the children of a node of T3 below the root."""
    if _BE.unpack_from(node, 16)[0] & 0x7FFFFFFF >= T3.below:
        return []
    return [_SHA1(node + tail).digest() for tail in _TAILS]


def uts_plain(node: bytes) -> int:
    """Count a subtree with a stack of one's own: it is deeper than Python likes to recur."""
    found, todo = 0, [node]
    while todo:
        found += 1
        todo += children(todo.pop())
    return found


def uts_all_plain() -> int:
    return 1 + sum(uts_plain(node) for node in T3.first())


def uts_recursive(node: bytes) -> int:
    """Count a subtree as `uts_each` does, with calls instead of tasks."""
    below = children(node)
    if not below:
        return 1
    found = 1
    for child in below:
        found += uts_recursive(child)
    return found


def uts_all_recursive() -> int:
    """Here it may: 1,572 calls nest."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, UTS_DEPTH))
    try:
        return 1 + sum(uts_recursive(node) for node in T3.first())
    finally:
        sys.setrecursionlimit(before)


def uts_each(node: bytes) -> int:
    """Every child a task of its own."""
    below = children(node)
    if not below:
        return 1
    counts: tuple[int, ...] = mpsched.join_all(*[(uts_each, child) for child in below])
    return 1 + sum(counts)


def uts_all_each() -> int:
    """The same for the root."""
    counts: tuple[int, ...] = mpsched.join_all(*[(uts_each, child) for child in T3.first()])
    return 1 + sum(counts)


def uts_ranges() -> int:
    """The root's children as a range that splits itself; a subtree is a plain loop."""
    return 1 + int(mpsched.parallel.map_reduce(uts_plain, _add, T3.first()))


def _add(one: int, other: int) -> int:
    return one + other


def uts_some(nodes: list[bytes]) -> int:
    return sum(map(uts_plain, nodes))


def uts_parts(number: int = 64) -> list[tuple[Any, ...]]:
    first = T3.first()
    return [(uts_some, first[start::number]) for start in range(number)]


# --- sorting ---------------------------------------------------------------------------------------


def sort_plain(values: NDArray[np.float64]) -> None:
    values.sort()


def sort_shared(values: NDArray[np.float64]) -> None:
    mpsched.parallel.sort(values)


def sorted_part(values: NDArray[np.float64]) -> NDArray[np.float64]:
    values.sort()
    return values


# --- matrix product --------------------------------------------------------------------------------

BLOCK = 128


def product_plain(a: NDArray[Any], b: NDArray[Any], out: NDArray[Any]) -> None:
    """Block by block of the result."""
    for row in range(0, len(a), BLOCK):
        product_rows(a, b, out, row)


def product_rows(a: NDArray[Any], b: NDArray[Any], out: NDArray[Any], row: int) -> None:
    for column in range(0, b.shape[1], BLOCK):
        out[row : row + BLOCK, column : column + BLOCK] = (
            a[row : row + BLOCK] @ b[:, column : column + BLOCK]
        )


def product(a: NDArray[Any], b: NDArray[Any], out: NDArray[Any]) -> None:
    """Halve the rows until they are a block."""
    if len(a) <= BLOCK:
        product_rows(a, b, out, 0)
        return
    middle = len(a) // 2
    upper = mpsched.spawn(product, a[:middle], b, out[:middle])
    product(a[middle:], b, out[middle:])
    upper.join()


def product_part(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    """Return the product of some rows, for those who share no memory."""
    import numpy as np

    out = np.empty((len(a), b.shape[1]))
    product_plain(a, b, out)
    return out


# --- mandelbrot ------------------------------------------------------------------------------------

ITERATIONS = 300


def mandel_row(size: int, row: int) -> list[int]:
    """Return after how many iterations each point of a row escapes."""
    y = 2.4 * row / size - 1.2
    return [escape(complex(3.0 * column / size - 2.2, y)) for column in range(size)]


def escape(c: complex) -> int:
    z = 0j
    for n in range(ITERATIONS):
        if z.real * z.real + z.imag * z.imag > 4.0:
            return n
        z = z * z + c
    return ITERATIONS


def mandel_plain(size: int) -> int:
    return sum(sum(mandel_row(size, row)) for row in range(size))


def mandel(size: int) -> int:
    """The rows as a range that splits itself."""
    return int(mpsched.parallel.map_reduce(_Row(size), _add, range(size)))


class _Row:
    """`mandel_row` of one size, summed: what fits a picture's row into a number."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __call__(self, row: int) -> int:
        return sum(mandel_row(self.size, row))


def mandel_rows(size: int, start: int, step: int) -> int:
    return sum(sum(mandel_row(size, row)) for row in range(start, size, step))


def mandel_parts(size: int, number: int = 32) -> list[tuple[Any, ...]]:
    return [(mandel_rows, size, start, number) for start in range(number)]


# --- integrate -------------------------------------------------------------------------------------

EPSILON = 1e-3


def curve(x: float) -> float:
    return (x * x + 1.0) * x


def integrate_plain(x1: float, y1: float, x2: float, y2: float, area: float) -> float:
    """Halve an interval until the trapezoids of the halves agree with its own."""
    middle = (x1 + x2) / 2
    y = curve(middle)
    left = (y1 + y) / 2 * (middle - x1)
    right = (y + y2) / 2 * (x2 - middle)
    if abs(left + right - area) < EPSILON:
        return left + right
    return integrate_plain(x1, y1, middle, y, left) + integrate_plain(middle, y, x2, y2, right)


def integrate(x1: float, y1: float, x2: float, y2: float, area: float) -> float:
    """The same, with a child per half; an interval shorter than 4 is a plain call."""
    if x2 - x1 < 4.0:
        return integrate_plain(x1, y1, x2, y2, area)
    middle = (x1 + x2) / 2
    y = curve(middle)
    left = (y1 + y) / 2 * (middle - x1)
    right = (y + y2) / 2 * (x2 - middle)
    if abs(left + right - area) < EPSILON:
        return left + right
    first = mpsched.spawn(integrate, x1, y1, middle, y, left)
    return integrate(middle, y, x2, y2, right) + first.join()


def interval(x1: float, x2: float) -> tuple[float, float, float, float, float]:
    """Return the arguments of `integrate` for an interval."""
    y1, y2 = curve(x1), curve(x2)
    return x1, y1, x2, y2, (y1 + y2) / 2 * (x2 - x1)


def integrate_parts(end: float, number: int = 64) -> list[tuple[Any, ...]]:
    width = end / number
    return [(integrate_plain, *interval(i * width, (i + 1) * width)) for i in range(number)]


# --- skynet: a tree of ten children each -----------------------------------------------------------


def skynet(first: int, size: int) -> int:
    """Return the sum of `size` numbers from `first` on, each by a task of its own."""
    if size == 1:
        return first
    step = size // 10
    tasks = [mpsched.spawn(skynet, first + i * step, step) for i in range(10)]
    return sum(task.join() for task in reversed(tasks))


def skynet_dask(first: int, size: int) -> int:
    if size == 1:
        return first
    step = size // 10
    return sum(_dask_wait([_dask_submit(skynet_dask, first + i * step, step) for i in range(10)]))


# --- loops, steals, fan-outs -----------------------------------------------------------------------


def cheap(_: int) -> None:
    """An item that costs next to nothing."""


def loop_overhead(items: int) -> float:
    """Seconds that `for_each` takes longer than a plain loop; each the best of five."""

    def plain() -> None:
        for item in range(items):
            cheap(item)

    loop = min(timed(plain)[0] for _ in range(5))
    ours = min(timed(mpsched.parallel.for_each, cheap, range(items))[0] for _ in range(5))
    return ours - loop


def give_away(children: int) -> list[float]:
    """Seconds from the spawn of each child to its result, less those in its function.

    An idle worker asks for work all the time. This one goes on spawning and joining others: that is
    when it looks who has asked. (A child of some microseconds would not be given away so soon.)
    """
    taken = []
    for number in range(children):
        begun = time.perf_counter()
        child = mpsched.spawn(work.spin, 100.0)
        while not child.done():
            mpsched.spawn(cheap, number).join()
        taken.append(time.perf_counter() - begun - child.join())
    return taken


def nap(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


def fan_out(children: int, seconds: float) -> int:
    """Spawn naps and join them in the order of the spawns."""
    tasks = [mpsched.spawn(nap, seconds) for _ in range(children)]
    return sum(task.join() == seconds for task in tasks)


def call(part: tuple[Any, ...]) -> Any:
    """Call one of the `*_parts`."""
    return part[0](*part[1:])
