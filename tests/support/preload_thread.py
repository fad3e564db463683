"""A module that starts a thread when it is imported, for `preload`."""

from __future__ import annotations

import threading

_forever = threading.Event()
threading.Thread(target=_forever.wait, daemon=True).start()
