"""A program that makes a launcher, tells the pids of all processes, and waits to be killed.

`python -m tests.support.launch_parent METHOD ENTRY WORKERS [WHAT]`. WHAT: "interrupted" sends SIGINT
to the whole process group again and again while all start; "forked" forks a child that outlives
this program; "importing" has a template that imports for ever.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time

from mpsched._pool.launch import Started
from tests.support.launching import Launched


def main() -> None:
    method, entry, workers = sys.argv[1], sys.argv[2], int(sys.argv[3])
    what = sys.argv[4] if len(sys.argv) > 4 else ""
    signal.signal(signal.SIGINT, lambda _number, _frame: None)
    started = threading.Event()
    if what == "interrupted":
        threading.Thread(target=_interrupt_all, args=(started,), daemon=True).start()
    preload = ("tests.support.preload_forever",) if what == "importing" else ()
    with Launched(method, entry, preload=preload) as launched:
        launched.start(*((index, 0) for index in range(workers)))
        launched.lines(workers)
        started.set()
        pids = [e.pid for e in launched.seen if isinstance(e, Started)]
        template = getattr(launched.launcher, "template_pid", 0)
        child = 0
        if what == "forked":
            child = os.fork()
            if child == 0:
                while True:
                    signal.pause()
        print(json.dumps({"workers": pids, "template": template, "child": child}), flush=True)
        for line in sys.stdin:
            if line.strip() == "wake":
                for pid in pids:
                    launched.launcher.kill(pid, signal.SIGUSR1)
                print(json.dumps(launched.lines(workers)), flush=True)


def _interrupt_all(started: threading.Event) -> None:
    while not started.is_set():
        os.killpg(0, signal.SIGINT)
        time.sleep(0.001)


if __name__ == "__main__":
    main()
