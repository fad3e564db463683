"""What every test gets: an empty folder, a seed, and a look at what it has left behind."""

from __future__ import annotations

import os
import random
import secrets
import shutil
import signal
import sys
import zlib
from typing import TYPE_CHECKING, Any

import pytest

from tests.support import leaks

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

START_METHODS = ("forkserver", "spawn", "fork")

# Folders of tests that start processes: their orphans are looked for as well.
_WITH_PROCESSES = ("process", "contract")

_SEED = int(os.environ.get("MPSCHED_SEED") or secrets.randbits(32))
_RUN = secrets.token_hex(8)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of this suite."""
    parser.addoption(
        "--start-method",
        choices=START_METHODS,
        help="run tests that take a start method with this one only",
    )
    parser.addoption(
        "--kills",
        type=int,
        default=10_000,
        help="of workers at random in all, by test_soak_pool_survives_ten_thousand_kills",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Mark what the run starts, and keep hypothesis's notes out of the tests' folders."""
    os.environ[leaks.RUN_VARIABLE] = _RUN
    # A shell starts what it puts into the background so, and every process would inherit it.
    for number, handler in (
        (signal.SIGINT, signal.default_int_handler),
        (signal.SIGQUIT, signal.SIG_DFL),
    ):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)
    # What a test run starts must not inherit the user's wishes about widths and seeds.
    os.environ["MPSCHED_SEED"] = str(_SEED)
    if config.pluginmanager.has_plugin("hypothesispytest"):
        from hypothesis import configuration, settings

        configuration.set_hypothesis_home_dir(config.rootpath / ".hypothesis")
        # Two shared cores: how long an example takes says nothing.
        settings.register_profile("mpsched", deadline=None, print_blob=True)
        settings.load_profile("mpsched")


def pytest_report_header() -> str:
    """Say how to repeat the run."""
    return f"seed: MPSCHED_SEED={_SEED}"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that takes `start_method` once with each; of the contract's, one is for the night."""
    if "start_method" in metafunc.fixturenames:
        only = metafunc.config.getoption("--start-method")
        methods: list[Any] = [only] if only else [*START_METHODS]
        if not only and metafunc.module.__name__.startswith("tests.contract."):
            # A thousand tests: by day each with the default and one of the others, by its name.
            left = 1 + zlib.crc32(metafunc.function.__name__.encode()) % 2
            methods[left] = pytest.param(methods[left], marks=pytest.mark.slow)
        metafunc.parametrize("start_method", methods, indirect=True)


@pytest.fixture
def start_method(request: pytest.FixtureRequest) -> str:
    """A way to start workers; the test runs once with each that the system has."""
    method: str = request.param
    if method != "spawn" and not hasattr(os, "fork"):
        pytest.skip(f"no {method} on this system")
    return method


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """A number of this test's own, the same in each run with the same MPSCHED_SEED."""
    print(f"MPSCHED_SEED={_SEED}")  # shown when the test fails
    return random.Random(f"{_SEED} {request.node.nodeid}").getrandbits(32)


@pytest.fixture
def rng(seed: int) -> random.Random:
    """A generator of this test's own; see `seed`."""
    return random.Random(seed)


@pytest.fixture(scope="session")
def empty_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The current folder of all tests, which each leaves empty."""
    return tmp_path_factory.mktemp("cwd")


@pytest.fixture(autouse=True)
def nothing_left(request: pytest.FixtureRequest, empty_folder: Path) -> Iterator[None]:
    """Fail a test that leaves a process, thread, descriptor, `/dev/shm` entry or file, or an exception."""
    room = request.path.relative_to(request.config.rootpath).parts[1]
    run = _RUN if room in _WITH_PROCESSES else ""
    home = os.getcwd()
    os.chdir(empty_folder)
    try:
        before = leaks.snapshot(run)
        handled = sys.exc_info()[1]
        yield
        left = leaks.left_since(before, run=run)
        if sys.exc_info()[1] is not handled:
            # It would be the context of whatever later tests raise.
            left.append(f"an exception that is still being handled: {sys.exc_info()[1]!r}")
        if left:
            pytest.fail("the test left behind:\n  " + "\n  ".join(left), pytrace=False)
    finally:
        os.chdir(home)
        for name in os.listdir(empty_folder):
            _remove(empty_folder / name)


def _remove(path: Path) -> None:
    """Remove what a test has left, so that the next starts in an empty folder."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
