"""What the tests of shared memory have in common."""

from __future__ import annotations

import os
import resource
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def few_descriptors() -> Iterator[int]:
    """This process may open only forty more descriptors; yields the limit."""
    old = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = set(map(int, os.listdir("/proc/self/fd")))
    free = [number for number in range(len(taken) + 50) if number not in taken]
    limit = free[40]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, old[1]))
    try:
        yield limit
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, old)


@pytest.fixture
def file_limit() -> Iterator[None]:
    """Files of this process may have at most 1 MB."""
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
