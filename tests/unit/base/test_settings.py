"""A pool's constants hold together."""

from __future__ import annotations

import pickle

import pytest

from mpsched._base.settings import Settings


def test_settings_defaults_are_consistent_and_travel() -> None:
    """The defaults pass their own checks, cannot be changed, and pickle."""
    settings = Settings()
    settings.check()
    assert pickle.loads(pickle.dumps(settings)) == settings
    with pytest.raises(AttributeError):
        settings.inbox_slots = 4  # type: ignore[misc]


@pytest.mark.parametrize(
    "name", ["entries_per_worker", "inbox_slots", "result_ring_bytes", "children", "ring_slots"]
)
@pytest.mark.parametrize("value", [-2, 0, 1, 3, 100])
def test_settings_ring_size_that_is_no_power_of_two_is_refused(name: str, value: int) -> None:
    """A ring's index is masked, so its size must be a power of two; the error names the value."""
    with pytest.raises(ValueError, match=rf"{name} .*: {value}$"):
        Settings()._replace(**{name: value}).check()


def test_settings_result_ring_too_small_for_an_error_is_refused() -> None:
    """A quarter of the ring must take the error that says that another one was too large."""
    with pytest.raises(ValueError, match="at least 4096: 2048"):
        Settings(result_ring_bytes=2048).check()


def test_settings_pool_without_spares_is_one() -> None:
    """None is a number of spares; less is not."""
    Settings(max_spares=0).check()
    with pytest.raises(ValueError, match="max_spares must not be negative: -1"):
        Settings(max_spares=-1).check()


@pytest.mark.parametrize("name", sorted({*Settings._fields} - {"max_spares"}))
def test_settings_size_or_wait_of_nothing_is_refused(name: str) -> None:
    """Every size and every wait is positive."""
    with pytest.raises(ValueError, match=name):
        Settings()._replace(**{name: 0}).check()


def test_settings_waits_out_of_order_are_refused() -> None:
    """The first wait of a parked worker is not longer than its longest."""
    with pytest.raises(ValueError, match="must not exceed"):
        Settings(park_first_s=2.0, park_most_s=1.0).check()


def test_settings_window_that_fills_an_inbox_is_refused() -> None:
    """An inbox keeps room for what its worker gives back, beyond what is dispatched ahead."""
    with pytest.raises(ValueError, match=r"window \(1024\) must be smaller"):
        Settings(window=1024, inbox_slots=1024).check()
