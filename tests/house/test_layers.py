"""Imports go down only."""

from __future__ import annotations

import subprocess
import sys
import tomllib

from tests.house import places
from tests.support.scripts import ROOT

# The door itself, and the number that the build reads.
_NOT_ON_A_FLOOR = {"__init__", "_version"}


def test_layers_contracts_hold() -> None:
    """import-linter finds no import that goes up, or in through the door."""
    program = "from importlinter.cli import lint_imports; raise SystemExit(lint_imports({!r}, {}))"
    result = subprocess.run(
        [sys.executable, "-c", program.format(str(ROOT / "pyproject.toml"), "no_cache=True")],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
        cwd=ROOT,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert "0 broken" in result.stdout


def test_layers_every_module_stands_on_a_floor() -> None:
    """A new room or module is named in the contract, so that it is checked at all."""
    config = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    (contract,) = (c for c in config["tool"]["importlinter"]["contracts"] if c["type"] == "layers")
    named = {
        module.strip("() ")
        for layer in contract["layers"]
        for module in layer.replace(":", "|").split("|")
    }
    modules = {path.stem for path in places.PACKAGE.glob("*.py")} - _NOT_ON_A_FLOOR
    found = {f"mpsched.{name}" for name in modules | {room.name for room in places.rooms()}}
    assert found - named == set()
