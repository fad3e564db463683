"""Ctrl-C as a terminal sends it: SIGINT for the whole process group of a program."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

import pytest

from tests.support.pools import DEADLINE_S
from tests.support.scripts import Script

if TYPE_CHECKING:
    import random
    from pathlib import Path

END_S = 20.0  # two seconds are promised; a loaded machine is no failure of ours

HEAD = """
import asyncio, os, sys, time
from concurrent.futures import as_completed, wait
import mpsched
from tests.support import crash_calls as calls

LOG = sys.argv[1]
WORKERS = 3
ITEMS = [(LOG, 600.0)] * 20

def say_when_all_run():
    import threading
    def watch():
        while not os.path.exists(LOG) or open(LOG).read().count("\\n") < WORKERS:
            time.sleep(0.01)
        print("ready", flush=True)
    threading.Thread(target=watch, daemon=True).start()

"""

PROGRAMS = {
    "result": """
        with mpsched.WorkStealingExecutor(WORKERS) as ex:
            futures = [ex.submit(calls.note_and_nap, *item) for item in ITEMS]
            say_when_all_run()
            futures[0].result()
    """,
    "result of a queued one": """
        with mpsched.WorkStealingExecutor(WORKERS) as ex:
            futures = [ex.submit(calls.note_and_nap, *item) for item in ITEMS]
            say_when_all_run()
            futures[-1].result()
    """,
    "map": """
        with mpsched.WorkStealingExecutor(WORKERS) as ex:
            say_when_all_run()
            list(ex.starmap(calls.note_and_nap, ITEMS))
    """,
    "map with limits": """
        with mpsched.WorkStealingExecutor(WORKERS) as ex:
            say_when_all_run()
            list(ex.options(timeout=900.0, retries=2).starmap(calls.note_and_nap, ITEMS))
    """,
    "wait": """
        with mpsched.WorkStealingExecutor(WORKERS) as ex:
            futures = [ex.submit(calls.note_and_nap, *item) for item in ITEMS]
            say_when_all_run()
            wait(futures)
    """,
    "as_completed": """
        with mpsched.WorkStealingExecutor(WORKERS) as ex:
            futures = [ex.submit(calls.note_and_nap, *item) for item in ITEMS]
            say_when_all_run()
            for future in as_completed(futures):
                future.result()
    """,
    "sleep": """
        with mpsched.WorkStealingExecutor(WORKERS) as ex:
            futures = [ex.submit(calls.note_and_nap, *item) for item in ITEMS]
            say_when_all_run()
            time.sleep(600)
    """,
    "leaving the block": """
        with mpsched.WorkStealingExecutor(WORKERS) as ex:
            futures = [ex.submit(calls.note_and_nap, *item) for item in ITEMS]
            say_when_all_run()
    """,
    "no block": """
        ex = mpsched.WorkStealingExecutor(WORKERS)
        futures = [ex.submit(calls.note_and_nap, *item) for item in ITEMS]
        say_when_all_run()
        futures[0].result()
    """,
    "full queue": """
        with mpsched.WorkStealingExecutor(WORKERS, max_pending=10) as ex:
            say_when_all_run()
            for item in ITEMS:
                ex.submit(calls.note_and_nap, *item)
    """,
    "default pool": """
        os.sched_getaffinity = lambda pid: set(range(WORKERS))
        say_when_all_run()
        mpsched.map(calls.note_and_nap, [LOG] * 20, [600.0] * 20)
    """,
    "asyncio": """
        async def main():
            loop = asyncio.get_running_loop()
            async with mpsched.WorkStealingExecutor(WORKERS) as ex:
                say_when_all_run()
                await asyncio.gather(
                    *(loop.run_in_executor(ex, calls.note_and_nap, *item) for item in ITEMS)
                )
        asyncio.run(main())
    """,
    "stubborn tasks": """
        with mpsched.WorkStealingExecutor(WORKERS) as ex:
            futures = [
                ex.submit(calls.note_and_be_stubborn, LOG, os.getcwd(), str(n)) for n in range(20)
            ]
            say_when_all_run()
            futures[0].result()
    """,
}


def indented(program: str) -> str:
    """Return a program of `PROGRAMS` behind the common head."""
    import textwrap

    return HEAD + textwrap.dedent(program)


@pytest.mark.parametrize("name", PROGRAMS)
def test_ctrl_c_ends_the_program_and_its_workers(name: str, tmp_path: Path) -> None:
    """KeyboardInterrupt comes out, no task is started any more, nothing is left."""
    log = tmp_path / "log"
    with Script(indented(PROGRAMS[name]), args=[str(log)]) as script:
        script.wait_for("ready", DEADLINE_S)
        started = log.read_text()
        script.signal(signal.SIGINT, group=True)
        result = script.finish(END_S)
        assert result.rc in {130, -signal.SIGINT}
        assert "KeyboardInterrupt" in result.err
        assert "nobody read it" not in result.err  # what was cancelled has not failed
        assert log.read_text() == started


def test_ctrl_c_of_short_tasks_starts_no_more_than_what_was_taken(tmp_path: Path) -> None:
    """Thousands wait: when the program has ended, most have never run."""
    log = tmp_path / "log"
    program = """
        with mpsched.WorkStealingExecutor(2) as ex:
            futures = [ex.submit(calls.note_and_nap, LOG, 0.05) for _ in range(5000)]
            print("ready", flush=True)
            for future in futures:
                future.result()
    """
    with Script(indented(program), args=[str(log)]) as script:
        script.wait_for("ready", DEADLINE_S)
        script.signal(signal.SIGINT, group=True)
        result = script.finish(END_S)
        assert "KeyboardInterrupt" in result.err
        assert len(log.read_text().splitlines() if log.exists() else []) < 2500


def test_ctrl_c_caught_outside_of_the_block_leaves_a_usable_program(tmp_path: Path) -> None:
    """A program may go on and make another pool."""
    program = """
        say_when_all_run()
        try:
            with mpsched.WorkStealingExecutor(WORKERS) as ex:
                futures = [ex.submit(calls.note_and_nap, *item) for item in ITEMS]
                futures[0].result()
        except KeyboardInterrupt:
            print("caught", ex.state, sum(future.done() for future in futures), flush=True)
        with mpsched.WorkStealingExecutor(2) as ex:
            print(ex.submit(calls.identity, 17).result(), flush=True)
    """
    with Script(indented(program), args=[str(tmp_path / "log")]) as script:
        script.wait_for("ready", DEADLINE_S)
        script.signal(signal.SIGINT, group=True)
        result = script.finish(END_S)
        assert result.rc == 0, result.err
        assert result.out.split("\n")[1:] == ["caught terminated 20", "17", ""]


def test_ctrl_c_caught_inside_of_the_block_loses_nothing(tmp_path: Path) -> None:
    """Only the waiting ended: the tasks go on, and their results come."""
    program = """
        say_when_all_run()
        with mpsched.WorkStealingExecutor(WORKERS) as ex:
            futures = [ex.submit(calls.note_and_hold, LOG, sys.argv[2], "go") for _ in range(6)]
            try:
                for future in futures:
                    future.result()
            except KeyboardInterrupt:
                print("caught", flush=True)
            calls.touch(os.path.join(sys.argv[2], "go.go"))
            print([future.result() for future in futures], flush=True)
            print(list(ex.map(calls.identity, range(5))), ex.stats().deaths, flush=True)
    """
    with Script(indented(program), args=[str(tmp_path / "log"), str(tmp_path)]) as script:
        script.wait_for("ready", DEADLINE_S)
        script.signal(signal.SIGINT, group=True)
        result = script.finish(DEADLINE_S)
        assert result.rc == 0, result.err
        assert result.out.split("\n")[1:] == ["caught", str(["go"] * 6), "[0, 1, 2, 3, 4] 0", ""]


def test_ctrl_c_at_any_moment_leaves_nothing(
    start_method: str, rng: random.Random, tmp_path: Path
) -> None:
    """While the program starts, makes the pool, submits, reads, or ends."""
    program = """
        print("ready", flush=True)
        with mpsched.WorkStealingExecutor(WORKERS, sys.argv[2]) as ex:
            for _ in range(3):
                futures = [ex.submit(calls.identity, bytes(n)) for n in range(300)]
                for future in futures:
                    future.result()
                list(ex.map(calls.nap, [0.001] * 50))
        print("done", flush=True)
    """
    for _ in range(6):
        with Script(indented(program), args=["unused", start_method]) as script:
            script.wait_for("ready", DEADLINE_S)
            time.sleep(rng.uniform(0.0, 0.4))
            script.signal(signal.SIGINT, group=True)
            result = script.finish(DEADLINE_S)
            if "done" not in result.out:
                assert result.rc in {130, -signal.SIGINT}, result
                assert "KeyboardInterrupt" in result.err


def test_second_ctrl_c_ends_a_program_that_drains(tmp_path: Path) -> None:
    """Impatience helps: whatever the first one has left to do, nothing stays."""
    with Script(indented(PROGRAMS["stubborn tasks"]), args=[str(tmp_path / "log")]) as script:
        script.wait_for("ready", DEADLINE_S)
        for _ in range(3):
            try:
                script.signal(signal.SIGINT, group=True)
            except ProcessLookupError:
                break
            time.sleep(0.05)
        assert script.finish(END_S).rc != 0


def test_workers_do_not_see_ctrl_c(tmp_path: Path) -> None:
    """No traceback of a worker disturbs the user's own."""
    with Script(indented(PROGRAMS["map"]), args=[str(tmp_path / "log")]) as script:
        script.wait_for("ready", DEADLINE_S)
        script.signal(signal.SIGINT, group=True)
        result = script.finish(END_S)
        assert result.err.count("Traceback") == 1, result.err
        assert "mpsched-helper" not in result.err
