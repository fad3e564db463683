"""One suite, run against every implementation of the executor's contract."""

from __future__ import annotations
