"""Samples while a hypervisor keeps the CPUs to itself."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest

from benchmarks import calm
from benchmarks.calm import Meter, Sample, calmest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def taker(*samples: Sample) -> tuple[Callable[[], Sample], list[Sample]]:
    left = list(samples)
    return lambda: left.pop(0), left


def test_a_calm_sample_is_the_only_one() -> None:
    """What is at the limit is calm enough."""
    take, left = taker(Sample(1.0, 0.02), Sample(9.0, 0.0))
    assert calmest(take, limit=0.02, tries=5) == Sample(1.0, 0.02)
    assert len(left) == 1


def test_a_sample_is_taken_again_until_one_is_calm() -> None:
    """Whatever its value is: also if it is a worse one."""
    take, left = taker(Sample(9.0, 0.3), Sample(8.0, 0.1), Sample(1.0, 0.01), Sample(9.0, 0.0))
    assert calmest(take, limit=0.02, tries=5) == Sample(1.0, 0.01)
    assert len(left) == 1


def test_the_calmest_counts_where_none_is_calm() -> None:
    """It says how much was stolen from it; after `seconds` no other one is begun."""
    samples = (Sample(1.0, 0.3), Sample(2.0, 0.1), Sample(9.0, 0.2), Sample(9.0, 0.0))
    take, left = taker(*samples)
    assert calmest(take, limit=0.02, tries=3) == Sample(2.0, 0.1)
    assert len(left) == 1
    take, left = taker(*samples)
    assert calmest(take, limit=0.02, tries=3, seconds=0.0) == Sample(1.0, 0.3)
    assert len(left) == 3


@pytest.mark.parametrize(
    ("line", "ticks"),
    [("cpu  10 0 20 30 0 0 0 77 0 0\ncpu0 1 2", 77), ("cpu  10 0 20 30\n", 0)],
)
def test_stolen_ticks_are_read(
    line: str, ticks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the line of all CPUs; kernels from before they were counted tell nothing."""
    stat = tmp_path / "stat"
    monkeypatch.setattr(calm, "STAT", stat)
    assert calm.stolen_ticks() == 0  # a system without the file
    stat.write_text(line, encoding="ascii")
    assert calm.stolen_ticks() == ticks


def test_meter_gives_a_share_of_all_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ticks since it was made, of those that there were; never more than all."""
    now, ticks = 100.0, 1_000
    monkeypatch.setattr(calm, "stolen_ticks", lambda: ticks)
    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr(os, "sysconf", lambda _: 100)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    meter = Meter()
    now = 101.0
    assert meter.stolen() == 0.0
    ticks += 50
    assert meter.stolen() == 0.25
    ticks += 500
    assert meter.stolen() == 1.0
