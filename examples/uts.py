"""Unbalanced tree search: a tree that only shows its shape when it is walked, counted exactly.

Prints the number of nodes of a random tree whose shape SHA-1 decides, counted by a plain loop and by
children that may be stolen, and how many were, and whether both agree. The number
proves that each child ran exactly once. With `full` as argument it is the tree T3 of the UTS benchmark
(4,112,897 nodes, 1,572 deep), else the first 100 of its 2,000 subtrees.
"""

from __future__ import annotations

import hashlib
import struct
import sys

import mpsched

ROOT, CHANCE, BRANCHES = 2000, 0.124875, 8
NUMBER = struct.Struct(">I")


def node(parent: bytes, index: int) -> bytes:
    """Return a child of a node: 20 bytes."""
    return hashlib.sha1(parent + NUMBER.pack(index)).digest()


def children(state: bytes) -> list[bytes]:
    """Return the children of a node: eight, seldom, else none."""
    if (NUMBER.unpack_from(state, 16)[0] & 0x7FFFFFFF) / 2**31 >= CHANCE:
        return []
    return [node(state, index) for index in range(BRANCHES)]


def plain(state: bytes) -> int:
    """Count the nodes of a subtree with a stack of one's own."""
    found, todo = 0, [state]
    while todo:
        found += 1
        todo += children(todo.pop())
    return found


def count(state: bytes) -> int:
    """The same with a child for each node."""
    found = 1
    for child in [mpsched.spawn(count, one) for one in children(state)][::-1]:
        found += child.join()
    return found


def main() -> None:
    """Count both ways."""
    width = ROOT if sys.argv[1:] == ["full"] else 100
    root = hashlib.sha1(bytes(16) + NUMBER.pack(42)).digest()
    subtrees = [node(root, index) for index in range(width)]
    with mpsched.WorkStealingExecutor() as ex:
        wanted = 1 + sum(ex.map(plain, subtrees))
        found = 1 + sum(mpsched.parallel.map(count, subtrees))
        print(f"children that another worker ran: {ex.stats().children_run:,}")
    print(f"{found:,} nodes, {'as' if found == wanted else 'NOT as'} by a plain loop: {wanted:,}")


if __name__ == "__main__":
    main()
