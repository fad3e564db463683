"""Checks of this process's descriptors before a pool opens its own; see README.md, "Launch"."""

from __future__ import annotations

import os


def require(count: int) -> None:
    """Make sure that `count` descriptors can be opened now.

    Raises:
        OSError: EMFILE or ENFILE; the message has the limit, and how to raise it.
    """
    taken: list[int] = []
    try:
        while len(taken) < count:
            taken.append(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        raise OSError(
            error.errno,
            f"a pool of this width opens {count} descriptors, and only {len(taken)} are left: this "
            f"process may have {soft} (hard limit {hard}); raise it with `ulimit -n`, or use fewer "
            "workers",
        ) from error
    finally:
        for fd in taken:
            os.close(fd)


def fill_standard() -> None:
    """Open /dev/null where standard input, output or error is closed, as in some daemons.

    Otherwise a pool's socket or memory would take that number, and what a worker prints would be
    written into it.
    """
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)
