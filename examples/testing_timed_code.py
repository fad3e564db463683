"""Testing timed code without waiting: a clock that the test moves.

The code under test schedules reminders; the test lets a week pass in an instant. Prints what it saw.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import mpsched
from mpsched.testing import ManualClock


class Reminders:
    """The code under test: it is given a scheduler, and knows nothing of tests."""

    def __init__(self, scheduler: mpsched.Scheduler) -> None:
        self.scheduler = scheduler
        self.sent: list[str] = []

    def remind(self, who: str, after: timedelta) -> None:
        """Send a reminder later; a newer one for the same person replaces it."""
        self.scheduler.schedule(who, after=after, fn=self.sent.append, args=(who,), where="thread")

    def at_noon(self, who: str, day: datetime) -> None:
        """Send one at noon, whatever happens to the machine's clock."""
        noon = day.replace(hour=12, minute=0, second=0, microsecond=0)
        self.scheduler.schedule(
            (who, day), at=noon, fn=self.sent.append, args=(who,), where="thread"
        )


def main() -> None:
    """Let time pass by hand; `run_due` runs what is due in this very thread."""
    start = datetime(2026, 3, 1, tzinfo=UTC)
    clock = ManualClock(wall=start)
    with mpsched.Scheduler(workers=0, clock=clock) as s:
        reminders = Reminders(s)
        reminders.remind("ada", timedelta(days=1))
        reminders.remind("bob", timedelta(days=2))
        reminders.remind("ada", timedelta(days=7))  # ada has asked for more time
        clock.advance(timedelta(days=3))
        s.run_due()
        print("after three days:", reminders.sent)
        clock.advance(timedelta(days=4))
        s.run_due()
        print("after a week:", reminders.sent)

        reminders.at_noon("eve", start + timedelta(days=7))
        clock.jump_wall(timedelta(hours=11))  # somebody sets the clock
        print("at eleven, by the wall:", s.run_due(), "due")
        clock.suspend(timedelta(hours=1))  # the lid is closed for an hour
        print("after the suspend:", s.run_due(), "due;", reminders.sent)


if __name__ == "__main__":
    main()
