"""mpsched and its peers behind one small face.

Each adapter uses its system as that system's documentation does, with defaults; whatever a system
needs (a handle's `get`, a `gather`) is done in its own way, not through a slower common one. A
module is imported only when its system is opened.
"""

from __future__ import annotations

import multiprocessing
from abc import ABC, abstractmethod
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

from . import work

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from multiprocessing.connection import Connection
    from types import ModuleType


class Missing(Exception):
    """A peer is not installed; `make bench-setup` installs all."""


class Unfit(Missing):
    """A peer cannot do what is measured."""


def load(module: str) -> ModuleType:
    """Import a peer's module.

    Raises:
        Missing: It, or something it needs, is not installed.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise Missing(f"not installed: {error}") from error


class System(ABC):
    """A pool of a number of workers.

    Attributes:
        name: As it stands in tables.
        rate: No-op tasks per second by `submit`, roughly: bounds how many a sample takes.
        map_rate: The same by `map`.
        futures: Whether `submit` gives `concurrent.futures.Future`s.
    """

    name: ClassVar[str]
    rate: ClassVar[float] = 10_000
    map_rate: ClassVar[float] = 10_000
    futures: ClassVar[bool] = False

    @abstractmethod
    def __init__(self, workers: int) -> None:
        self.workers = workers

    @abstractmethod
    def submit(self, fn: Callable[..., Any], arg: Any, /) -> Any:
        """Start one call; returns the system's handle on it."""

    def results(self, handles: Iterable[Any]) -> list[Any]:
        """Wait for every handle, in order."""
        return [handle.result() for handle in handles]

    @abstractmethod
    def map(self, fn: Callable[..., Any], items: Sequence[Any]) -> list[Any]:
        """Apply `fn` to all items, results in order."""

    def iterate(self, fn: Callable[..., Any], items: Sequence[Any]) -> Iterator[Any]:
        """Like `map`, giving results while others are computed, where the system can."""
        return iter(self.map(fn, items))

    @abstractmethod
    def close(self) -> None:
        """End the workers."""

    def warm(self) -> None:
        """Run enough that every worker is up and has imported the functions."""
        self.results([self.submit(work.nap, 0.05) for _ in range(2 * self.workers)])
        self.results([self.submit(work.noop, number) for number in range(100)])


class ExecutorSystem(System):
    """What is an `Executor`: its own methods are used, with nothing in between."""

    futures = True

    @abstractmethod
    def executor(self, workers: int) -> Executor:
        """Make the executor."""

    def __init__(self, workers: int) -> None:
        super().__init__(workers)
        self._executor = self.executor(workers)
        self.submit = self._executor.submit  # type: ignore[method-assign]

    def submit(self, fn: Callable[..., Any], arg: Any, /) -> Future[Any]:
        return self._executor.submit(fn, arg)

    def map(self, fn: Callable[..., Any], items: Sequence[Any]) -> list[Any]:
        return list(self._executor.map(fn, items))

    def iterate(self, fn: Callable[..., Any], items: Sequence[Any]) -> Iterator[Any]:
        return self._executor.map(fn, items)

    def close(self) -> None:
        self._executor.shutdown()


class Mpsched(ExecutorSystem):
    name = "mpsched"
    rate = map_rate = 1e9

    def executor(self, workers: int) -> Executor:
        executor: Executor = load("mpsched").WorkStealingExecutor(workers)
        return executor


class Threads(ExecutorSystem):
    name = "ThreadPoolExecutor"
    rate = map_rate = 100_000

    def executor(self, workers: int) -> Executor:
        return ThreadPoolExecutor(workers)


class Processes(ExecutorSystem):
    """With fork, its fastest start method; it forks here, before any thread is started."""

    name = "ProcessPoolExecutor"

    def executor(self, workers: int) -> Executor:
        return ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("fork"))


class Loky(ExecutorSystem):
    name = "loky"

    def executor(self, workers: int) -> Executor:
        executor: Executor = load("loky").get_reusable_executor(max_workers=workers)
        return executor


class Deadpool(ExecutorSystem):
    name = "deadpool-executor"
    rate = map_rate = 2_000

    def executor(self, workers: int) -> Executor:
        executor: Executor = load("deadpool").Deadpool(max_workers=workers)
        return executor


class AtOnce(ExecutorSystem):
    """No pool: each future is complete when it is handed out. What the callers' side can reach."""

    name = "completes at once"
    rate = map_rate = 1e9

    def executor(self, workers: int) -> Executor:
        return _AtOnce()


class _AtOnce(Executor):
    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


class Pool(System):
    name = "multiprocessing.Pool"
    rate = 40_000
    map_rate = 1e9

    def __init__(self, workers: int) -> None:
        super().__init__(workers)
        self._pool = multiprocessing.get_context("fork").Pool(workers)

    def submit(self, fn: Callable[..., Any], arg: Any, /) -> Any:
        return self._pool.apply_async(fn, (arg,))

    def results(self, handles: Iterable[Any]) -> list[Any]:
        return [handle.get() for handle in handles]

    def map(self, fn: Callable[..., Any], items: Sequence[Any]) -> list[Any]:
        return self._pool.map(fn, items)

    def iterate(self, fn: Callable[..., Any], items: Sequence[Any]) -> Iterator[Any]:
        return self._pool.imap(fn, items)

    def close(self) -> None:
        self._pool.close()
        self._pool.join()


