"""What is left behind is seen, and what is not left is not."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.support import leaks
from tests.support.scripts import Script, run_script

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="looks at /proc")


def left_at_once(before: leaks.Snapshot) -> list[str]:
    """Return what is left now, without what other programs have in /dev/shm for a moment."""
    left = leaks.left_since(before, grace_s=0)
    return [line for line in left if not line.startswith("/dev/shm/")]


def test_leaks_open_descriptor_is_named() -> None:
    """A descriptor that is still open is reported with what it is open on."""
    before = leaks.snapshot()
    with Path("/dev/null").open("rb") as file:
        assert left_at_once(before) == [f"fd {file.fileno()}: /dev/null"]
    assert leaks.left_since(before) == []


def test_leaks_running_thread_is_named() -> None:
    """A thread that still runs is reported by its name."""
    before = leaks.snapshot()
    done = threading.Event()
    thread = threading.Thread(target=done.wait, name="left over")
    thread.start()
    try:
        assert left_at_once(before) == ["thread left over"]
    finally:
        done.set()
        thread.join()
    assert leaks.left_since(before) == []


def test_leaks_child_process_is_named_until_it_is_reaped() -> None:
    """A child is reported while it runs, and as long as nobody has waited for it."""
    before = leaks.snapshot()
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        left = leaks.left_since(before, grace_s=0)
        assert any(line.startswith(f"process {child.pid}: ") for line in left), left
        child.kill()
        assert any(
            line.startswith(f"process {child.pid}: ")
            for line in leaks.left_since(before, grace_s=0)
        )
    finally:
        child.kill()
        child.communicate()
    assert leaks.left_since(before) == []


def test_leaks_file_in_the_current_folder_is_named() -> None:
    """A file that a test drops where it stands is reported."""
    before = leaks.snapshot()
    Path("dropped").touch()
    try:
        assert left_at_once(before) == ["file dropped in the current folder"]
    finally:
        Path("dropped").unlink()


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="no /dev/shm here")
def test_leaks_shared_memory_entry_is_named(seed: int) -> None:
    """An entry of /dev/shm that no other program maps is reported."""
    before = leaks.snapshot()
    path = Path(f"/dev/shm/mpsched-test-{os.getpid()}-{seed}")
    path.touch()
    try:
        assert f"/dev/shm/{path.name}" in leaks.left_since(before, grace_s=0)
    finally:
        path.unlink()


def test_scripts_result_has_status_and_both_streams() -> None:
    """A script's exit status and what it wrote come back, from a file as from standard input."""
    source = """
        import sys
        print("out", *sys.argv[1:])
        print("err", file=sys.stderr)
        sys.exit(3)
    """
    for stdin in (False, True):
        result = run_script(source, stdin=stdin, args=["a", "b"])
        assert (result.rc, result.out, result.err) == (3, "out a b\n", "err\n")


def test_scripts_process_left_behind_fails_and_is_killed() -> None:
    """A process that outlives the script is reported and ended, also one in another session."""
    source = """
        import subprocess, sys
        child = subprocess.Popen(
            [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"],
            start_new_session=SESSION, stdout=subprocess.PIPE)
        child.stdout.readline()
        print(child.pid)
        import os
        sys.stdout.flush()
        os._exit(0)
    """
    for session in ("True", "False"):
        with Script(source.replace("SESSION", session)) as script:
            with pytest.raises(AssertionError, match="left processes"):
                script.finish(grace_s=0.1)
            pid = int(script.out)
            assert pid in script.processes()
        assert pid not in leaks.live_pids()


def test_scripts_hang_fails_with_the_stacks() -> None:
    """A script that does not end in time is ended, and shows where it stood."""
    source = """
        import time
        def stand_here():
            print("here", flush=True)
            time.sleep(600)
        stand_here()
    """
    expected = r"hangs(?s:.*)Fatal Python error(?s:.*)in stand_here"
    with Script(source) as script:
        script.wait_for("here")
        with pytest.raises(AssertionError, match=expected):
            script.finish(timeout=0.1)


def test_scripts_file_left_behind_fails() -> None:
    """A script that drops a file into its folder is reported."""
    with pytest.raises(AssertionError, match=r"left files: \['dropped'\]"):
        run_script("open('dropped', 'w').close()")


def test_scripts_wait_for_reports_an_early_end() -> None:
    """Waiting for a text that will never come ends when the script does, with what it wrote."""
    expected = r"'ready' was not printed(?s:.*)something else"
    with (
        Script("print('something else')") as script,
        pytest.raises(AssertionError, match=expected),
    ):
        script.wait_for("ready")
