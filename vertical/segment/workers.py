"""The workers that compute a party's updates: the event loop itself, threads, or workers that imitate a slow party."""

import asyncio
import threading
from collections import defaultdict, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from heapq import heappop, heappush
from typing import Any, ClassVar, TypeVar

Result = TypeVar("Result")
Fail = Callable[[BaseException], object]


class Workers:
    """Workers that do the jobs of each queue in order. This class does each job at once, in the event loop."""

    only_updates: ClassVar[bool] = True
    """Whether the workers compute only updates, and the event loop computes partials."""

    def submit(self, queue: int, work: Callable[[], Result], finish: Callable[[Result], None]) -> None:
        """Schedule `finish(work())` after all earlier jobs of the queue.

        Args:
            queue: The number of the queue: there is one queue for each dominator.
            work: The computation, which may run in a thread.
            finish: The function that processes the result, in the event loop.
        """
        finish(work())

    def close(self) -> None:
        """Drop the jobs that have not started."""


class SleepingWorkers(Workers):
    """Workers that sleep: each update occupies one of `count` workers for `seconds` before it runs in the event loop.

    A worker may wake late, since the loop sleeps in whole milliseconds. The next job then counts from the due time of
    the previous job, so the mean rate is exact.
    """

    def __init__(self, seconds: float, count: int, fail: Fail) -> None:
        self._loop = asyncio.get_running_loop()
        self._seconds, self._fail = seconds, fail
        self._free = [self._loop.time()] * count  # a heap of the times at which the workers become free
        self._jobs: deque[tuple[float, Callable[[], None]]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def submit(self, queue: int, work: Callable[[], Result], finish: Callable[[Result], None]) -> None:
        # all jobs have the same duration, so they end in their order
        end = max(self._loop.time(), heappop(self._free)) + self._seconds
        heappush(self._free, end)
        self._jobs.append((end, lambda: finish(work())))
        if self._timer is None:
            self._timer = self._loop.call_at(end, self._wake)

    def close(self) -> None:
        self._closed = True
        self._jobs.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _wake(self) -> None:
        try:
            while self._jobs and self._jobs[0][0] <= self._loop.time():
                self._jobs.popleft()[1]()
        except Exception as error:
            self._fail(error)
        self._timer = None
        if self._jobs and not self._closed:
            self._timer = self._loop.call_at(self._jobs[0][0], self._wake)


class Threads(Workers):
    """A pool of `count` threads.

    With `lock` the threads take turns, as sparse blocks, networks and SAGA require. Without `lock`, a thread may read a
    block while another thread changes it: the paper's inconsistent reads.
    """

    only_updates = False

    def __init__(self, count: int, fail: Fail, *, lock: bool) -> None:
        self._loop = asyncio.get_running_loop()
        self._pool = ThreadPoolExecutor(count, thread_name_prefix="vertical")
        self._fail = fail
        self._lock = threading.Lock() if lock else nullcontext()
        # the unfinished jobs of each queue, as in `submit`; the first job of a queue is running
        self._jobs: dict[int, deque[tuple[Callable[[], Any], Callable[[Any], None]]]] = defaultdict(deque)
        self._closed = False

    def submit(self, queue: int, work: Callable[[], Result], finish: Callable[[Result], None]) -> None:
        self._jobs[queue].append((work, finish))
        if len(self._jobs[queue]) == 1:
            self._start(queue)

    def close(self) -> None:
        self._closed = True
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _start(self, queue: int) -> None:
        if not self._closed:
            future = self._pool.submit(self._run_locked, self._jobs[queue][0][0])
            future.add_done_callback(lambda future: self._loop.call_soon_threadsafe(self._finished, queue, future))

    def _run_locked(self, work: Callable[[], Result]) -> Result:
        with self._lock:
            return work()

    def _finished(self, queue: int, future: Future[Any]) -> None:
        if self._closed or future.cancelled():
            return
        jobs = self._jobs[queue]
        try:
            jobs[0][1](future.result())
        except Exception as error:
            self._fail(error)
            return
        jobs.popleft()
        if jobs:
            self._start(queue)
