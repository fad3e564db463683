"""The functions that tests of the command call, as a user's file: without annotations, and printing."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

SOURCE = '''
from __future__ import annotations
import ctypes, os, pathlib, signal, sys, time
from pathlib import Path

print("imported")
STARTED = []

def upper(text):
    return text.upper()

def number(n: int):
    return n

def add(a, b):
    return a + b

def slow(text, seconds: float = 0.05):
    time.sleep(seconds)
    return text

def noisy(text):
    print("printed", text)
    ctypes.CDLL(None).puts(b"from C")
    os.write(1, b"raw\\n")
    return text

def fails(text):
    if text == "raise":
        raise ValueError("no good")
    if text == "exit":
        sys.exit("left")
    if text == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if text == "hang":
        time.sleep(1000)
    if text == "bytes":
        return {"cover": b"abc"}
    return text

def imports(text):
    import there_is_no_such_module

def gated(text, folder: Path):
    """Ends for `now...` at once, for others when the gate is open; every start is noted."""
    with open(folder / "calls", "a") as calls:
        calls.write(text + "\\n")
    while not text.startswith("now") and not (folder / "gate").exists():
        time.sleep(0.01)
    return text

def flaky(text, folder: Path):
    with open(folder / ("tries-" + text), "a") as tries:
        tries.write("x")
    if (folder / ("tries-" + text)).stat().st_size < 3:
        raise ValueError("not yet")
    return text

def init():
    STARTED.append(os.getpid())

def init_fails():
    raise RuntimeError("no model")

def started(text):
    return len(STARTED)

def large(text):
    return "x" * 100_000

def size_of(data: bytes):
    return len(data)

def copy(data: bytes):
    return data
'''


def write(folder: Path) -> Path:
    """Write `work.py` into a folder, and return the folder."""
    (folder / "work.py").write_text(textwrap.dedent(SOURCE), "utf-8")
    return folder


def calls(folder: Path) -> list[str]:
    """Return the texts for which `gated` was started."""
    path = folder / "calls"
    return path.read_text("utf-8").split() if path.exists() else []
