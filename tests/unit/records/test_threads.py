"""Threads: the same results in the same order, whichever thread does the work."""

import os
import signal
import threading
import time

import numpy as np
import pytest

from jdpack.records.threads import Threads


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("items", [0, 1, 2, 7, 100])
def test_results_stand_in_the_order_of_the_items(count, items):
    threads = Threads(count)
    for _ in range(3):  # the threads are used again
        assert threads.map(lambda i: i * i, range(items)) == [i * i for i in range(items)]


def test_items_are_shared_out():
    """Two items that wait for each other need two threads."""
    both = threading.Barrier(2, timeout=30)
    assert sorted(Threads(2).map(lambda _: both.wait(), "ab")) == [0, 1]
    never = threading.Barrier(2, timeout=0.05)
    with pytest.raises(threading.BrokenBarrierError):
        Threads(1).map(lambda _: never.wait(), "ab")


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_error_of_the_first_item_is_raised(count):
    """Even if a later item fails sooner."""

    def fail(item):
        time.sleep(0.02 * (item == 0))
        raise ValueError(item)

    with pytest.raises(ValueError, match=r"^0$"):
        Threads(count).map(fail, range(3))


def test_after_an_error_no_new_item_is_begun_and_work_goes_on():
    begun, threads = [], Threads(2)

    def work(item):
        begun.append(item)
        raise ValueError(item)

    with pytest.raises(ValueError, match=r"^0$"):
        threads.map(work, range(1000))
    assert len(begun) < 1000
    assert threads.map(str, range(3)) == ["0", "1", "2"]


def test_an_interrupt_while_waiting_leaves_nobody_at_work():
    begun, ended, caller = threading.Event(), [], threading.get_ident()

    def work(item):
        if threading.get_ident() == caller:
            begun.wait(30)
            return
        begun.set()
        time.sleep(0.1)  # by now the caller is only waiting
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.3)
        ended.append(item)

    # A background process may have been started with the signal ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            Threads(2).map(work, range(2))
    finally:
        signal.signal(signal.SIGINT, before)
    assert len(ended) == 1


def test_work_may_share_out_work_of_its_own():
    threads = Threads(2)
    found = threads.map(lambda i: sum(threads.map(lambda j: i * j, range(10))), range(10))
    assert found == [45 * i for i in range(10)]


@pytest.mark.parametrize("count", [1, 2, 5])
def test_sums(count):
    threads, start = Threads(count), np.ones(3, np.int64)
    for items in [0, 1, 50]:
        total = threads.sum(lambda i: np.full(3, i), range(items), start)
        assert total.tolist() == [1 + sum(range(items))] * 3
    assert start.tolist() == [1, 1, 1]
    assert threads.sum(lambda i: i, range(50), 0) == sum(range(50))


def test_all_cores_if_none_is_named():
    assert Threads().count >= 1
