"""The default width of a pool, on cgroup trees made for the purpose."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING

import pytest

from mpsched._base import cpus

if TYPE_CHECKING:
    from pathlib import Path


class Tree:
    """A `/proc/self` and mounted cgroup hierarchies in a temporary folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.proc = root / "proc"
        self.proc.mkdir()
        self._groups: list[str] = []
        self._mounts: list[str] = ["22 1 0:21 / /proc rw - proc proc rw"]
        self._write()

    def mount_v2(self, group: str, *, shows: str = "/", at: str = "sys/cgroup") -> None:
        self._groups.append(f"0::{group}")
        self._mounts.append(f"29 1 0:26 {shows} {self._escaped(at)} rw shared:9 - cgroup2 none rw")
        self._write()

    def mount_v1(self, group: str, *, shows: str = "/", at: str = "sys/cpu") -> None:
        self._groups.append(f"4:cpu,cpuacct:{group}")
        self._groups.append("9:memory:/elsewhere")
        self._mounts.append(
            f"30 1 0:27 {shows} {self._escaped(at)} rw - cgroup cgroup rw,cpu,cpuacct"
        )
        self._mounts.append(f"31 1 0:28 / {self._escaped('sys/memory')} rw - cgroup c rw,memory")
        self._write()

    def put(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def quota(self) -> float | None:
        return cpus.cgroup_quota(self.proc)

    def _escaped(self, at: str) -> str:
        return str(self.root / at).replace(" ", r"\040")

    def _write(self) -> None:
        (self.proc / "cgroup").write_text("".join(f"{line}\n" for line in self._groups))
        (self.proc / "mountinfo").write_text("".join(f"{line}\n" for line in self._mounts))


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def test_cpus_v2_quota_is_quota_over_period(tree: Tree) -> None:
    """`cpu.max` of 150000 in 100000 us is one and a half CPUs."""
    tree.mount_v2("/app")
    tree.put("sys/cgroup/app/cpu.max", "150000 100000\n")
    assert tree.quota() == 1.5


@pytest.mark.parametrize("text", ["max 100000\n", "", "\n", "0 100000\n", "rubbish\n"])
def test_cpus_v2_file_without_a_limit_limits_nothing(tree: Tree, text: str) -> None:
    """A group that says `max`, nothing, or what is not understood has no quota."""
    tree.mount_v2("/app")
    tree.put("sys/cgroup/app/cpu.max", text)
    assert tree.quota() is None


def test_cpus_v2_nested_group_takes_the_tightest_ancestor(tree: Tree) -> None:
    """The smallest quota counts, wherever between the group and the root it stands."""
    tree.mount_v2("/a/b/c")
    tree.put("sys/cgroup/a/cpu.max", "300000 100000\n")
    tree.put("sys/cgroup/a/b/cpu.max", "50000 25000\n")
    tree.put("sys/cgroup/a/b/c/cpu.max", "max 100000\n")
    assert tree.quota() == 2.0


def test_cpus_v2_group_beside_ours_does_not_count(tree: Tree) -> None:
    """A sibling's quota, and that of a group within ours, are not ours."""
    tree.mount_v2("/a/b")
    tree.put("sys/cgroup/a/b/inner/cpu.max", "100000 100000\n")
    tree.put("sys/cgroup/a/other/cpu.max", "100000 100000\n")
    assert tree.quota() is None


def test_cpus_v1_quota_is_quota_over_period(tree: Tree) -> None:
    """`cpu.cfs_quota_us` over `cpu.cfs_period_us`, in the hierarchy of the cpu controller."""
    tree.mount_v1("/docker/1f2e")
    tree.put("sys/cpu/docker/1f2e/cpu.cfs_quota_us", "250000\n")
    tree.put("sys/cpu/docker/1f2e/cpu.cfs_period_us", "100000\n")
    tree.put("sys/memory/elsewhere/cpu.cfs_quota_us", "1\n")
    tree.put("sys/memory/elsewhere/cpu.cfs_period_us", "100000\n")
    assert tree.quota() == 2.5


@pytest.mark.parametrize(("quota", "period"), [("-1\n", "100000\n"), ("", ""), ("100000\n", "0\n")])
def test_cpus_v1_group_without_a_limit_limits_nothing(tree: Tree, quota: str, period: str) -> None:
    """A quota of -1, empty files and a period of 0 limit nothing."""
    tree.mount_v1("/app")
    tree.put("sys/cpu/app/cpu.cfs_quota_us", quota)
    tree.put("sys/cpu/app/cpu.cfs_period_us", period)
    assert tree.quota() is None


def test_cpus_v1_nested_group_takes_the_tightest_ancestor(tree: Tree) -> None:
    """An ancestor's quota counts in v1 too."""
    tree.mount_v1("/a/b")
    tree.put("sys/cpu/a/cpu.cfs_quota_us", "100000\n")
    tree.put("sys/cpu/a/cpu.cfs_period_us", "100000\n")
    tree.put("sys/cpu/a/b/cpu.cfs_quota_us", "400000\n")
    tree.put("sys/cpu/a/b/cpu.cfs_period_us", "100000\n")
    assert tree.quota() == 1.0


def test_cpus_both_versions_mounted_take_the_tighter(tree: Tree) -> None:
    """Where v1 and v2 are both mounted, both are read."""
    tree.mount_v2("/app")
    tree.mount_v1("/app")
    tree.put("sys/cgroup/app/cpu.max", "400000 100000\n")
    tree.put("sys/cpu/app/cpu.cfs_quota_us", "300000\n")
    tree.put("sys/cpu/app/cpu.cfs_period_us", "100000\n")
    assert tree.quota() == 3.0


def test_cpus_container_that_sees_its_host_path_uses_the_mount_point(tree: Tree) -> None:
    """The host's path of the group is not mounted here: the mount point is the group."""
    tree.mount_v2("/docker/1f2e", shows="/docker/1f2e")
    tree.put("sys/cgroup/cpu.max", "200000 100000\n")
    assert tree.quota() == 2.0


def test_cpus_mount_of_a_part_shows_the_rest_of_the_path(tree: Tree) -> None:
    """With `/a` mounted, the group `/a/b` is the folder `b` of the mount point."""
    tree.mount_v2("/a/b", shows="/a")
    tree.put("sys/cgroup/b/cpu.max", "100000 100000\n")
    assert tree.quota() == 1.0


@pytest.mark.parametrize("group", ["/../outside", "/other"])
def test_cpus_group_outside_the_mount_falls_back_to_the_mount_point(tree: Tree, group: str) -> None:
    """A group above or beside what is mounted is read as the mount point itself."""
    tree.mount_v2(group, shows="/a")
    tree.put("sys/cgroup/cpu.max", "100000 100000\n")
    tree.put("outside/cpu.max", "50000 100000\n")
    assert tree.quota() == 1.0


def test_cpus_mount_point_with_a_space_is_found(tree: Tree) -> None:
    """Mountinfo writes a space as an octal escape."""
    tree.mount_v2("/app", at="sys/c group")
    tree.put("sys/c group/app/cpu.max", "100000 100000\n")
    assert tree.quota() == 1.0


def test_cpus_without_proc_nothing_limits(tmp_path: Path) -> None:
    """No `/proc` (another system, a bare chroot) means no quota."""
    assert cpus.cgroup_quota(tmp_path / "nowhere") is None


@pytest.mark.parametrize(
    ("allowed", "quota", "width"),
    [(8, None, 8), (8, 1.5, 2), (8, 0.2, 1), (2, 6.0, 2), (8, 2.0, 2), (1, 0.5, 1)],
)
def test_cpus_default_width_is_the_smaller_rounded_up(
    monkeypatch: pytest.MonkeyPatch, allowed: int, quota: float | None, width: int
) -> None:
    """min(affinity, quota), a fraction rounded up, at least 1."""
    monkeypatch.setattr(cpus, "affinity_count", lambda: allowed)
    monkeypatch.setattr(cpus, "cgroup_quota", lambda: quota)
    assert cpus.default_workers() == width


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity masks here")
def test_cpus_affinity_mask_is_honoured() -> None:
    """A process pinned to one CPU has a default width of 1."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        assert cpus.affinity_count() == 1
        assert cpus.default_workers() == 1
    finally:
        os.sched_setaffinity(0, before)


def test_cpus_machine_count_where_there_are_no_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without affinity masks all CPUs count; an unknown number of CPUs is 1."""
    monkeypatch.delattr(os, "process_cpu_count", raising=False)
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 12)
    assert cpus.affinity_count() == 12
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert cpus.affinity_count() == 1


def test_cpus_default_on_this_machine_is_within_the_mask() -> None:
    """On the machine of the test the default is between 1 and what the mask and quota allow."""
    quota = cpus.cgroup_quota()
    most = cpus.affinity_count()
    assert 1 <= cpus.default_workers() <= most
    if quota is not None:
        assert cpus.default_workers() <= max(1, math.ceil(quota))
