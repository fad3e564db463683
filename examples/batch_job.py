"""A batch job over files: some fail, one kills its worker, and the batch goes on.

Makes a folder of text files and counts their words. One file is not text: its row says why. One
kills the worker that reads it the first time, as a crash in a C library would: it is run again.
Prints a row for each file, and how many of them failed.
"""

from __future__ import annotations

import os
import signal
import tempfile
from pathlib import Path

import mpsched


def count_words(path: Path) -> int:
    """Count the words of one file, whatever happens to the process that does it."""
    task = mpsched.current_task()
    if path.stem == "crashes" and task is not None and task.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return len(path.read_text(encoding="utf-8").split())


def make_inputs(folder: Path) -> list[Path]:
    """Write twelve files of text and two that make trouble."""
    for number in range(1, 13):
        (folder / f"chapter{number:02}.txt").write_text("so it goes " * number, encoding="utf-8")
    (folder / "crashes.txt").write_text("works the second time", encoding="utf-8")
    (folder / "picture.txt").write_bytes(b"\x89PNG\r\n")
    return sorted(folder.glob("*.txt"))


def main() -> None:
    """Run the batch."""
    failed = 0
    with tempfile.TemporaryDirectory() as folder, mpsched.WorkStealingExecutor(2) as ex:
        # A run that takes longer than 10 s is ended; one that dies is tried twice more.
        careful = ex.options(timeout=10, retries=2)
        jobs = {careful.submit(count_words, path): path for path in make_inputs(Path(folder))}
        for job, path in jobs.items():
            if (error := job.exception()) is not None:
                failed += 1
                print(f"{path.name}: FAILED, {type(error).__name__}: {error}")
            else:
                print(f"{path.name}: {job.result()} words, attempts {job.attempts}")
    print(f"{len(jobs)} files, {failed} failed")


if __name__ == "__main__":
    main()
