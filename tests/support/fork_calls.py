"""Recursive functions that tests run with and without pools."""

from __future__ import annotations

import hashlib
import random
import struct
import time
from typing import TYPE_CHECKING, Any

import mpsched
from tests.support.forkcalls import let_take

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    import numpy as np
    from numpy.typing import NDArray


def fib(n: int) -> int:
    if n < 2:
        return n
    first = mpsched.spawn(fib, n - 1)
    return fib(n - 2) + first.join()


def add(one: int, other: int) -> int:
    return one + other


def square(n: int) -> int:
    return n * n


def fail(text: str) -> None:
    raise ValueError(text)


def fail_at(n: int, bad: Sequence[int]) -> int:
    if n in bad:
        raise ValueError(f"item {n}")
    return n


def nap(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


# --- joins ----------------------------------------------------------------------------------------


def joined_in_order(count: int, order: str, seed: int = 0) -> list[int]:
    """Spawn calls and join them first to last, last to first, or as it comes."""
    handles = [mpsched.spawn(square, n) for n in range(count)]
    places = list(range(count))
    if order == "lifo":
        places.reverse()
    elif order == "random":
        random.Random(seed).shuffle(places)
    found = dict.fromkeys(range(count), -1)
    for place in places:
        found[place] = handles[place].join()
    return list(found.values())


def tree(depth: int, order: str) -> int:
    """A tree of three children each, at every node joined in one order; returns its leaves."""
    if depth == 0:
        return 1
    handles = [mpsched.spawn(tree, depth - 1, order) for _ in range(3)]
    if order == "lifo":
        handles.reverse()
    elif order == "middle":
        handles[0], handles[1] = handles[1], handles[0]
    return sum(handle.join() for handle in handles)


def calls_of_every_form() -> list[Any]:
    handles: list[mpsched.Handle[Any]] = [
        mpsched.spawn(tuple),
        mpsched.spawn(square, 3),
        mpsched.spawn(add, 3, 4),
        mpsched.spawn(add, 3, other=5),
        mpsched.spawn(add, one=3, other=6),
        mpsched.spawn(sorted, [3, 1, 2], reverse=True),
        mpsched.spawn(lambda n: n + 1, 1),
    ]
    return [handle.join() for handle in handles]


def joined_again() -> tuple[int, int, bool, list[str]]:
    """Ask good and bad children twice each."""
    good, bad = mpsched.spawn(square, 3), mpsched.spawn(fail, "twice")
    texts, errors = [], []
    for _ in range(2):
        try:
            bad.join()
        except ValueError as error:
            texts.append(str(error))
            errors.append(error)
    return good.join(), good.result(), good.done() and bad.done(), texts


def all_of(*values: int) -> tuple[Any, ...]:
    return tuple(mpsched.join_all(*[(square, value) for value in values], (add, 1, 2)))


def outcome(fn: Callable[..., Any], *args: Any) -> Any:
    """Return what a call returns, or (class name, text, texts of the siblings) of what it raises."""
    try:
        return fn(*args)
    except Exception as error:
        siblings = [str(one) for one in getattr(error, "siblings", ())]
        return type(error).__name__, str(error), siblings


def unjoined(*texts: str, own: str = "") -> str:
    """Leave failing children open, among others."""
    mpsched.spawn(square, 1)
    for text in texts:
        mpsched.spawn(fail, text)
        mpsched.spawn(fib, 3)
    if own:
        raise KeyError(own)
    return "returned"


def unjoined_in_child(*texts: str) -> str:
    """A child that leaves failing children open fails itself, at its join."""
    return mpsched.spawn(unjoined, *texts).join()


def unjoined_write(table: NDArray[np.uint8]) -> None:
    """Leave children open that write down that they ran."""
    for place in range(len(table)):
        mpsched.spawn(mark, table, place)


def mark(table: NDArray[np.uint8], place: int) -> None:
    table[place] += 1


# --- scopes ---------------------------------------------------------------------------------------


def scoped(*values: int) -> list[int]:
    with mpsched.scope() as s:
        handles = [s.spawn(square, value) for value in values]
    return [handle.result() for handle in handles]


def scope_of_failures(*texts: str, group: bool = False) -> str:
    with mpsched.scope(group=group) as s:
        s.spawn(square, 2)
        for text in texts:
            s.spawn(fail, text)
    return "no error"


def scope_whose_body_fails() -> str:
    with mpsched.scope() as s:
        s.spawn(fib, 5)
        fail_with(KeyError("body"))
    return "no error"


def fail_with(error: BaseException) -> None:
    raise error


# --- shared state ---------------------------------------------------------------------------------


def sort_in_place(values: list[int], low: int = 0, high: int | None = None) -> list[int]:
    """Quicksort as everybody writes it: it changes the list that it was given."""
    if high is None:
        high = len(values) - 1
    if low >= high:
        return values
    pivot, i, j = values[(low + high) // 2], low, high
    while i <= j:
        while values[i] < pivot:
            i += 1
        while values[j] > pivot:
            j -= 1
        if i <= j:
            values[i], values[j] = values[j], values[i]
            i, j = i + 1, j - 1
    left = mpsched.spawn(sort_in_place, values, low, j)
    sort_in_place(values, i, high)
    left.join()
    return values


def sort_by_value(values: list[int]) -> list[int]:
    if len(values) < 8:
        return sorted(values)
    pivot = values[len(values) // 2]
    small = mpsched.spawn(sort_by_value, [v for v in values if v < pivot])
    large = sort_by_value([v for v in values if v > pivot])
    return small.join() + [v for v in values if v == pivot] + large


# --- a tree that counts itself --------------------------------------------------------------------

_NUMBER = struct.Struct(">I")


def root(r: int, width: int) -> list[bytes]:
    """Return the first children of the root of the UTS tree with the seed `r`."""
    state = hashlib.sha1(bytes(16) + _NUMBER.pack(r)).digest()
    return [hashlib.sha1(state + _NUMBER.pack(i)).digest() for i in range(width)]


def below(node: bytes) -> list[bytes]:
    """Return the children of a node of T3 (q = 0.124875, m = 8)."""
    if (_NUMBER.unpack_from(node, 16)[0] & 0x7FFFFFFF) / 2**31 >= 0.124875:
        return []
    return [hashlib.sha1(node + _NUMBER.pack(i)).digest() for i in range(8)]


def uts_plain(nodes: list[bytes]) -> int:
    found, todo = 0, [*nodes]
    while todo:
        found += 1
        todo += below(todo.pop())
    return found


def key_of(node: bytes) -> int:
    return int.from_bytes(node[:8], "big")


def uts_keys(nodes: list[bytes]) -> list[int]:
    """Return the keys of all nodes of some subtrees, sorted: a node's place is its place here."""
    keys, todo = [], [*nodes]
    while todo:
        node = todo.pop()
        keys.append(key_of(node))
        todo += below(node)
    assert len({*keys}) == len(keys)
    return sorted(keys)


def uts(node: bytes, order: str, keys: NDArray[np.uint64], table: NDArray[np.uint8]) -> int:
    """Count a subtree by children; each notes in its own byte of the table that it ran."""
    table[keys.searchsorted(keys.dtype.type(key_of(node)))] += 1
    found = 1
    if order == "scope":
        with mpsched.scope() as s:
            handles = [s.spawn(uts, child, order, keys, table) for child in below(node)]
        return found + sum(handle.result() for handle in handles)
    if order == "together":
        calls = [(uts, child, order, keys, table) for child in below(node)]
        counts: tuple[int, ...] = mpsched.join_all(*calls)
        return found + sum(counts)
    handles = [mpsched.spawn(uts, child, order, keys, table) for child in below(node)]
    if order == "lifo":
        handles.reverse()
    return found + sum(handle.join() for handle in handles)


def uts_all(
    width: int,
    order: str,
    keys: NDArray[np.uint64],
    table: NDArray[np.uint8],
    taken: int = 0,
) -> int:
    """Count a tree; so many children of the root are with others before it joins any."""
    handles = [mpsched.spawn(uts, node, order, keys, table) for node in root(42, width)]
    if taken:
        let_take(handles, taken)
    return sum(handle.join() for handle in handles)


# --- loops ----------------------------------------------------------------------------------------


def loops(size: int, grain: int | None) -> list[Any]:
    """Each loop over a range and over lists of some kind; what it gives, or how it fails."""
    p = mpsched.parallel
    words = [str(n) for n in range(size)]
    return [
        p.map(square, range(size), grain=grain),
        p.map(len, words, grain=grain),
        p.map(square, {n: n for n in range(size)}, grain=grain),
        p.map(square, (n for n in range(size)), grain=grain),
        p.reduce(add, range(1, size + 1), grain=grain),
        p.reduce(add, words, initial="<", grain=grain),
        p.map_reduce(square, add, range(size), initial=0, grain=grain),
        p.map_reduce(str, add, range(size), initial="", grain=grain),
        outcome(p.for_each, square, range(size)),
    ]


def loops_plain(size: int) -> list[Any]:
    """What `loops` gives."""
    words = "".join(str(n) for n in range(size))
    squares = [n * n for n in range(size)]
    return [
        squares,
        [len(str(n)) for n in range(size)],
        squares,
        squares,
        size * (size + 1) // 2,
        "<" + words,
        sum(squares),
        words,
        None,
    ]


def for_each_mark(table: NDArray[np.uint8], seconds: float, grain: int | None) -> None:
    def item(n: int) -> None:
        time.sleep(seconds)
        mark(table, n)

    mpsched.parallel.for_each(item, range(len(table)), grain=grain)


def who_runs(size: int, width: int) -> set[int]:
    """Return which workers ran items of a loop; none is over before `width` have begun."""
    begun = mpsched.shared_array(size, "u1")

    def item(number: int) -> int:
        begun[number] = 1
        wait_until_marked(begun, width)
        worker = mpsched.current_worker()
        return -1 if worker is None else worker.index

    return set(mpsched.parallel.map(item, range(size)))


def failing_map(size: int, bad: Sequence[int]) -> list[int]:
    return mpsched.parallel.map(lambda n: fail_at(n, bad), range(size))


def in_child(fn: Callable[..., Any], *args: Any) -> Any:
    return mpsched.spawn(fn, *args).join()


def unjoined_in_child_own() -> str:
    return mpsched.spawn(unjoined, "one", own="own").join()


def last_digit(value: int) -> int:
    return value % 10


def for_each_until(table: NDArray[np.uint8], bad: int, seconds: float) -> None:
    """A loop whose item `bad` fails."""

    def item(n: int) -> None:
        time.sleep(seconds)
        fail_at(n, (bad,))
        mark(table, n)

    mpsched.parallel.for_each(item, range(len(table)))


def wait_until_marked(table: NDArray[np.uint8], count: int, deadline_s: float = 60.0) -> None:
    until = time.monotonic() + deadline_s
    while int(table.sum()) < count:
        assert time.monotonic() < until, f"fewer than {count} marks after {deadline_s} s"
        time.sleep(0.002)


@mpsched.resumable
def chain(n: int) -> Generator[mpsched.Handle[int], int, int]:
    if n == 0:
        return 0
    below = yield mpsched.spawn(chain, n - 1)
    return below + 1


@mpsched.resumable
def failing_chain(n: int, catch: int) -> Generator[mpsched.Handle[str], str, str]:
    """Fail at the bottom; the call with `n == catch` catches it."""
    if n == 0:
        raise ValueError("the end")
    try:
        found = yield mpsched.spawn(failing_chain, n - 1, catch)
    except ValueError:
        if n == catch:
            return f"caught at {n}"
        raise
    return found


def blocking_tree(depth: int) -> int:
    if depth == 0:
        with mpsched.blocking(), mpsched.blocking():
            time.sleep(0.001)
        return 1
    left = mpsched.spawn(blocking_tree, depth - 1)
    with mpsched.blocking():
        right = mpsched.spawn(blocking_tree, depth - 1)
        time.sleep(0.001)
    return left.join() + right.join()


def waits_in_threads(count: int) -> list[int]:
    futures = [mpsched.run_blocking(square, n) for n in range(count)]
    return [future.result() for future in futures]


def sort_and_catch(array: NDArray[np.float64]) -> str:
    try:
        mpsched.parallel.sort(array)
    except ValueError:
        return "caught"
    return "sorted"
