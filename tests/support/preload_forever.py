"""A module whose import takes longer than any test, for `preload`."""

from __future__ import annotations

import time

time.sleep(1000)
