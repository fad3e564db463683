"""What is printed: the table of times, each worker's share, and findings about the library."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

from .systems import LOOKED_AT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from .systems import Outcome


def disagreements(outcomes: list[Outcome]) -> list[str]:
    """Compare every system with the first, row by row; one line for each difference."""
    first, *others = outcomes
    lines: list[str] = []
    for other in others:
        lines += _differences(other.system, "file", first.files, other.files)
        lines += _differences(other.system, "function", first.shapes, other.shapes)
    return lines


def _differences(
    system: str, what: str, rows: Sequence[object], others: Sequence[object]
) -> Iterator[str]:
    if len(rows) != len(others):
        yield f"{system}: {len(others)} {what} rows instead of {len(rows)}"
    for index, (row, other) in enumerate(zip(rows, others, strict=False)):
        if row != other:
            yield f"{system}: {what} row {index} is {other!r} instead of {row!r}"


def times(outcomes: list[Outcome]) -> Iterator[str]:
    """The table of times; speed-ups are over the first system."""
    first = outcomes[0]
    whole = first.file_seconds + first.function_seconds
    yield f"{'':21}{f'{len(first.files):,} files':>18}{f'{len(first.shapes):,} functions':>20}{'both':>18}"
    for outcome in outcomes:
        total = outcome.file_seconds + outcome.function_seconds
        yield (
            f"{outcome.system:21}"
            f"{outcome.file_seconds:8.2f} s {first.file_seconds / outcome.file_seconds:6.2f} x"
            f"{outcome.function_seconds:10.2f} s"
            f" {first.function_seconds / outcome.function_seconds:6.2f} x"
            f"{total:8.2f} s {whole / total:6.2f} x"
        )


def worker_shares(outcomes: list[Outcome]) -> Iterator[str]:
    """What each worker of each system did."""
    yield f"{'':21}{'worker':>8}{'items':>10}{'share':>9}{'CPU':>10}{'steals':>9}"
    for outcome in outcomes:
        total = sum(share.items for share in outcome.shares)
        for index, share in enumerate(outcome.shares):
            steals = "-" if share.steals is None else f"{share.steals:,}"
            yield (
                f"{outcome.system if index == 0 else '':21}{index:8}{share.items:10,}"
                f"{share.items / total:9.1%}{share.busy:8.2f} s{steals:>9}"
            )


def findings(outcome: Outcome, root: Path) -> Iterator[str]:
    """What the rows tell about the library; `root` is cut from the paths."""

    def short(path: str) -> str:
        return Path(path).relative_to(root).as_posix()

    files = outcome.files
    parsed = [row for row in files if not row.error]
    functions = [(f, row) for row in parsed for f in row.functions]
    lines = sum(row.lines for row in files)
    size = sum(row.size for row in files)
    kinds: Counter[str] = Counter()
    for row in parsed:
        kinds.update(dict(row.kinds))
    yield (
        f"{lines:,} lines, {size / 1e6:.1f} MB, {kinds.total():,} syntax nodes,"
        f" {len(functions):,} functions"
    )
    common = ", ".join(
        f"{kind} {count / kinds.total():.0%}" for kind, count in kinds.most_common(4)
    )
    yield f"most frequent nodes: {common}"
    if len(parsed) < len(files):
        broken = next(row for row in files if row.error)
        yield (
            f"files that do not parse, on purpose: {len(files) - len(parsed)}; for one,"
            f" {short(broken.path)}: {broken.error}"
        )
    if functions:
        function, row = max(functions, key=lambda pair: pair[0].complexity)
        share = sum(f.complexity > 10 for f, _ in functions) / len(functions)
        yield (
            f"most complex function: {function.name} in {short(row.path)}, {function.complexity}"
            f" paths; {share:.1%} of all have more than 10"
        )
        function, row = max(functions, key=lambda pair: pair[0].lines)
        yield f"longest function: {function.name} in {short(row.path)}, {function.lines:,} lines"
    large = [row for row in parsed if row.size > 10_000]
    if large:
        tight = min(large, key=lambda row: row.zlib_size / row.size)
        loose = max(large, key=lambda row: row.zlib_size / row.size)
        yield (
            f"compressed, {short(tight.path)} is {tight.zlib_size / tight.size:.1%} of itself,"
            f" {short(loose.path)} {loose.zlib_size / loose.size:.1%}"
        )
    yield from _look_alikes(outcome, short)


def _look_alikes(outcome: Outcome, short: Callable[[str], str]) -> Iterator[str]:
    """The longest function that was written more than once, give or take its names."""
    functions = [(f, row) for row in outcome.files for f in row.functions if f.lines >= LOOKED_AT]
    families = defaultdict(list)
    for (function, row), shape in zip(functions, outcome.shapes, strict=True):
        families[shape].append((function, row))
    twins = [family for family in families.values() if len({row.path for _, row in family}) > 1]
    if twins:
        alike = sum(len(family) for family in twins)
        family = max(twins, key=lambda family: family[0][0].lines)
        (left, left_row), *others = family
        right, right_row = next(other for other in others if other[1].path != left_row.path)
        yield (
            f"{alike:,} functions of {LOOKED_AT} lines or more look like one in another file;"
            f" the longest is {left.name}, {left.lines} lines, in {short(left_row.path)} and as"
            f" {right.name} in {short(right_row.path)}"
        )
