"""Rows that wait for their turn."""

from __future__ import annotations

from hypothesis import given, strategies as st

from mpsched.cli.spool import Spool


@given(st.permutations(range(30)), st.sampled_from([0, 50, 1000]), st.sets(st.integers(0, 29)))
def test_spool_gives_rows_in_order(order: list[int], in_memory: int, none: set[int]) -> None:
    """Whatever the order of arrival, in memory or in the file, with rows that are empty."""
    spool = Spool(in_memory)
    given_rows: list[bytes] = []
    for i in order:
        spool.put(i, b"" if i in none else b"row %d\n" % i)
        given_rows += spool.ready()
    spool.close()
    shown = b"".join(given_rows).replace(b"\n\n", b"\n").lstrip(b"\n")
    assert shown == b"".join(b"row %d\n" % i for i in range(30) if i not in none)


def test_spool_rest_passes_over_rows_that_never_came() -> None:
    """At the end of a run that was given up, what there is comes in order."""
    spool = Spool(20)
    for i in (9, 3, 7, 1):
        spool.put(i, b"row %d\n" % i)
    assert list(spool.ready()) == []
    assert list(spool.rest()) == [b"row 1\n", b"row 3\n", b"row 7\n", b"row 9\n"]
    assert list(spool.rest()) == []
    spool.close()


def test_spool_file_does_not_grow_for_ever() -> None:
    """Once its rows have been given, the file begins anew."""
    spool = Spool(0)
    for start in range(0, 1000, 2):
        spool.put(start + 1, b"x" * 99 + b"\n")
        spool.put(start, b"y\n")
        assert len(list(spool.ready())) == 2
    assert spool._file is not None
    assert spool._file.seek(0, 2) == 0
    assert len(spool._offsets) == 0
    spool.close()
