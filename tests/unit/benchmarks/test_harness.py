"""The harness of the benchmarks: samples, rounds, rows."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from benchmarks import harness, peers, suite_pool
from benchmarks.__main__ import main
from benchmarks.calm import Sample
from benchmarks.harness import Gap, Measure, Row, Run, Target
from benchmarks.suites import SUITES

if TYPE_CHECKING:
    from pathlib import Path


def never(_: Run) -> float:
    raise AssertionError("no sample is taken here")


def measure(*systems: str) -> Measure:
    return Measure("pool", "a measure", "tasks/s", systems, (), never)


def test_collect_takes_each_system_in_each_round() -> None:
    """Samples of the systems alternate, and each system's median, lowest and highest are kept."""
    order: list[str] = []

    def take(_: Measure, system: str) -> Sample:
        order.append(system)
        return Sample(float(len(order)), len(order) / 100)

    rows = list(harness.collect(measure("a", "b"), ("a", "b"), 3, take, lambda _: None))
    assert order == ["a", "b"] * 3
    assert rows == [
        Row("pool", "a measure", "a", 3.0, "tasks/s", 1.0, 5.0, stolen=0.05),
        Row("pool", "a measure", "b", 4.0, "tasks/s", 2.0, 6.0, stolen=0.06),
    ]


def test_collect_leaves_out_a_system_that_failed() -> None:
    """A system that cannot be measured is not tried again, and the others go on."""
    gap = Gap("a measure", "b", missing=True, why="not installed")
    order: list[str] = []

    def take(_: Measure, system: str) -> Sample | Gap:
        order.append(system)
        return gap if system == "b" else Sample(1.0, 0.0)

    outcomes = list(harness.collect(measure("a", "b"), ("a", "b"), 2, take, lambda _: None))
    assert order == ["a", "b", "a"]
    assert outcomes[1] is gap


def test_rows_have_the_documented_keys() -> None:
    """What `--json` writes can be read back, with eight keys and what it was taken on."""
    row = Row("pool", "a measure", "a", 3.0, "tasks/s", 1.0, 5.0, stolen=0.25)
    (read,) = json.loads(harness.as_json([row], "a machine"))
    assert read == {
        "suite": "pool",
        "measure": "a measure",
        "system": "a",
        "value": 3.0,
        "unit": "tasks/s",
        "low": 1.0,
        "high": 5.0,
        "stolen": 0.25,
        "machine": "a machine",
    }


def test_rows_that_were_taken_before_are_read_again() -> None:
    """With what each was taken on; what is no such file is an error that says so."""
    rows = [Row("pool", name, "a", 3.0, "tasks/s", 1.0, 5.0) for name in ("one", "two")]
    assert harness.from_json(harness.as_json(rows, "a machine")) == [
        (row, "a machine") for row in rows
    ]
    older = json.loads(harness.as_json(rows, "a machine"))
    for entry in older:
        del entry["stolen"]  # rows from before it was measured
    assert harness.from_json(json.dumps(older)) == [(row, "a machine") for row in rows]
    for text in ('[{"suite": "pool"}]', "[3]", "3"):
        with pytest.raises(ValueError, match="no rows of a benchmark"):
            harness.from_json(text)


def test_picture_and_table_of_rows_that_were_taken_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is measured."""
    name = "mandelbrot 1024 x 1024: T_S / T_2"
    row = Row("forkjoin", name, "mpsched", 1.875, "x", 1.5, 2.0)
    file, drawn, table = tmp_path / "rows.json", tmp_path / "drawn.svg", tmp_path / "table.md"
    file.write_text(harness.as_json([row], "a machine"), encoding="utf-8")
    given = ["--rows", str(file), "--picture", str(drawn), "--markdown", str(table)]
    assert main(["forkjoin", *given]) == 0
    assert "a machine" in table.read_text(encoding="utf-8")
    assert ">1.88</text>" in drawn.read_text(encoding="utf-8")
    assert "1 of 1 figures reached" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("target", "value", "good"),
    [
        (Target(">=", 20), 20.0, True),
        (Target(">=", 20), 19.9, False),
        (Target("<=", 0.3), 0.3, True),
        (Target("<=", 0.3), 0.31, False),
    ],
)
def test_target_bound_belongs_to_the_good_side(target: Target, value: float, good: bool) -> None:
    """A figure that is met exactly is reached."""
    assert target.holds(value) is good


def test_run_gives_slow_systems_fewer_tasks() -> None:
    """A sample takes the wanted number, or what the system makes in five seconds; quick a tenth."""
    assert Run("x").tasks(50_000) == 50_000
    assert Run("x").tasks(50_000, rate=400) == 2_000
    assert Run("x", quick=True).tasks(50_000, rate=400) == 200


def test_take_sample_reports_what_goes_wrong_in_it() -> None:
    """A sample whose process fails is a gap that says why, with no exception in the harness."""
    outcome = harness.take_sample(measure("nobody"), "nobody", workers=2, quick=True)
    assert isinstance(outcome, Gap)
    assert not outcome.missing
    assert "a measure" in outcome.why


def test_load_names_a_missing_peer() -> None:
    """A peer that is not installed is told apart from one that fails."""
    with pytest.raises(peers.Missing, match="no_such_pool"):
        peers.load("no_such_pool")


@pytest.mark.parametrize(
    ("durations", "workers", "end"),
    [
        ([1.0, 1.0, 1.0, 1.0], 2, 2.0),
        ([1.0, 1.0, 4.0], 2, 5.0),
        ([4.0, 1.0, 1.0], 2, 4.0),
        ([3.0, 2.0], 1, 5.0),
    ],
)
def test_greedy_makespan_gives_items_in_order_to_the_free(
    durations: list[float], workers: int, end: float
) -> None:
    """The yardstick for skewed items is the list schedule, not the best schedule there is."""
    assert suite_pool.greedy_makespan(durations, workers) == end


def test_suites_name_each_measure_once_with_ours_first() -> None:
    """A measure's name is the key of its results, and mpsched is always measured."""
    for name, suite in SUITES.items():
        names = [one.name for one in suite.measures]
        assert len(set(names)) == len(names)
        for one in suite.measures:
            assert one.suite == name
            assert one.systems[0] == harness.OURS
            assert {target.against for target in one.targets} <= {*one.systems, None}


def test_suite_pool_reaches_for_every_figure() -> None:
    """Each figure that the pool promises is asked for."""
    targets = [target for one in SUITES["pool"].measures for target in one.targets]
    assert len(targets) == 18


def test_plain_processes_map_in_order_and_end() -> None:
    """The yardstick of equal items gives what a pool would."""
    plain = peers.Plain(2)
    assert plain.map(abs, range(-5, 0)) == [5, 4, 3, 2, 1]
    assert plain.results([plain.submit(abs, -number) for number in range(3)]) == [0, 1, 2]
    plain.close()
    assert all(process.exitcode == 0 for process in plain._processes)
