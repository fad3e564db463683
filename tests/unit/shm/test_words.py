"""Words and fences, as far as one process can see them."""

from __future__ import annotations

import pytest

from mpsched._shm import words


def test_words_signed_is_twos_complement() -> None:
    """What a record stores of a negative int reads as that int."""
    for value in (0, 1, -1, (1 << 63) - 1, -(1 << 63)):
        assert words.signed(value & words.MASK) == value


def test_words_fence_leaves_its_lock_free() -> None:
    """A fence can be followed by the next one."""
    words._fence_x86()
    words._fence_x86()
    assert not words._RMW.locked()


def test_words_fence_that_meets_another_thread_goes_through_the_kernel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A lock that is taken is only read, which orders nothing; and it is not released for the other."""
    made: list[int] = []
    monkeypatch.setattr(words, "_fence_kernel", lambda: made.append(1))
    with words._RMW:
        words._fence_x86()
        assert made == [1]
        assert words._RMW.locked()
    words._fence_x86()
    assert made == [1]


def test_words_fence_of_the_kernel_never_waits() -> None:
    """It is also made where there is no sched_yield."""
    words._fence_kernel()
    with pytest.MonkeyPatch.context() as patch:
        patch.delattr("os.sched_yield", raising=False)
        words._fence_kernel()
