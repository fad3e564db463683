"""A worker that dies takes one task with it, and nothing else.

Prints how the task that killed its worker ended, that all the others gave their results, that the
pool is as wide as before, and that the same task succeeds when it is allowed a second attempt.
"""

from __future__ import annotations

import os
import signal

import mpsched


def fragile(number: int) -> int:
    """Die at 7 in the first attempt, like a crash in C code or the kernel's out-of-memory kill."""
    task = mpsched.current_task()
    if number == 7 and task is not None and task.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return number * number


def main() -> None:
    """Kill a worker under load."""
    with mpsched.WorkStealingExecutor(2) as ex:
        for _ in ex.map(abs, range(100)):
            pass
        before = {worker.pid for worker in ex.stats().workers}
        futures = [ex.submit(fragile, number) for number in range(100)]
        errors = [future.exception() for future in futures]

        died = [error for error in errors if isinstance(error, mpsched.errors.WorkerDied)]
        print(f"{errors.count(None)} of {len(errors)} tasks gave a result")
        print(f"{len(died)} died: signal {died[0].signal}, attempt {died[0].attempt}")

        again = ex.options(retries=1).submit(fragile, 7)
        print(f"with retries=1: {again.result()}, after {again.attempts} attempts")

        after = {worker.pid for worker in ex.stats().workers}
        print(f"workers: {len(before)} before, {len(after)} after")


if __name__ == "__main__":
    main()
