"""The memory that is left, on files made for the purpose."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from mpsched._base import memory

if TYPE_CHECKING:
    from pathlib import Path

GIB = 1 << 30


class Machine:
    """A machine with 10 GiB left and 1 GiB of swap, and a mounted cgroup tree."""

    def __init__(self, root: Path, *, v1: bool = False) -> None:
        self.root = root
        (root / "meminfo").write_text(
            f"MemTotal: {32 * GIB // 1024} kB\nMemAvailable: {10 * GIB // 1024} kB\n"
            f"SwapFree:  {GIB // 1024} kB\nHugePages_Total: 0\n"
        )
        controllers, kind = ("memory", "cgroup") if v1 else ("", "cgroup2")
        (root / "cgroup").write_text(f"4:{controllers}:/outer/inner\n" if v1 else "0::/outer/inner")
        (root / "mountinfo").write_text(
            f"29 1 0:26 / {root}/fs rw shared:9 - {kind} none rw,{controllers}\n"
        )
        (root / "fs/outer/inner").mkdir(parents=True)

    def put(self, group: str, **files: str) -> None:
        for name, text in files.items():
            (self.root / "fs" / group / name.replace("__", ".")).write_text(text)

    def left(self) -> int | None:
        return memory.available_bytes(self.root, self.root / "meminfo")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_memory_without_a_limit_is_what_the_machine_has(machine: Machine) -> None:
    """Without a limit, the free memory and the free swap count."""
    machine.put("outer", memory__max="max\n", memory__current="5\n")
    assert machine.left() == 11 * GIB


def test_memory_tightest_group_counts(machine: Machine) -> None:
    """The group around the process's own limits it as well; its file cache can be dropped."""
    machine.put("outer/inner", memory__max=f"{8 * GIB}\n", memory__current=f"{GIB}\n")
    machine.put(
        "outer",
        memory__max=f"{4 * GIB}\n",
        memory__current=f"{3 * GIB}\n",
        memory__stat=f"anon 77\ninactive_file {GIB // 2}\nactive_file {GIB // 4}\n",
    )
    assert machine.left() == 2 * GIB + GIB * 3 // 4


def test_memory_group_that_is_over_its_limit_has_nothing_left(tmp_path: Path) -> None:
    """A group above its limit has 0 bytes left and not fewer."""
    machine = Machine(tmp_path)
    (tmp_path / "meminfo").write_text("MemAvailable: 1000 kB\n")
    machine.put("outer/inner", memory__max="100\n", memory__current="300\n")
    assert machine.left() == 0


def test_memory_v1_limit_counts(tmp_path: Path) -> None:
    """The files of cgroup v1 are read as well."""
    machine = Machine(tmp_path, v1=True)
    machine.put(
        "outer/inner",
        memory__limit_in_bytes=f"{2 * GIB}\n",
        memory__usage_in_bytes=f"{GIB}\n",
    )
    assert machine.left() == 2 * GIB


def test_memory_unknown_where_the_system_does_not_say(tmp_path: Path) -> None:
    """Without `/proc`, nothing is claimed."""
    assert memory.available_bytes(tmp_path, tmp_path / "meminfo") is None


def test_memory_on_this_machine_is_plausible() -> None:
    """The real files are understood: there is memory for a test."""
    left = memory.available_bytes()
    assert left is None or left > 1 << 20
