"""Private: threads for compiled kernels, which let go of the interpreter while they run."""

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
    """Some threads that share the work on a list of items; the caller's own is one of them."""

    def __init__(self, count: int | None = None) -> None:
        """`count` of None means all cores that this process may use."""
        self.count = count if count is not None else _cores()
        self._pool: ThreadPoolExecutor | None = None

    def map(self, work: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
        """What `work` gives for each item, in order; or else raise the first item's error.

        No thread is at work any more when this returns or raises, even if it was interrupted.
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
                except BaseException as error:  # every earlier item is with some thread already
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
        """`start` plus what `work` gives for all items: integers, or fresh arrays of them."""
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
    """Wait for those that have begun; the others never do."""
    wait([other for other in others if not other.cancel()])


def _cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        return os.cpu_count() or 1
