"""Which deaths are put down to memory, on counters made for the purpose."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from mpsched._pool.oom import OomWatch

if TYPE_CHECKING:
    from pathlib import Path

KILLED = -signal.SIGKILL


class Machine:
    """Counters of a machine, of a group `/outer/inner` in it, and of the one around that."""

    def __init__(self, root: Path, version: int) -> None:
        self.root = root
        self.groups = root / "fs"
        (self.groups / "outer/inner").mkdir(parents=True)
        controller, kind = ("memory", "cgroup") if version == 1 else ("", "cgroup2")
        number = 4 if version == 1 else 0
        (root / "cgroup").write_text(f"{number}:{controller}:/outer/inner\n")
        (root / "mountinfo").write_text(
            f"29 1 0:26 / {self.groups} rw shared:9 - {kind} none rw,{controller}\n"
        )
        self.machine(7)

    def machine(self, kills: int) -> None:
        (self.root / "vmstat").write_text(f"nr_free_pages 5\noom_kill {kills}\n")

    def inner(self, name: str, kills: int) -> None:
        self._count(self.groups / "outer/inner" / name, kills)

    def outer(self, name: str, kills: int) -> None:
        self._count(self.groups / "outer" / name, kills)

    def _count(self, path: Path, kills: int) -> None:
        path.write_text(f"low 0\noom 9\noom_kill {kills}\noom_group_kill 0\n")

    def watch(self) -> OomWatch:
        return OomWatch(self.root, self.root / "vmstat")


@pytest.mark.parametrize(("version", "name"), [(1, "memory.oom_control"), (2, "memory.events")])
def test_oom_own_group_counts_where_it_can(tmp_path: Path, version: int, name: str) -> None:
    """A kill in another container is none of ours, and neither is one in the group around."""
    machine = Machine(tmp_path, version)
    machine.inner(name, 3)
    machine.outer(name, 3)
    watch = machine.watch()
    machine.machine(8)
    machine.outer(name, 4)
    assert watch.suspect(KILLED) is None
    machine.inner(name, 4)
    assert watch.suspect(KILLED) == "memory"


def test_oom_group_around_counts_for_one_without_a_counter(tmp_path: Path) -> None:
    """The controller may be on further up only, where kills of all below are counted."""
    machine = Machine(tmp_path, 2)
    machine.outer("memory.events", 0)
    watch = machine.watch()
    machine.machine(8)
    assert watch.suspect(KILLED) is None
    machine.outer("memory.events", 1)
    assert watch.suspect(KILLED) == "memory"


@pytest.mark.parametrize("text", [None, "", "under_oom 0\n", "oom_kill many\n"])
def test_oom_machine_counts_where_no_group_does(tmp_path: Path, text: str | None) -> None:
    """Old kernels, and systems without groups, have the machine's counter or none."""
    machine = Machine(tmp_path, 1)
    if text is not None:
        (machine.groups / "outer/inner/memory.oom_control").write_text(text)
    watch = machine.watch()
    assert watch.suspect(KILLED) is None
    machine.machine(8)
    assert watch.suspect(KILLED) == "memory"
    (tmp_path / "vmstat").unlink()
    assert watch.suspect(KILLED) is None


def test_oom_kills_are_put_down_to_as_many_deaths(tmp_path: Path) -> None:
    """Two kills, two deaths; another end than SIGKILL is never put down to memory."""
    machine = Machine(tmp_path, 2)
    machine.inner("memory.events", 0)
    watch = machine.watch()
    machine.inner("memory.events", 2)
    ends = [1, None, KILLED, -signal.SIGSEGV, KILLED, KILLED]
    assert [watch.suspect(end) for end in ends] == [None, None, "memory", None, "memory", None]


def test_oom_old_kills_are_put_down_to_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A count that grew more than a second ago was somebody else's, in the same group."""
    now = [100.0]
    monkeypatch.setattr("mpsched._pool.oom.time.monotonic", lambda: now[0])
    machine = Machine(tmp_path, 2)
    machine.inner("memory.events", 0)
    watch = machine.watch()
    machine.inner("memory.events", 3)
    assert watch.suspect(KILLED) == "memory"
    now[0] += 0.9
    assert watch.suspect(KILLED) == "memory"
    now[0] += 0.2
    assert watch.suspect(KILLED) is None
