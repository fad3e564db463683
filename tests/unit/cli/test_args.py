"""The command line."""

from __future__ import annotations

import pytest

from mpsched.cli.args import parse_map, parse_size
from mpsched.cli.problems import Usage


def test_args_inputs_may_stand_behind_options() -> None:
    """INPUT is found before and behind options, as with other commands."""
    options = parse_map(["f.py:g", "a", "--files", "b", "-j", "3", "c"])
    assert options.func == "f.py:g"
    assert options.inputs == ("a", "b", "c")
    assert options.workers == 3


def test_args_an_input_may_begin_with_a_dash_behind_two() -> None:
    """Behind `--` a dash is no option."""
    assert parse_map(["f.py:g", "--", "-x"]).inputs == ("-x",)


def test_args_glob_implies_files() -> None:
    """--glob needs no --files beside it."""
    assert parse_map(["f.py:g", "d", "--glob", "*.x"]).files


def test_args_fail_fast_is_one_failure() -> None:
    """--fail-fast is --max-failures 1."""
    assert parse_map(["f.py:g", "--fail-fast"]).max_failures == 1


def test_args_form_follows_from_the_options() -> None:
    """Each way to pass an input has its name."""
    forms = {
        (): "text",
        ("--lines",): "text",
        ("--batch", "3"): "batch",
        ("--block", "1M"): "block",
        ("--kwargs",): "kwargs",
    }
    assert {words: parse_map(["f:g", *words]).form for words in forms} == forms


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "FUNC is missing"),
        (["f:g", "--no-such"], "--no-such"),
        (["f:g", "--form", "x"], "did you mean --from?"),
        (["f:g", "--worker=2"], "did you mean --workers?"),
        (["f:g", "-j", "1025"], "at most 1,024"),
        (["f:g", "--lines", "--kwargs"], "--kwargs reads lines"),
        (["f:g", "--block", "1M", "--lines"], "choose one"),
        (["f:g", "--batch", "2", "--kwargs"], "--batch"),
        (["f:g", "--from", "x", "y"], "in one way"),
        (["f:g", "--resume"], "--out FILE"),
        (["f:g", "--overwrite"], "--out FILE"),
        (["f:g", "--out", "x", "--resume", "--overwrite"], "choose one"),
        (["f:g", "--out", "x", "--force"], "--resume"),
        (["f:g", "--out", "x", "--resume", "--reduce", "f:h"], "no rows"),
        (["f:g", "--reduce", "f:h", "--out-dir", "d"], "choose one"),
        (["f:g", "--suffix", ".x"], "--out-dir"),
        (["f:g", "--out-dir", "d", "--suffix", "x"], "dot"),
        (["f:g", "--out-dir", "d", "--suffix", "./x"], "dot"),
        (["f:g", "--out-dir", "d", "--batch", "2"], "one file per input"),
        (["f:g", "--batch", "0"], "too small"),
        (["f:g", "-j", "-1"], "'-1' is not a number from 0"),
        (["f:g", "-j", "x"], "not a number"),
        (["f:g", "--timeout", "0"], "seconds"),
        (["f:g", "--timeout", "nan"], "seconds"),
        (["f:g", "--arg", "x"], "NAME=VALUE"),
        (["f:g", "--arg", "a-b=1"], "NAME=VALUE"),
        (["f:g", "--block", "12Q"], "not a size"),
    ],
)
def test_args_what_cannot_be_is_refused(words: list[str], said: str) -> None:
    """A wrong command line is a Usage that says what is wrong."""
    with pytest.raises(Usage) as caught:
        parse_map(words)
    assert said in str(caught.value)


def test_args_help_names_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    """--help prints and ends with status 0."""
    with pytest.raises(SystemExit) as caught:
        parse_map(["--help"])
    assert caught.value.code == 0
    shown = capsys.readouterr().out
    for option in ("--out-dir", "--resume", "--reduce", "--capture", "-0", "--largest-first"):
        assert option in shown


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1", 1),
        ("4096", 4096),
        ("64K", 65536),
        ("64M", 1 << 26),
        ("1GiB", 1 << 30),
        ("2tb", 2 << 40),
    ],
)
def test_args_sizes_are_powers_of_1024(text: str, size: int) -> None:
    """A size is bytes, or has a unit."""
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "M", "0", "0K", "-1", "1.5M", "1KK", "0x10"])
def test_args_what_is_no_size_is_refused(text: str) -> None:
    """Anything else is a ValueError that shows it."""
    with pytest.raises(ValueError, match="is not a size"):
        parse_size(text)
