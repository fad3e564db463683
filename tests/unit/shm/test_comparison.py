"""Whether two buffers hold the same bytes: every byte counts, whoever compares it."""

from __future__ import annotations

import threading

import pytest

from mpsched._base import cpus
from mpsched._shm import comparison

np = pytest.importorskip("numpy")

BLOCK = 1 << 12


@pytest.fixture(params=[1, 2, 4, 9])
def cores(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Comparisons are shared from 64 KiB on, in small blocks, on so many cores."""
    monkeypatch.setattr(comparison, "_SHARED_FROM", 1 << 16)
    monkeypatch.setattr(comparison, "_BLOCK", BLOCK)
    monkeypatch.setattr(cpus, "affinity_count", lambda: request.param)
    return int(request.param)


def views(size: int) -> tuple[memoryview, memoryview]:
    """Two buffers with the same random bytes."""
    one = np.random.default_rng(size).integers(0, 256, size, "u1")
    return memoryview(one), memoryview(one.copy())


@pytest.mark.usefixtures("cores")
@pytest.mark.parametrize("size", [1 << 16, (1 << 16) + 1, 40 * BLOCK - 1, 40 * BLOCK])
def test_comparison_every_place_counts(size: int) -> None:
    """One changed byte is seen wherever it is: first and last, and on either side of a block's end."""
    one, other = views(size)
    assert comparison.equal(one, other)
    for place in {0, 1, size - 1, size - 2, size // 2, BLOCK - 1, BLOCK, 7 * BLOCK, size - BLOCK}:
        other[place] ^= 1
        assert not comparison.equal(one, other), place
        other[place] ^= 1
    assert comparison.equal(one, other)


def test_comparison_is_shared_out(cores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many threads as there are cores take part, at most four, and none is left behind."""
    parties = min(cores, 4)
    here = threading.Barrier(parties)
    threads = set()

    def noting(_memcmp: object, _one: int, _other: int, _start: int, _count: int) -> bool:
        if threading.get_ident() not in threads:
            threads.add(threading.get_ident())
            here.wait(60)
        return True

    monkeypatch.setattr(comparison, "_equal_at", noting)
    before = threading.active_count()
    assert comparison.equal(*views(64 * BLOCK))
    assert len(threads) == parties
    assert threading.active_count() == before


@pytest.mark.usefixtures("cores")
def test_comparison_without_threads_goes_on_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no thread can be started the caller compares everything."""

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    one, other = views(40 * BLOCK)
    assert comparison.equal(one, other)
    other[-1] ^= 1
    assert not comparison.equal(one, other)


@pytest.mark.usefixtures("cores")
def test_comparison_ended_by_an_exception_leaves_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt in the caller's thread ends all of them before it goes on."""
    caller = threading.get_ident()
    came = threading.Event()

    def interrupted(*_args: object) -> bool:
        if threading.get_ident() == caller:
            came.set()
            raise KeyboardInterrupt
        return came.wait(60)

    monkeypatch.setattr(comparison, "_equal_at", interrupted)
    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        comparison.equal(*views(64 * BLOCK))
    assert threading.active_count() == before
