"""Floor 2: what a task is and how it travels: states, table, codec; see README.md."""

from __future__ import annotations
