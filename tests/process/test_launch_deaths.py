"""The deaths of parent, template and both, and Ctrl-C: nothing is left, nothing else is hit."""

from __future__ import annotations

import ctypes
import json
import os
import signal

import pytest

from mpsched._pool.launch import Exited, TemplateDied
from tests.support.launching import (
    DEADLINE_S,
    Launched,
    Watched,
    all_pids,
    children_of,
    parent_program,
    wait_readable,
)

GONE_S = 20.0  # guarantee 9 says 2 s; a loaded machine is no failure of ours

needs_template = pytest.mark.parametrize("method", ["forkserver", "fork"])


@pytest.mark.parametrize("entry", ["idle", "busy"])
def test_workers_end_when_the_parent_is_killed(start_method: str, entry: str) -> None:
    """Idle, asleep, busy in C or Python code, or stopped: nothing is left."""
    with parent_program(start_method, entry, "4") as (program, told):
        watched = Watched(*all_pids(told))
        try:
            assert len(watched.alive()) == len(all_pids(told))
            program.kill()
            assert watched.alive_after(GONE_S) == []
        finally:
            watched.close()


@pytest.mark.parametrize("stopped", [False, True])
@needs_template
def test_workers_end_when_parent_and_template_are_killed(method: str, stopped: bool) -> None:
    """Together, or the template stopped so that it can do nothing about it."""
    with parent_program(method, "busy", "4") as (program, told):
        watched = Watched(*all_pids(told))
        try:
            assert isinstance(told["template"], int)
            os.kill(told["template"], signal.SIGSTOP if stopped else signal.SIGKILL)
            program.kill()
            assert watched.alive_after(GONE_S) == []
        finally:
            watched.close()


@needs_template
def test_template_that_imports_ends_with_the_parent(method: str) -> None:
    """A preloaded module that takes long does not outlive the parent."""
    with parent_program(method, "idle", "0", "importing") as (program, told):
        watched = Watched(*all_pids(told))
        try:
            program.kill()
            assert watched.alive_after(GONE_S) == []
        finally:
            watched.close()


def test_workers_end_with_the_parent_though_a_fork_of_it_lives(start_method: str) -> None:
    """A forked child of the parent holds nothing that keeps workers alive."""
    with parent_program(start_method, "busy", "2", "forked") as (program, told):
        assert isinstance(told["child"], int)
        watched, child = Watched(*all_pids(told)), Watched(told["child"])
        try:
            program.kill()
            assert watched.alive_after(GONE_S) == []
            assert child.alive() == [told["child"]]
        finally:
            child.close()
            watched.close()


@needs_template
def test_template_death_ends_all_workers_and_is_one_event(method: str) -> None:
    """When `TemplateDied` has come no worker runs any more, and a new template serves."""
    with Launched(method, "busy") as launched:
        started = launched.start(*((index, 0) for index in range(4)))
        launched.lines(4)
        watched = Watched(*(e.pid for e in started))
        try:
            os.kill(launched.launcher.template_pid, signal.SIGKILL)  # type: ignore[attr-defined]
            assert launched.wait(TemplateDied) == [TemplateDied(-signal.SIGKILL, None)]
            assert watched.alive() == []
        finally:
            watched.close()
        assert launched.launcher.fileno() == -1
        assert not launched.launcher.kill(started[0].pid, signal.SIGKILL)
        assert not any(isinstance(e, Exited) for e in launched.seen)
        launched.launcher.restart()
        (again,) = launched.start((2, 1))
        assert launched.lines(1) == [[2, 1, again.pid]]


@needs_template
def test_template_death_with_open_requests_loses_no_event(method: str) -> None:
    """Requests that it has not read are void: `TemplateDied` comes, after what it said before."""
    with Launched(method, "idle") as launched:
        launched.start((0, 0))
        template = launched.launcher.template_pid  # type: ignore[attr-defined]
        os.kill(template, signal.SIGSTOP)
        for index in range(1, 20):
            launched.launcher.start(index, 0)
        os.kill(template, signal.SIGKILL)
        assert launched.wait(TemplateDied) == [TemplateDied(-signal.SIGKILL, None)]
        launched.launcher.restart()
        launched.start((5, 1))