class Joblib(System):
    """joblib, which stands on loky: it maps, and shares large arrays as files."""

    name = "joblib"

    def __init__(self, workers: int) -> None:
        super().__init__(workers)
        self._joblib = load("joblib")

    def submit(self, fn: Callable[..., Any], arg: Any, /) -> Any:
        raise NotImplementedError("joblib has no submit; loky is measured there")

    def map(self, fn: Callable[..., Any], items: Sequence[Any]) -> list[Any]:
        call = self._joblib.delayed(fn)
        return list(self._joblib.Parallel(n_jobs=self.workers)(call(item) for item in items))

    def iterate(self, fn: Callable[..., Any], items: Sequence[Any]) -> Iterator[Any]:
        call = self._joblib.delayed(fn)
        parallel = self._joblib.Parallel(n_jobs=self.workers, return_as="generator")
        results: Iterator[Any] = parallel(call(item) for item in items)
        return results

    def close(self) -> None:
        self._joblib.externals.loky.get_reusable_executor().shutdown()

    def warm(self) -> None:
        self.map(work.nap, [0.05] * (2 * self.workers))


class Pebble(System):
    name = "Pebble"
    futures = True

    def __init__(self, workers: int) -> None:
        super().__init__(workers)
        context = multiprocessing.get_context("fork")
        self._pool = load("pebble").ProcessPool(max_workers=workers, context=context)

    def submit(self, fn: Callable[..., Any], arg: Any, /) -> Any:
        return self._pool.schedule(fn, args=(arg,))

    def map(self, fn: Callable[..., Any], items: Sequence[Any]) -> list[Any]:
        return list(self._pool.map(fn, items).result())

    def iterate(self, fn: Callable[..., Any], items: Sequence[Any]) -> Iterator[Any]:
        results: Iterator[Any] = self._pool.map(fn, items).result()
        return results

    def close(self) -> None:
        self._pool.close()
        self._pool.join()


class Mpire(System):
    name = "MPIRE"
    map_rate = 100_000

    def __init__(self, workers: int) -> None:
        super().__init__(workers)
        self._pool = load("mpire").WorkerPool(workers, start_method="fork", keep_alive=True)

    def submit(self, fn: Callable[..., Any], arg: Any, /) -> Any:
        return self._pool.apply_async(fn, (arg,))

    def results(self, handles: Iterable[Any]) -> list[Any]:
        return [handle.get() for handle in handles]

    def map(self, fn: Callable[..., Any], items: Sequence[Any]) -> list[Any]:
        return list(self._pool.map(fn, items))

    def iterate(self, fn: Callable[..., Any], items: Sequence[Any]) -> Iterator[Any]:
        results: Iterator[Any] = self._pool.imap(fn, items)
        return results

    def close(self) -> None:
        self._pool.stop_and_join()


class Dask(System):
    name = "Dask distributed"
    rate = map_rate = 400

    def __init__(self, workers: int) -> None:
        super().__init__(workers)
        distributed = load("distributed")
        self._cluster = distributed.LocalCluster(
            n_workers=workers, threads_per_worker=1, dashboard_address=None
        )
        self._client = distributed.Client(self._cluster)

    def submit(self, fn: Callable[..., Any], arg: Any, /) -> Any:
        return self._client.submit(fn, arg, pure=False)

    def results(self, handles: Iterable[Any]) -> list[Any]:
        return list(self._client.gather(list(handles)))

    def map(self, fn: Callable[..., Any], items: Sequence[Any]) -> list[Any]:
        return self.results(self._client.map(fn, items, pure=False))

    def close(self) -> None:
        self._client.close()
        self._cluster.close()


class Plain(System):
    """No pool: each process is given its share of all items beforehand. What equal items can reach.

    Nothing is between two items, and nobody else is awake meanwhile.
    """

    name = "plain processes"
    rate = map_rate = 1e9

    def __init__(self, workers: int) -> None:
        super().__init__(workers)
        context = multiprocessing.get_context("fork")
        self._pipes = []
        self._processes = []
        for _ in range(workers):
            here, there = context.Pipe()
            process = context.Process(target=_serve, args=(there,))
            process.start()
            there.close()
            self._pipes.append(here)
            self._processes.append(process)

    def submit(self, fn: Callable[..., Any], arg: Any, /) -> Any:
        return fn, arg

    def results(self, handles: Iterable[Any]) -> list[Any]:
        handles = list(handles)
        return self.map(handles[0][0], [arg for _, arg in handles])

    def map(self, fn: Callable[..., Any], items: Sequence[Any]) -> list[Any]:
        for number, pipe in enumerate(self._pipes):
            pipe.send((fn, items[number :: self.workers]))
        results: list[Any] = [None] * len(items)
        for number, pipe in enumerate(self._pipes):
            results[number :: self.workers] = pipe.recv()
        return results

    def close(self) -> None:
        for pipe, process in zip(self._pipes, self._processes, strict=True):
            pipe.send(None)
            process.join()
            pipe.close()


def _serve(pipe: Connection) -> None:
    """Run what comes, until None does."""
    while (call := pipe.recv()) is not None:
        fn, items = call
        pipe.send([fn(item) for item in items])


SYSTEMS: dict[str, type[System]] = {
    system.name: system
    for system in (
        Mpsched,
        Threads,
        Processes,
        Pool,
        Joblib,
        Loky,
        Pebble,
        Mpire,
        Deadpool,
        Dask,
        AtOnce,
        Plain,
    )
}
