"""Private: threads for compiled kernels, which release the GIL while they run."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class Threads:
    """Threads that share the work on a list of items; the caller's thread is one of them."""

    def __init__(self, count: int | None = None) -> None:
        """A `count` of None means all cores that this process may use."""
        self.count = count if count is not None else _cores()
        self._pool: ThreadPoolExecutor | None = None

    def map(self, work: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
        """The results of `work` for all items, in order; raises the error of the first bad item.

        When this returns or raises, even if interrupted, no thread is still working.
        """
        queue = deque(enumerate(items))
        results: list[Any] = [None] * len(queue)
        errors: dict[int, BaseException] = {}

        def drain() -> None:
            while True:
                try:
                    at, item = queue.popleft()
                except IndexError:
                    return
                try:
                    results[at] = work(item)
                except BaseException as error:  # every earlier item is already done or taken
                    errors[at] = error
                    queue.clear()

        others: list[Future[None]] = []
        try:
            for _ in range(min(self.count, len(queue)) - 1):
                others.append(self._executor().submit(drain))
            drain()
            _end(others)
        finally:
            queue.clear()
            _end(others)
        if errors:
            raise errors[min(errors)]
        return results

    def sum(self, work: Callable[[Item], Any], items: Iterable[Item], start: Any) -> Any:
        """`start` plus the results of `work` for all items: integers, or new arrays of integers."""
        totals: dict[int, Any] = {}

        def add(item: Item) -> None:
            more, me = work(item), threading.get_ident()
            if me in totals:
                totals[me] += more
            else:
                totals[me] = more

        self.map(add, items)
        return sum(totals.values(), start=start)

    def _executor(self) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.count - 1, thread_name_prefix="jdpack")
        return self._pool


def _end(others: list[Future[None]]) -> None:
    """Cancel the tasks that have not begun, and wait for the others."""
    wait([other for other in others if not other.cancel()])


def _cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not available on every system
        return os.cpu_count() or 1
