"""Starting, watching and ending worker processes: real processes, real signals, each start method."""

from __future__ import annotations

import itertools
import os
import signal

import pytest

from mpsched._pool.launch import Exited, Started
from mpsched._worker import children, control, lifeline
from tests.support.launching import (
    DEADLINE_S,
    Launched,
    Watched,
    children_of,
)

needs_template = pytest.mark.parametrize("method", ["forkserver", "fork"])


def test_start_runs_the_entry_in_a_process_of_its_own(start_method: str) -> None:
    """The entry gets index and incarnation, and `Started` names its process."""
    with Launched(start_method, "hello") as launched:
        (event,) = launched.start((3, 7))
        assert (event.index, event.incarnation) == (3, 7)
        assert launched.lines(1) == [[3, 7, event.pid]]
        assert event.pid != os.getpid()


@pytest.mark.parametrize(
    ("how", "status"),
    [
        ("return", 0),
        ("raise", 1),
        ("exit 3", 3),
        ("exit-text", 1),
        ("_exit 7", 7),
        (f"signal {signal.SIGKILL:d}", -signal.SIGKILL),
        (f"signal {signal.SIGQUIT:d}", -signal.SIGQUIT),
        (f"signal {signal.SIGTERM:d}", -signal.SIGTERM),
    ],
)
def test_exited_has_the_exact_status(start_method: str, how: str, status: int) -> None:
    """An exit code comes as it is, a signal as its negative number."""
    with Launched(start_method, "end", config=how.encode()) as launched:
        (started,) = launched.start((0, 0))
        (event,) = launched.wait(Exited)
        assert event == Exited(0, 0, started.pid, status)


def test_replacement_starts_under_the_same_index(start_method: str) -> None:
    """After a worker was killed, its index starts again as another incarnation."""
    with Launched(start_method, "idle") as launched:
        (first,) = launched.start((0, 0))
        assert launched.lines(1) == [[0, 0, first.pid]]
        assert launched.launcher.kill(first.pid, signal.SIGKILL)
        assert launched.wait(Exited) == [Exited(0, 0, first.pid, -signal.SIGKILL)]
        (second,) = launched.start((0, 1))
        assert launched.lines(1) == [[0, 1, second.pid]]


def test_kill_hits_the_named_worker_only(start_method: str) -> None:
    """Other workers live on; an ended or unknown process is not signalled."""
    with Launched(start_method, "idle") as launched:
        one, two = launched.start((0, 0), (1, 0))
        assert launched.launcher.kill(one.pid, signal.SIGTERM)
        assert launched.wait(Exited) == [Exited(one.index, 0, one.pid, -signal.SIGTERM)]
        assert not launched.launcher.kill(one.pid, signal.SIGKILL)
        assert not launched.launcher.kill(os.getpid(), signal.SIGKILL)
        others = Watched(two.pid)
        assert others.alive() == [two.pid]
        others.close()


def test_two_hundred_workers_in_a_row_leave_no_zombie(start_method: str) -> None:
    """Each ended worker is reaped before its `Exited` comes."""
    count = 200 if start_method != "spawn" else 10
    others = children_of(os.getpid())
    with Launched(start_method, "hello") as launched:
        for number in range(count):
            launched.launcher.start(0, number)
            launched.wait(Exited, number + 1)
        parent = getattr(launched.launcher, "template_pid", os.getpid())
        assert {*children_of(parent)} <= {*others}
        assert {e.status for e in launched.seen if isinstance(e, Exited)} == {0}


@needs_template
def test_many_requests_without_reading_do_not_block(method: str) -> None:
    """Answers that nobody reads fill the socket; the template goes on taking requests."""
    with Launched(method, "hello") as launched:
        for number in range(400):
            launched.launcher.start(number, 0)
        launched.wait(Exited, 400)
        assert sorted(e.index for e in launched.wait(Started, 400)) == [*range(400)]
        assert sorted(index for index, _, _ in launched.lines(400)) == [*range(400)]


