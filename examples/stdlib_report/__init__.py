"""A report on Python's own standard library, made three times: threads, processes, mpsched.

Run it with `python -m examples.stdlib_report` from the project's root.
"""

from __future__ import annotations
