"""Floor 3: where tasks wait for a worker: rings, inboxes; see README.md."""

from __future__ import annotations
