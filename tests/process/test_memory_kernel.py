"""Workers that the kernel itself ends, because their control group has no memory left."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING

import pytest

from tests.support.memory_groups import kills_in, memory_group
from tests.support.scripts import ScriptResult, run_script

if TYPE_CHECKING:
    from pathlib import Path

MB = 1 << 20

PROGRAM = """
    import json, os, sys
    from pathlib import Path

    with open(os.path.join(sys.argv[1], "cgroup.procs"), "w") as group:
        group.write(str(os.getpid()))

    import mpsched
    from tests.support import crash_calls as calls
    from tests.support.pools import DEADLINE_S, alive, assert_full_width, release, wait_for_holders

    here = Path(sys.argv[2])
    events = []
    with mpsched.WorkStealingExecutor(2, sys.argv[3]) as ex:
        ex.events(events.append)
        assert_full_width(ex, here)
        other = ex.submit(calls.hold, str(here), "other")
        healthy = wait_for_holders(here, "other")["other"]
        first = 900, str(here / "first-log"), str(here)
        big = ex.options(name="big").submit(calls.swell_once, *first)
        queued = [ex.submit(calls.identity, n) for n in range(50)]
        error = big.exception(DEADLINE_S)
        assert [future.result(DEADLINE_S) for future in queued] == list(range(50))
        assert not other.done() and alive(healthy)
        release(here, "other")
        assert other.result(DEADLINE_S) == "other"
        assert_full_width(ex, here)

        once = ex.options(retries=1).submit(calls.swell_once, 900, str(here / "log"), str(here))
        beside = [ex.submit(calls.noted, str(here / "log"), "beside", 0.02) for _ in range(40)]
        print(json.dumps({
            "kind": type(error).__name__,
            "text": str(error),
            "cause": error.cause,
            "signal": error.signal,
            "attempts": once.result(DEADLINE_S),
            "beside": [future.result(DEADLINE_S) for future in beside],
            "deaths": ex.stats().deaths,
            "alone": sum(event.kind == "alone" for event in events),
        }))
"""


TOO_MUCH = 2
"""How often the program takes more memory than there is."""
TRIES = 5


def run_out_of_memory(start_method: str, folder: Path) -> tuple[ScriptResult, Path]:
    """Run the program until the kernel has ended nobody but who took too much; returns its folder as well.

    Now and then it ends one more, when somebody asks for a page while what the first has held is still being
    given back.
    """
    for number in range(TRIES):
        here = folder / str(number)
        here.mkdir()
        with memory_group(300 * MB) as group:
            result = run_script(PROGRAM, args=[str(group), str(here), start_method])
            kills = kills_in(group)
        assert result.rc != -signal.SIGKILL, "the program was ended, and not a worker"
        if kills is None or kills <= TOO_MUCH:
            return result, here
        print(f"the kernel has ended {kills} processes, where {TOO_MUCH} took too much")
    raise AssertionError(f"the kernel has ended others as well, {TRIES} times")


@pytest.mark.slow
def test_memory_worker_that_the_kernel_ends_is_named_so(start_method: str, tmp_path: Path) -> None:
    """WorkerDied suspects memory, others go on, and the next attempt runs with no other beside it."""
    result, folder = run_out_of_memory(start_method, tmp_path)
    assert result.rc == 0, result.out + result.err
    told = json.loads(result.out)
    assert (told["kind"], told["cause"], told["signal"]) == ("WorkerDied", "memory", "SIGKILL")
    assert "'big'" in told["text"]
    assert "suspected cause: memory" in told["text"]
    assert (told["attempts"], told["beside"]) == (2, [0] * 40)
    assert (told["deaths"], told["alone"]) == (TOO_MUCH, 1)
    spans = [line.split() for line in (folder / "log").read_text().splitlines()]
    ((begun, ended),) = [(int(a), int(b)) for name, a, b in spans if name == "alone"]
    others = [(int(a), int(b)) for name, a, b in spans if name == "beside"]
    assert len(others) == 40
    assert [span for span in others if span[0] < ended and span[1] > begun] == []
