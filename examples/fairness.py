"""What comes first among what is due: time, priority, priority with aging, or groups in turn.

Prints the order in which one worker ran the same jobs under each rule. Starvation is shown, too.
"""

from __future__ import annotations

from typing import Any

import mpsched
from mpsched.testing import ManualClock


def order(**rule: Any) -> str:
    """Run a flood of urgent jobs with one modest job among them; return who ran when.

    Each second one job is done, and another urgent one comes; the modest one, "m", was there first.
    """
    clock = ManualClock()
    ran: list[str] = []
    s = mpsched.Scheduler(workers=0, clock=clock, **rule)
    s.schedule("modest", after=-1, priority=0, fn=ran.append, args=("m",))
    for second in range(12):
        s.schedule(("urgent", second), after=0, priority=5, fn=ran.append, args=("u",))
        due = s.next()
        assert isinstance(due, mpsched.Due)
        s.complete(due, due.fn(*due.args))
        clock.advance(1)
    s.close(queued="cancel")
    return "".join(ran)


def turns() -> str:
    """Return who ran when, of two groups that both have more to do than there is time for."""
    ran: list[str] = []
    s = mpsched.Scheduler(workers=0, groups={"web": 3, "batch": 1})
    for n in range(24):
        group = "web" if n % 2 else "batch"
        s.schedule(n, after=0, group=group, fn=ran.append, args=(group[0],))
    for _ in range(12):
        due = s.next()
        assert isinstance(due, mpsched.Due)
        s.complete(due, due.fn(*due.args))
    s.close(queued="cancel")
    return "".join(ran)


def main() -> None:
    """Show each rule."""
    print("earliest time first:           ", order())
    print("highest priority first:        ", order(ready_order="priority"), "(m starves)")
    print("one point per waiting second:  ", order(ready_order="priority", aging=1.0))
    print("groups, web 3 : batch 1:       ", turns())


if __name__ == "__main__":
    main()
