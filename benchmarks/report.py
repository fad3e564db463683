"""The table on the terminal: mpsched beside each peer, with the ratio and the figure to reach."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .harness import OURS, Gap, Measure, Row, Target

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


def verdict(target: Target, ours: Row, peers: Mapping[str, Row]) -> str:
    """Say whether a figure is reached: "ok", "SHORT", or "?" when the peer was not measured."""
    if target.against is None:
        return "ok" if target.holds(ours.value) else "SHORT"
    peer = peers.get(target.against)
    if peer is None:
        return "?"
    return "ok" if target.holds(ours.value / peer.value) else "SHORT"


def table(measure: Measure, outcomes: Sequence[Row | Gap]) -> Iterator[str]:
    """The lines of one measure."""
    rows = {outcome.system: outcome for outcome in outcomes if isinstance(outcome, Row)}
    ours = rows.get(OURS)
    yield f"{measure.name} ({measure.unit})"
    for outcome in outcomes:
        if isinstance(outcome, Gap):
            yield f"  {outcome.system:30}{'missing' if outcome.missing else 'FAILED'}: {outcome.why}"
            continue
        spread = f"{amount(outcome.low)} - {amount(outcome.high)}"
        line = f"  {outcome.system:30}{amount(outcome.value):>12}  {spread:25}"
        if ours is not None and outcome is not ours and outcome.value:
            line += f"{ours.value / outcome.value:>10.3g} x"
        elif ours is outcome:
            line += " " * 12
        stolen = f"  up to {outcome.stolen:.0%} stolen" if outcome.stolen >= 0.005 else ""
        yield (line + figures(measure, outcome, ours, rows) + stolen).rstrip()


def figures(measure: Measure, row: Row, ours: Row | None, rows: Mapping[str, Row]) -> str:
    """The figures to reach that belong on a system's line: a peer's ratio, or our own value."""
    if ours is None:
        return ""
    texts = [
        f"{target.op} {target.bound:g}{'' if target.against is None else ' x'}"
        f" {verdict(target, ours, rows)}"
        for target in measure.targets
        if (target.against or OURS) == row.system
    ]
    return "".join(f"  {text}" for text in texts)


def summary(measures: Sequence[Measure], rows: Sequence[Row]) -> Iterator[str]:
    """One line on all figures, and one on each that is not reached."""
    reached = asked = 0
    short = []
    for measure in measures:
        found = {row.system: row for row in rows if row.measure == measure.name}
        ours = found.get(OURS)
        for target in measure.targets:
            asked += 1
            result = "?" if ours is None else verdict(target, ours, found)
            reached += result == "ok"
            if result != "ok":
                against = "" if target.against is None else f" x {target.against}"
                short.append(f"  {result:6}{measure.name}: {target.op} {target.bound:g}{against}")
    yield f"{reached} of {asked} figures reached"
    yield from short


def markdown(measures: Sequence[Measure], rows: Sequence[Row], taken_on: str) -> Iterator[str]:
    """The figures as README.md shows them: a line for each figure to reach, or to report."""
    yield f"Taken on: {taken_on}."
    yield ""
    yield "| measure | mpsched | beside | ratio | to reach | |"
    yield "|---|---|---|---|---|---|"
    for measure in measures:
        found = {row.system: row for row in rows if row.measure == measure.name}
        ours = found.get(OURS)
        if ours is None:
            continue
        value = f"{amount(ours.value)} {measure.unit}"
        for target in measure.targets:
            if target.against is None:
                to_reach = f"{target.op} {target.bound:g} {measure.unit}"
                line = (value, "", "", to_reach, verdict(target, ours, found))
            elif target.against in found:
                peer = found[target.against]
                beside = f"{peer.system} {amount(peer.value)}"
                to_reach = f"{target.op} {target.bound:g} x"
                line = (value, beside, _ratio(ours, peer), to_reach, verdict(target, ours, found))
            else:
                continue
            yield f"| {' | '.join((measure.name, *line))} |"
        if not measure.targets:
            for peer in found.values():
                if peer is not ours:
                    beside = f"{peer.system} {amount(peer.value)}"
                    line = (value, beside, _ratio(ours, peer), "reported", "")
                    yield f"| {' | '.join((measure.name, *line))} |"


def _ratio(ours: Row, peer: Row) -> str:
    return f"{ours.value / peer.value:.3g} x" if peer.value else ""


def amount(value: float) -> str:
    """A value in four digits or so, large ones with thousands marked."""
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"
