"""Where the limits of this process's control groups are stated. See README.md, "CPUs"."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    StrPath = str | os.PathLike[str]

PROC_SELF = "/proc/self"


def read(path: StrPath, encoding: str = "ascii", errors: str = "strict") -> str:
    """Return the text of a small file; `pathlib` would cost a new pool 5 ms.

    Raises:
        OSError: It cannot be read.
        ValueError: It is not text in that encoding.
    """
    with open(path, encoding=encoding, errors=errors) as file:
        return file.read()


def folders(controller: str, proc_self: StrPath = PROC_SELF) -> list[str]:
    """Return the folders of this process's group and of all groups around it.

    Args:
        controller: `cpu` or `memory`, as v1 names it. The groups of v2, which have all
            controllers, are returned as well: a machine may have both mounted.
        proc_self: Folder with this process's `cgroup` and `mountinfo`. Where there is none (not
            Linux, or `/proc` is not mounted), there are no groups.
    """
    try:
        groups = _read_groups(os.path.join(proc_self, "cgroup"))
        mounts = read(os.path.join(proc_self, "mountinfo"), "utf-8", "surrogateescape").splitlines()
    except OSError:
        return []
    return [folder for mount in mounts for folder in _folders(mount, groups, controller)]


def _read_groups(path: str) -> dict[str, str]:
    """Return controller -> group path of this process; the unified hierarchy (v2) is "".

    Lines read `4:cpu,cpuacct:/docker/1f2e` or `0::/user.slice/session-1.scope`.
    """
    groups = {}
    for line in read(path, "utf-8", "surrogateescape").splitlines():
        _number, controllers, group = line.split(":", 2)
        for controller in controllers.split(","):
            groups[controller] = group
    return groups


def _folders(mount: str, groups: dict[str, str], controller: str) -> Iterator[str]:
    """Yield the folder of this process's group under one line of mountinfo, then those around it.

    A line reads `30 24 0:26 ROOT MOUNTPOINT rw ... - cgroup cgroup rw,cpu,cpuacct`: the folder
    MOUNTPOINT shows the hierarchy from the group ROOT downwards.
    """
    fields, separator, rest = mount.partition(" - ")
    if not separator:
        return
    fstype, _, options = rest.partition(" ")
    if fstype == "cgroup2":
        group = groups.get("")
    elif fstype == "cgroup" and controller in options.replace(" ", ",").split(","):
        group = groups.get(controller)
    else:
        return
    if group is None:
        return
    root, point = (_unescape(field) for field in fields.split(" ")[3:5])
    # A container often sees its group's path on the host, of which only the end is mounted here;
    # then the mount point is the group itself.
    inside = group[len(root.rstrip("/")) :] if _is_within(group, root) else "/"
    folder = os.path.normpath(point + inside.rstrip("/"))
    while _is_within(folder, point):
        yield folder
        around = os.path.dirname(folder)
        if around == folder:
            return
        folder = around


def _is_within(path: str, root: str) -> bool:
    """Tell whether an absolute path is `root` or lies below it."""
    return (path + "/").startswith(root.rstrip("/") + "/") and ".." not in path.split("/")


def _unescape(field: str) -> str:
    r"""Undo the octal escapes of mountinfo (`\040` is a space)."""
    for code in (r"\040", r"\011", r"\012", r"\134"):
        field = field.replace(code, chr(int(code[1:], 8)))
    return field
