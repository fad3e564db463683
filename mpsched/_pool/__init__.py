"""Floor 5: what runs in the parent: dispatch, collect, supervise; see README.md."""

from __future__ import annotations
