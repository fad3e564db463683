"""Cancel says what it guarantees; a queued job can be moved; a running one is asked to stop.

Prints the answer of each cancel, and what the job that was asked to stop returned.
"""

from __future__ import annotations

import mpsched


def count_up() -> int:
    """Run in a worker until asked to stop."""
    task = mpsched.current_task()
    assert task is not None
    rounds = 0
    while not task.wait_cancelled(0.01):
        rounds += 1
    return rounds


def main() -> None:
    """Cancel before, while and after; move; give up at a deadline."""
    with mpsched.Scheduler(workers=2, on_error=lambda run, error: print(run.outcome, error)) as s:
        s.schedule("tomorrow", after=86_400, fn=print)
        print("before it starts:", s.cancel("tomorrow").name)  # it never will

        counting = s.schedule("count", after=0, fn=count_up)
        while not counting.running():
            s.wait(0.01)
        print("while it runs:", s.cancel("count").name)
        print("it counted, and was asked:", counting.result() >= 0, counting.cancel_requested)
        print("when it is over:", s.cancel("count").name)
        print("never scheduled:", s.cancel("what?").name)

        moved = s.schedule("moved", after=3600, fn=pow, args=(2, 10))
        s.reschedule("moved", after=0, priority=5)  # the same version, the same handle
        print("moved:", moved.result())

        late = s.schedule("late", after=3600, deadline=s.now() + 0.05, fn=print)
        print("missed:", type(late.exception()).__name__)


if __name__ == "__main__":
    main()