@needs_template
def test_start_after_the_template_died_is_answered_by_its_death(method: str) -> None:
    """`start` does not raise when it meets a dead template that `events` has not reported."""
    with Launched(method, "idle") as launched:
        template = Watched(launched.launcher.template_pid)  # type: ignore[attr-defined]
        template.close()  # kills it
        launched.launcher.start(0, 0)
        assert launched.wait(TemplateDied) == [TemplateDied(-signal.SIGKILL, None)]


@needs_template
def test_orphans_that_this_process_adopts_are_reaped(method: str) -> None:
    """Number 1 of a container adopts the workers of a dead template: none stays a zombie."""
    prctl = ctypes.CDLL(None).prctl
    set_child_subreaper = 36
    others = children_of(os.getpid())
    assert prctl(set_child_subreaper, 1, 0, 0, 0) == 0
    try:
        with Launched(method, "idle") as launched:
            launched.start(*((index, 0) for index in range(3)))
            os.kill(launched.launcher.template_pid, signal.SIGKILL)  # type: ignore[attr-defined]
            launched.wait(TemplateDied)
            assert {*children_of(os.getpid())} <= {*others}
    finally:
        prctl(set_child_subreaper, 0, 0, 0, 0)


@needs_template
def test_status_taken_by_other_code_is_none(method: str) -> None:
    """`os.wait()` in the user's program may reap the template; its death is still seen."""
    with Launched(method, "idle") as launched:
        template = launched.launcher.template_pid  # type: ignore[attr-defined]
        os.kill(template, signal.SIGKILL)
        os.waitpid(template, 0)
        assert launched.wait(TemplateDied) == [TemplateDied(None, None)]


def test_ignored_sigchld_in_the_parent_loses_no_worker(start_method: str) -> None:
    """With SIGCHLD ignored the kernel reaps the parent's children; ends are still reported."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with Launched(start_method, "end", config=b"exit 5") as launched:
            launched.launcher.start(0, 0)
            (event,) = launched.wait(Exited)
            assert event.status == (None if start_method == "spawn" else 5)
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_interrupt_of_the_group_ends_neither_template_nor_workers(start_method: str) -> None:
    """Ctrl-C reaches all processes of the group: only the parent decides what it means."""
    with parent_program(start_method, "idle", "2", "interrupted") as (program, told):
        watched = Watched(*all_pids(told))
        try:
            os.killpg(program.pid, signal.SIGINT)
            assert program.stdin is not None
            assert program.stdout is not None
            program.stdin.write("wake\n")
            program.stdin.flush()
            assert wait_readable(program.stdout.fileno(), DEADLINE_S)
            assert json.loads(program.stdout.readline()) == [["woken"], ["woken"]]
            assert len(watched.alive()) == len(all_pids(told))
            program.stdin.close()
            assert watched.alive_after(DEADLINE_S) == []
            assert program.wait(DEADLINE_S) == 0
        finally:
            watched.close()


def test_program_started_by_a_task_has_normal_signals(start_method: str) -> None:
    """SIGINT is neither blocked nor ignored there, so that Ctrl-C ends it."""
    with Launched(start_method, "signals_of_a_program") as launched:
        launched.launcher.start(0, 0)
        ((blocked, ignored),) = launched.lines(1)
        assert blocked == 0
        assert not ignored & (1 << (signal.SIGINT - 1) | 1 << (signal.SIGTERM - 1))


def test_handlers_of_the_parent_are_not_in_the_workers(start_method: str) -> None:
    """A Python handler for SIGTERM in the parent must not keep workers alive under fork."""
    before = signal.signal(signal.SIGTERM, lambda _number, _frame: None)
    try:
        with Launched(start_method, "idle") as launched:
            (started,) = launched.start((0, 0))
            launched.lines(1)
            launched.launcher.kill(started.pid, signal.SIGTERM)
            assert launched.wait(Exited) == [Exited(0, 0, started.pid, -signal.SIGTERM)]
    finally:
        signal.signal(signal.SIGTERM, before)
