"""Pull mode: the scheduler says what is due, and the program runs it as it likes.

Prints what each of two threads of its own ran.
"""

from __future__ import annotations

import threading

import mpsched


def serve(s: mpsched.Scheduler) -> None:
    """Run what is due until the scheduler is closed."""
    while True:
        try:
            due = s.next(timeout=None)  # woken by whatever is scheduled earlier
        except mpsched.errors.SchedulerClosed:
            return
        if isinstance(due, mpsched.Due):
            try:
                result = due.fn(*due.args)
            except Exception as error:
                s.fail(due, error)
            else:
                s.complete(due, result)


def main() -> None:
    """Serve with two threads; the scheduler itself starts neither thread nor process."""
    s = mpsched.Scheduler(workers=0, on_error=lambda run, error: print(run.task_id, repr(error)))
    threads = [threading.Thread(target=serve, args=(s,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    squares = [s.schedule(n, after=0.01 * n, fn=pow, args=(n, 2)) for n in range(5)]
    # The second attempt would come after a second; the handle has the last one's outcome.
    bad = s.schedule(
        "bad", after=0, fn=int, args=("x",), retries=1, retry_on=(ValueError,), backoff=0.01
    )
    print([handle.result() for handle in squares])
    print(type(bad.exception()).__name__, "after", bad.attempts, "attempts")
    print("closed:", s.close().state)
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
