"""How fast mpsched is, beside its peers. See README.md."""

from __future__ import annotations
