"""Workers that the kernel itself ends, because their control group has no memory left."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.support.memory_groups import memory_group
from tests.support.scripts import run_script

if TYPE_CHECKING:
    from pathlib import Path

MB = 1 << 20

PROGRAM = """
    import contextlib, json, os, sys, time
    from pathlib import Path

    with open(os.path.join(sys.argv[1], "cgroup.procs"), "w") as group:
        group.write(str(os.getpid()))

    # None of these is ended in place of the one that takes too much.
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:
        score.write("-1000")

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
        big = ex.options(name="big").submit(calls.swell_first_to_go, *first)
        queued = [ex.submit(calls.identity, n) for n in range(50)]
        error = big.exception(DEADLINE_S)
        assert [future.result(DEADLINE_S) for future in queued] == list(range(50))
        assert not other.done() and alive(healthy)
        release(here, "other")
        assert other.result(DEADLINE_S) == "other"
        assert_full_width(ex, here)

        once = ex.options(retries=1).submit(calls.swell_first_to_go, 900, str(here / "log"), str(here))
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


@pytest.mark.slow
def test_memory_worker_that_the_kernel_ends_is_named_so(start_method: str, tmp_path: Path) -> None:
    """WorkerDied suspects memory, others go on, and the next attempt runs with no other beside it."""
    with memory_group(300 * MB) as group:
        result = run_script(PROGRAM, args=[str(group), str(tmp_path), start_method])
    assert result.rc == 0, result.out + result.err
    told = json.loads(result.out)
    assert (told["kind"], told["cause"], told["signal"]) == ("WorkerDied", "memory", "SIGKILL")
    assert "'big'" in told["text"]
    assert "suspected cause: memory" in told["text"]
    assert (told["attempts"], told["beside"]) == (2, [0] * 40)
    assert (told["deaths"], told["alone"]) == (2, 1)
    spans = [line.split() for line in (tmp_path / "log").read_text().splitlines()]
    ((begun, ended),) = [(int(a), int(b)) for name, a, b in spans if name == "alone"]
    others = [(int(a), int(b)) for name, a, b in spans if name == "beside"]
    assert len(others) == 40
    assert [span for span in others if span[0] < ended and span[1] > begun] == []
