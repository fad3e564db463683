"""Floor 4: what runs in a worker process, and its template; see README.md."""

from __future__ import annotations
