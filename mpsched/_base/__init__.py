"""Floor 0: settings, CPU count, clock, ids. Imports only `mpsched.errors`; see README.md."""

from __future__ import annotations
