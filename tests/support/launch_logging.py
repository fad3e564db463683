"""A program whose threads log all the time while it makes launchers, one after the other.

`python -m tests.support.launch_logging METHOD COUNT`
"""

from __future__ import annotations

import logging
import sys
import threading

from mpsched._pool.launch import Exited
from tests.support.launching import Launched


def main() -> None:
    """Say how many workers have logged a line."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO)
    done = threading.Event()
    threads = [threading.Thread(target=_log_until, args=(done,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    logged = 0
    try:
        for _ in range(int(sys.argv[2])):
            with Launched(sys.argv[1], "log") as launched:
                launched.launcher.start(0, 0)
                logged += launched.wait(Exited)[0].status == 0
    finally:
        done.set()
    for thread in threads:
        thread.join()
    print(f"{logged} workers have logged")


def _log_until(done: threading.Event) -> None:
    while not done.is_set():
        logging.getLogger("parent").info("a line")


if __name__ == "__main__":
    main()
