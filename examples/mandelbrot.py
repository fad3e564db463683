"""The Mandelbrot set as a picture: a loop that splits itself, written as a PNG file.

Writes `mandelbrot.png` into the current folder, or to the path that is given, and prints where it is
and who computed how many rows. Some rows take ten times as long as others; nobody has to
say how to spread them.
"""

from __future__ import annotations

import struct
import sys
import zlib
from collections import Counter
from pathlib import Path

import mpsched

WIDTH, HEIGHT, ITERATIONS = 360, 240, 100


def escape(c: complex) -> int:
    """Return after how many steps a point leaves the circle of radius 2; ITERATIONS if it stays."""
    z = 0j
    for step in range(ITERATIONS):
        if abs(z) > 2.0:
            return step
        z = z * z + c
    return ITERATIONS


def row(y: int) -> tuple[int, bytes]:
    """Return who computes a row of the picture, and its shades of grey."""
    points = (complex(3 * x / WIDTH - 2.2, 2 * y / HEIGHT - 1) for x in range(WIDTH))
    shades = bytes(255 - 255 * escape(point) // ITERATIONS for point in points)
    worker = mpsched.current_worker()
    return (worker.index if worker else 0), shades


def png(rows: list[bytes]) -> bytes:
    """Return a picture in shades of grey as the bytes of a PNG file."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + check

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", len(rows[0]), len(rows), 8, 0, 0, 0, 0))
    body = chunk(b"IDAT", zlib.compress(b"".join(b"\0" + line for line in rows)))
    return b"\x89PNG\r\n\x1a\n" + head + body + chunk(b"IEND", b"")


def main() -> None:
    """Compute and write the picture."""
    path = Path(*sys.argv[1:] or ["mandelbrot.png"])
    with mpsched.WorkStealingExecutor():
        found = mpsched.parallel.map(row, range(HEIGHT))
    path.write_bytes(png([shades for _, shades in found]))
    for worker, rows in sorted(Counter(worker for worker, _ in found).items()):
        print(f"worker {worker}: {rows} rows")
    print(f"{path}: {WIDTH} x {HEIGHT}, {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
