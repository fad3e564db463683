"""What the tests of payloads and shared arrays let another process do (see elsewhere.py)."""

from __future__ import annotations

import os
import pickle
import resource
import tempfile
import time
from typing import TYPE_CHECKING, Any

from mpsched._shm import memfile, payloads, references, transfer

if TYPE_CHECKING:
    from collections.abc import Sequence

kept: dict[str, Any] = {}


def sums(pid: int, files: Any) -> list[int]:
    """Fetch buffers, keep them, and return the sum of the bytes of each."""
    kept["views"] = views = payloads.fetch(pid, files)
    return [sum(view) for view in views]


def fill_and_sum(pid: int, files: Any, value: int) -> list[int]:
    """Fetch buffers, write `value` into every byte, and return the sums."""
    views = payloads.fetch(pid, files)
    for view in views:
        view[:] = bytes([value]) * view.nbytes
    return [sum(view) for view in views]


def sums_of_kept() -> list[int]:
    return [sum(view) for view in kept["views"]]


def fetch_many(pid: int, all_files: Any) -> int:
    """Fetch and drop many parcels; return how many bytes these were."""
    return sum(view.nbytes for files in all_files for view in payloads.fetch(pid, files))


def own_bytes_of_mapping(pid: int, files: Any) -> int:
    """Map buffers, read every page, and return by how much this process's own memory has grown."""
    before = _own_bytes()
    views = payloads.fetch(pid, files)
    assert sum(sum(view[::4096]) for view in views) >= 0
    grown = _own_bytes() - before
    del views
    return grown


def _own_bytes() -> int:
    """Bytes in no file: a page of a memory file is counted as private while only one maps it."""
    with open("/proc/self/smaps_rollup") as smaps:
        return next(int(line.split()[1]) * 1024 for line in smaps if line.startswith("Anonymous:"))


def open_fds() -> int:
    return len(os.listdir("/proc/self/fd"))


def here() -> Any:
    import tests.support.elsewhere as this

    return this.channel


def send_results(contents: Sequence[Sequence[bytes]], first_tag: int) -> list[Any]:
    """Send payloads by descriptor, close them, and return the spans of each."""
    spans = []
    for tag, buffers in enumerate(contents, first_tag):
        payload = payloads.create(buffers)
        transfer.send(here(), payload, tag)
        spans.append(payload.spans)
        payload.close()
    return spans


def send_as_nobody(count: int) -> int:
    """Send many files with a limit of few in flight, as a user without privileges."""
    payload = payloads.create([b"abc"])
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (20, hard))
    if not os.getuid():
        os.setresuid(65534, 65534, 65534)
    for tag in range(count):
        transfer.send(here(), payload, tag)
    return count


def fill_disk_file(folder: str, size: int) -> str:
    """Make a payload of `size` bytes where there are no memory files; return the error's text."""
    tempfile.tempdir = folder
    had = os.memfd_create
    del os.memfd_create
    try:
        payload = payloads.create([bytes(size)])
    except OSError as error:
        return str(error)
    finally:
        os.memfd_create = had
    return f"made {payload.size}"


def reserve_on_disk(folder: str, size: int) -> str:
    """As `fill_disk_file`, for memory that is to be written through a mapping."""
    tempfile.tempdir = folder
    had = os.memfd_create
    del os.memfd_create
    try:
        os.close(memfile.make_zeroed(size))
    except OSError as error:
        return str(error)
    finally:
        os.memfd_create = had
    return f"made {size}"


def fork_and_free() -> int:
    """Fork, free a payload in the child after its number became another file's; exit status."""
    payload = payloads.create([b"abc"])
    block = references.Block.create(5000)
    pid = os.fork()
    if not pid:
        status = 1
        try:
            fds = [payload.fd, *block.descriptors()]
            for fd in fds:
                os.dup2(os.open("/dev/null", os.O_RDONLY), fd)
            payload.close()
            del block
            for fd in fds:
                os.fstat(fd)
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


# --- arrays ------------------------------------------------------------------------------------


def loads(data: bytes) -> Any:
    """Unpickle and keep something."""
    kept["loaded"] = value = pickle.loads(data)
    return value


def forget() -> None:
    kept.clear()


def set_item(data: bytes, index: Any, value: Any) -> None:
    pickle.loads(data)[index] = value


def add_one_in_place(data: bytes) -> float:
    array = pickle.loads(data)
    array += 1
    return float(array.sum())


def send_back(tag: int) -> bytes:
    """Return the kept array as a worker returns a result, then forget it."""
    with references.collect() as held:
        data = pickle.dumps(kept["loaded"], 5)
    transfer.send(here(), None, tag, also=[fd for one in held for fd in one.descriptors()])
    del held[:]
    kept.clear()
    return data


def make_and_send(tag: int, size: int) -> bytes:
    """Make a shared array 0, 1, 2 ... here and return it as a worker returns a result."""
    from mpsched.arrays import shared_copy

    kept["loaded"] = shared_copy(list(range(size)))
    return send_back(tag)


def load_many_times(data: bytes, times: int) -> tuple[int, int]:
    """Unpickle and keep an array many times; return (descriptors, mappings) that this took."""
    before = open_fds(), _mappings()
    arrays = [pickle.loads(data) for _ in range(times)]
    after = open_fds(), _mappings()
    assert len(arrays) == times
    return after[0] - before[0], after[1] - before[1]


def _mappings() -> int:
    with open("/proc/self/maps") as maps:
        return sum("mpsched-shared" in line for line in maps)


def increments(data: bytes, index: int, times: int) -> None:
    """Write one's own element many times, beside others that do the same."""
    array = pickle.loads(data)
    for _ in range(times):
        array[index] += 1


def sleep_until_told(data: bytes) -> float:
    """Hold an array until its first item is set."""
    array = pickle.loads(data)
    deadline = time.monotonic() + 60
    while not array[0]:
        assert time.monotonic() < deadline, "nobody has set the first item"
    return float(array[0])


# --- tasks of a pool ---------------------------------------------------------------------------


def same(value: Any) -> Any:
    return value


def set_own(array: Any, index: int) -> int:
    array[index] = index + 1
    return index


def spoil(array: Any) -> Any:
    """Change an argument in place, and return it."""
    array += 1
    return array


def wait_for(path: str, value: Any) -> Any:
    """Hold a worker until a file is there."""
    deadline = time.monotonic() + 60
    while not os.path.exists(path):
        assert time.monotonic() < deadline, f"{path} did not appear"
        time.sleep(0.001)
    return value


def total(value: Any) -> float:
    return float(value["array"].sum()) if isinstance(value, dict) else float(value.sum())


def filled_in_worker(size: int, fill: float) -> Any:
    from mpsched.arrays import shared_array

    return shared_array(size, fill=fill)
