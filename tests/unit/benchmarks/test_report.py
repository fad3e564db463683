"""The table of the benchmarks."""

from __future__ import annotations

from benchmarks import report
from benchmarks.harness import Gap, Measure, Row, Run, Target


def never(_: Run) -> float:
    raise AssertionError("no sample is taken here")


def rate(*targets: Target) -> Measure:
    return Measure("pool", "a measure", "tasks/s", ("mpsched", "peer", "other"), targets, never)


def row(system: str, value: float) -> Row:
    return Row("pool", "a measure", system, value, "tasks/s", value * 0.9, value * 1.1)


OURS, PEER = row("mpsched", 2000.0), row("peer", 100.0)


def test_table_shows_ratio_and_figure_beside_the_peer() -> None:
    """The peer's line has our value over its value, the figure to reach and whether it is."""
    title, ours, peer = report.table(rate(Target(">=", 20, "peer")), [OURS, PEER])
    assert title == "a measure (tasks/s)"
    assert ours.split() == ["mpsched", "2,000", "1,800", "-", "2,200"]
    assert peer.split() == ["peer", "100", "90", "-", "110", "20", "x", ">=", "20", "x", "ok"]


def test_table_says_short_of_a_figure() -> None:
    """A figure that is not reached is marked."""
    *_, peer = report.table(rate(Target(">=", 20.1, "peer")), [OURS, PEER])
    assert peer.endswith(">= 20.1 x SHORT")


def test_table_puts_a_figure_without_peer_on_our_line() -> None:
    """A figure in the measure's own unit stands beside our value."""
    _, ours, _ = report.table(rate(Target("<=", 1024)), [OURS, PEER])
    assert ours.endswith("<= 1024 SHORT")


def test_table_tells_missing_from_failed() -> None:
    """A peer that is not installed and one that broke are told apart, with the reason."""
    gaps = [
        Gap("a measure", "peer", missing=True, why="not installed"),
        Gap("a measure", "other", missing=False, why="it broke"),
    ]
    _, _, missing, failed = report.table(rate(), [OURS, *gaps])
    assert missing.split(maxsplit=1) == ["peer", "missing: not installed"]
    assert failed.split(maxsplit=1) == ["other", "FAILED: it broke"]


def test_table_without_ours_shows_the_peers() -> None:
    """Peers can be measured alone: their values are shown, without ratio or verdict."""
    _, peer = report.table(rate(Target(">=", 20, "peer")), [PEER])
    assert peer.split() == ["peer", "100", "90", "-", "110"]


def test_summary_counts_figures_and_lists_the_others() -> None:
    """What was not reached, or could not be told, is listed."""
    measure = rate(Target(">=", 20, "peer"), Target(">=", 5, "other"), Target("<=", 30))
    lines = list(report.summary([measure], [OURS, PEER]))
    assert lines == [
        "1 of 3 figures reached",
        "  ?     a measure: >= 5 x other",
        "  SHORT a measure: <= 30",
    ]


def test_markdown_has_a_line_for_each_figure_that_was_taken() -> None:
    """The table for the README leaves out figures against a peer that is missing."""
    measure = rate(Target(">=", 20, "peer"), Target(">=", 5, "other"), Target("<=", 30))
    assert list(report.markdown([measure], [OURS, PEER], "a machine")) == [
        "Taken on: a machine.",
        "",
        "| measure | mpsched | beside | ratio | to reach | |",
        "|---|---|---|---|---|---|",
        "| a measure | 2,000 tasks/s | peer 100 | 20 x | >= 20 x | ok |",
        "| a measure | 2,000 tasks/s |  |  | <= 30 tasks/s | SHORT |",
    ]
