"""One-shot timers and replacing them: the last word counts, and nothing runs twice.

Prints when each job ran, how late it was, and what became of the versions that were replaced.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import mpsched


def greet(name: str) -> str:
    """Run in a worker process."""
    return f"hello, {name}"


def main() -> None:
    """Schedule by span, by date and by the scheduler's clock, and change one's mind."""
    seen: dict[str, int] = {}
    with mpsched.Scheduler(workers=2) as s:
        handles = [
            s.schedule("span", after=0.1, fn=greet, args=("in a tenth of a second",)),
            s.schedule(
                "date", at=datetime.now(UTC) + timedelta(seconds=0.2), fn=greet, args=("then",)
            ),
            s.schedule("clock", s.now() + 0.15, 0, greet, args=("on the monotonic clock",)),
        ]
        # A job that changes the program's own state runs in a thread of it.
        s.schedule("cache", after=0, fn=seen.update, kwargs={"warm": 1}, where="thread").result()
        for handle in handles:
            print(handle.task_id, "->", handle.result())
        print("cache:", seen)

        # The same id again replaces what has not started.
        drafts = [s.schedule("report", after=0.1, fn=greet, args=(f"draft {n}",)) for n in range(3)]
        print(drafts[-1].result(), "| replaced:", [draft.cancelled() for draft in drafts])
        for run in s.history("report"):
            print(f"version {run.version}: {run.outcome}")
        print(f"the latest start was {max(run.lateness or 0.0 for run in s.history()):.4f} s late")


if __name__ == "__main__":
    main()
