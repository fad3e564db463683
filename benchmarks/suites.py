"""The suites by name."""

from __future__ import annotations

from .suite_faults import SUITE as FAULTS
from .suite_forkjoin import SUITE as FORKJOIN
from .suite_pool import SUITE as POOL
from .suite_timers import SUITE as TIMERS

SUITES = {suite.name: suite for suite in (POOL, FORKJOIN, FAULTS, TIMERS)}