def test_stop_waits_for_workers_that_leave(start_method: str) -> None:
    """Within the time, nobody is killed: the statuses are the workers' own."""
    launched = Launched(start_method, "end", config=b"exit 5")
    for index in range(3):
        launched.launcher.start(index, 0)
    launched.wait(Started, 3)
    launched.seen += launched.launcher.stop(DEADLINE_S)
    assert {(e.index, e.status) for e in launched.wait(Exited, 3)} == {(0, 5), (1, 5), (2, 5)}
    launched.close()


def test_stop_kills_what_is_left_after_the_time(start_method: str) -> None:
    """Workers in C code, asleep or stopped end with the launcher, each with its status."""
    launched = Launched(start_method, "busy")
    launched.start(*((index, 0) for index in range(4)))
    launched.lines(4)
    launched.seen += launched.launcher.stop(0.05)
    assert [e.status for e in launched.wait(Exited, 4)] == [-signal.SIGKILL] * 4
    assert launched.launcher.events() == []
    assert launched.launcher.fileno() == -1
    launched.close()


def test_stop_ends_a_worker_that_was_just_asked_for(start_method: str) -> None:
    """A request on its way does not leave a process behind (see the leak check)."""
    launched = Launched(start_method, "idle")
    launched.launcher.start(0, 0)
    launched.close()


def ended_child() -> int:
    """Return the pidfd of a child that has ended with 7 and waits to be reaped."""
    pid = os.fork()
    if pid == 0:
        os._exit(7)
    pidfd = os.pidfd_open(pid)
    assert children.ended(pidfd, DEADLINE_S)
    return pidfd


def test_reap_waits_for_a_debugger_that_was_told_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under `strace -f` a child has ended for its pidfd, and for `waitid` not yet."""
    pidfd = ended_child()
    waitid, tries = os.waitid, itertools.count()

    def traced(*args: int) -> os.waitid_result | None:
        return None if next(tries) < 3 else waitid(*args)

    monkeypatch.setattr(os, "waitid", traced)
    assert children.reap(pidfd) == 7
    assert next(tries) == 4
    assert children.reap(pidfd) is None  # it is gone
    os.close(pidfd)


def test_reap_gives_up_a_child_that_a_debugger_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has ended, how is not known; one that has not ended is no child to reap."""
    pidfd = ended_child()
    with monkeypatch.context() as patch:
        patch.setattr(os, "waitid", lambda *_args: None)
        patch.setattr(children, "_TRACED_S", 0.01)
        assert children.reap(pidfd) is None
    assert children.reap(pidfd) == 7
    os.close(pidfd)
    pid = os.fork()
    if pid == 0:
        signal.pause()
        os._exit(0)
    pidfd = os.pidfd_open(pid)
    with pytest.raises(RuntimeError, match="has not ended"):
        children.reap(pidfd)
    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    assert children.ended(pidfd, DEADLINE_S)
    assert children.reap(pidfd) == -signal.SIGKILL
    os.close(pidfd)


def test_lifeline_of_a_dead_holder_kills_at_once() -> None:
    """The holder may die before the other process has tied itself."""
    end, held = lifeline.create()
    pid = os.fork()
    if pid == 0:
        os.close(held)
        os.read(end, 1)  # the holder has ended
        lifeline.tie(end)
        os._exit(0)
    os.close(end)
    os.close(held)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL


def test_record_of_a_killed_sender_is_read_before_the_end() -> None:
    """A connection reset hides nothing that was sent before."""
    ours, theirs = control.pair()
    with ours:
        control.send(ours, control.Record(control.Kind.START, 1, 2))
        sent = control.Record(control.Kind.EXITED, 3, 4, 5, -6, "why \udcff")
        control.send(theirs, sent)
        theirs.close()  # with the START unread: the kernel resets the connection
        assert control.receive(ours) == sent._replace(text="why ?")
        assert control.receive(ours) is None
