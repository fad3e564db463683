"""`python -m mpsched`: the command `mpsched`."""

from __future__ import annotations

from mpsched.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
