"""Connections that are idle or slow end, and never keep out new readers; honest ones stay."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import os
import resource
import socket
import statistics
import threading
import time
from pathlib import Path

import pytest

from helpers import open_board
from jdpack.serve import app as app_module
from jdpack.serve import connections as connections_module
from jdpack.serve import server as serve
from jdpack.serve.connections import HEAD, Limits
from unit.serve.test_server import BEGUN, FINISHED, MARKET, Running, make_folder, text_of

pytestmark = pytest.mark.long

SHORT = "idle=1, request=0.6, stuck=0.6"
SWEPT = 1.2  # seconds until the next sweep, at most
PATIENT = 20.0  # seconds within which everything happens, on a machine that has much else to do
NEVER = """
async def nothing(crowd):
    pass
connections.Crowd.sweep = nothing
"""
"""A server that ends no connection because of its time."""
LONG = text_of(open_board(MARKET, [((10**9 + 7 * i, 10**9), 1) for i in range(6000)])).encode()
"""A billboard that does not fit into what the system keeps for a reader."""
ASK = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


def run(tmp_path, **given) -> Running:
    out = tmp_path / "out"
    make_folder(out)
    (out / "public" / "billboard.jsonl").write_text(text_of(FINISHED))
    return Running(out, **given)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Short limits."""
    with run(tmp_path_factory.mktemp("short"), limits=SHORT) as running:
        yield running
        assert running.end() == (0, "")


@pytest.fixture
def opened():
    with contextlib.ExitStack() as stack:
        yield stack


def ended_after(link: socket.socket, seconds: float = PATIENT) -> float:
    """How long it takes until the server has closed a connection that it says nothing on."""
    begin = time.monotonic()
    link.settimeout(seconds)
    try:
        with contextlib.suppress(ConnectionError):
            assert link.recv(1) == b"", "an answer"
    except TimeoutError:
        raise AssertionError("it is still open") from None
    return time.monotonic() - begin


def answer(link: socket.socket) -> int:
    """The status of a whole answer."""
    with contextlib.closing(http.client.HTTPResponse(link)) as found:
        found.begin()
        found.read()
        return found.status


def drip(link: socket.socket, data: bytes, pause: float = 0.1) -> None:
    """Send byte by byte until the server closes the connection."""
    end = time.monotonic() + PATIENT
    with contextlib.suppress(ConnectionError):
        for byte in itertools.cycle(data):
            assert time.monotonic() < end, "it is still open"
            link.sendall(bytes([byte]))
            time.sleep(pause)


def check_idle(server, seconds: float = PATIENT) -> None:
    """One connection that sends nothing at all, and one that sends nothing more."""
    with server.link() as never, server.link() as once:
        once.sendall(ASK)
        assert answer(once) == 200
        for link in (never, once):
            ended_after(link, seconds)


def test_idle_connections_end(server):
    check_idle(server)


def test_the_test_of_idle_connections_can_fail(tmp_path):
    with run(tmp_path, limits=SHORT, more=NEVER) as server, pytest.raises(AssertionError) as error:
        check_idle(server, 4.0)
    assert "it is still open" in str(error.value)


def test_idle_ones_are_given_their_time(tmp_path):
    with run(tmp_path, limits="idle=2, request=4.0") as server:
        begin = time.monotonic()  # before the time of any can begin, however busy the machine
        with server.link() as never, server.link() as once:
            once.sendall(ASK)
            assert answer(once) == 200
            ended_after(once)
            assert time.monotonic() - begin > 1.9
            ended_after(never)
            assert time.monotonic() - begin > 3.9


def test_slow_requests_end(server, opened):
    """At the head, at the head of the second request, and at a body that nobody wants."""
    head = b"GET / HTTP/1.1\r\nHost: x\r\nX: "
    first, second, body = (opened.enter_context(server.link()) for _ in range(3))
    second.sendall(ASK)
    body.sendall(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 9999\r\n\r\n")
    assert (answer(second), answer(body)) == (200, 405)
    slow = [
        threading.Thread(target=drip, args=given)
        for given in [(first, head + b"y" * 10**4), (second, head + b"y" * 10**4), (body, b"z")]
    ]
    for thread in slow:
        thread.start()
    for thread in slow:
        thread.join(2 * PATIENT)
        assert not thread.is_alive()
    for link in (first, second, body):
        link.settimeout(PATIENT)
        with contextlib.suppress(ConnectionError):
            assert link.recv(100) == b""


def slow_link(server, opened, request: bytes) -> socket.socket:
    link = opened.enter_context(socket.socket())
    link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    link.connect(("127.0.0.1", server.port))
    link.settimeout(PATIENT)
    link.sendall(request)
    return link


def take(link: socket.socket, pace: float = 0.0, most: int = 10**9) -> bytes:
    """What comes until it ends or is enough; `pace` is in seconds for each byte."""
    found = b""
    with contextlib.suppress(ConnectionError):
        while len(found) < most and (piece := link.recv(2**14)):
            found += piece
            time.sleep(pace * len(piece))
    return found


LINES = b"GET /billboard.jsonl HTTP/1.1\r\nHost: x\r\n\r\n"


def test_readers_who_take_nothing_are_cut_off_and_slow_ones_are_not(server, opened):
    server.show(LONG.decode())
    assert len(LONG) > 10**6
    # The first has all of its answer written and not taken, the second waits for the rest of it.
    ends = slow_link(server, opened, LINES), slow_link(server, opened, 4 * LINES)
    slow = slow_link(server, opened, LINES)
    begin = time.monotonic()
    got = take(slow, 2.5 * SWEPT / len(LONG), len(LONG))
    got += take(slow, 0.0, len(LONG) + got.index(b"\r\n\r\n") + 4 - len(got))
    assert got.endswith(LONG) and time.monotonic() - begin > 2.4 * SWEPT
    for link in ends:
        assert b"{" in (part := take(link)) and len(part) < len(LONG)


def test_honest_readers_stay(server):
    """A connection in use, and a feed without news, both for longer than any limit."""
    server.show(text_of(BEGUN))
    server.until(lambda: b"Interrupted" in server.get()[2])
    feed = server.feed()
    next(feed)
    with server.link() as link:
        for _ in range(12):
            last = time.monotonic()  # before its idle second can begin
            link.sendall(ASK)
            assert answer(link) == 200
            time.sleep(0.25)
        ended_after(link)
        assert time.monotonic() - last > 0.9  # all of its idle second, however busy the machine
    server.show(text_of(FINISHED))
    assert any(mark.startswith("finished-") for mark in itertools.islice(feed, 3))


def test_requests_that_are_too_long(server):
    """However the bytes come: at once, in pieces, in a second request, in a body or after it."""
    long = b"X: " + b"y" * (HEAD + 100) + b"\r\n"
    feed = b"GET /live HTTP/1.1\r\nHost: x\r\n"
    chunked = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    many = b"".join(b"X%d: y\r\n" % i for i in range(5000))
    for pieces, status in [
        ([ASK[:-2] + long + b"\r\n"], 400),
        ([ASK[:-2] + many + b"\r\n"], 400),
        ([ASK[:-2], long, long, b"\r\n"], 400),
        ([b"GET /" + b"a" * HEAD + b" HTTP/1.1\r\n\r\n"], 400),
        ([ASK + ASK[:-2], long, b"\r\n"], 200),
        ([feed + b"\r\n" + ASK[:-2], long, long], 200),
        ([feed + b"Content-Length: 999999\r\n\r\n", long, long], 200),
        ([chunked + b"1\r\nz\r\n0\r\n", many, many], 405),
    ]:
        with server.link() as link:
            link.settimeout(PATIENT)
            with contextlib.suppress(ConnectionError):
                for piece in pieces:
                    link.sendall(piece)
                    time.sleep(0.02)
            found = take(link)
            assert found.startswith(b"HTTP/1.1 %d " % status) or found == b"", pieces[0][:40]
            assert found.count(b"HTTP/1.1 200") == (status == 200 and found != b"")
    short = ASK[:-2] + b"X: " + b"y" * (HEAD - 100) + b"\r\n\r\n"
    with server.link() as link:
        link.sendall(short)
        assert answer(link) == 200
    assert server.get()[0] == 200


def test_readers_who_do_not_wait_for_their_answer(server):
    """The first request is answered whole, and then the connection ends."""
    for more in (1, 100):
        with server.link() as link:
            link.sendall(ASK + more * ASK)
            assert answer(link) == 200 and take(link) == b""


def test_feeds_that_readers_left_make_room(tmp_path):
    """Also those of readers who sent more before they left."""
    ask = b"GET /live HTTP/1.1\r\nHost: x\r\n\r\n"
    with run(tmp_path, limits="connections=20") as server:

        def status() -> int:
            with server.link() as link:
                link.sendall(ask)
                return int(link.recv(12)[-3:])

        for more in (b"", ASK, 30 * ASK):
            for _ in range(10):
                with server.link() as link:
                    link.sendall(ask + more)
                    assert link.recv(12).startswith(b"HTTP/1.1")
        server.until(lambda: status() == 200, seconds=PATIENT)
        with contextlib.ExitStack() as opened:
            for _ in range(10):
                opened.enter_context(server.link()).sendall(ask)
            server.until(lambda: status() == 503, seconds=PATIENT)
            assert server.get()[0] == 200
        server.until(lambda: status() == 200, seconds=PATIENT)


# --- more connections than there may be ---------------------------------------------------


def test_the_longest_wait_makes_room(tmp_path, opened):
    with run(tmp_path, limits="connections=20, request=60.0") as server:
        server.show(text_of(BEGUN))
        feed = server.feed()
        next(feed)
        links = [opened.enter_context(server.link()) for _ in range(15)]
        links[0].sendall(ASK)  # it is no longer the one that has waited longest
        assert answer(links[0]) == 200
        links += [opened.enter_context(server.link()) for _ in range(9)]
        links[-1].sendall(ASK)
        assert answer(links[-1]) == 200
        closed = []
        for link in links:
            link.settimeout(0.2)
            with contextlib.suppress(TimeoutError):
                assert link.recv(1) == b""
                closed.append(link)
        assert closed == links[1:6]
        server.show(text_of(FINISHED))
        assert any(mark.startswith("finished-") for mark in itertools.islice(feed, 3))
        assert server.end() == (0, "")


def let_wait(server) -> float:
    """How long the system has let this process and the server wait for others, in seconds."""
    pids = os.getpid(), server.process.pid
    told = [path for pid in pids for path in Path(f"/proc/{pid}/task").glob("*/schedstat")]
    return sum(int(path.read_text().split()[1]) for path in told) / 1e9


def answered_after(server) -> float:
    """How long a new reader waits for an answer, not counting what other processes take."""
    begin = time.monotonic() - let_wait(server)
    assert server.get()[0] == 200
    return time.monotonic() - let_wait(server) - begin


def test_five_thousand_idle_connections(tmp_path, opened):
    """The limits are the usual ones; a new reader waits for less than a second, and so on."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard not in (resource.RLIM_INFINITY,) and hard < 5500:
        pytest.skip(f"this process may open {hard} files only, and the test needs 5,500")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 5500), hard))
    opened.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
    with run(tmp_path, limits="") as server:
        server.show(text_of(BEGUN))
        feed = server.feed()
        next(feed)
        waits = []
        for number in range(5000):
            opened.enter_context(server.link())
            if number % 500 == 499:
                waits.append(answered_after(server))
        waits += [answered_after(server) for _ in range(5)]
        assert statistics.median(waits) < 1.0, waits
        server.show(text_of(FINISHED))
        assert any(mark.startswith("finished-") for mark in itertools.islice(feed, 3))
        assert server.end() == (0, "")


FEW = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (200, 300))
"""
STAY = """
connections.Crowd.enter = lambda *given: None
"""


def check_few_descriptors(server, opened, seconds: float = PATIENT) -> None:
    address = "127.0.0.1", server.port
    for _ in range(500):
        opened.enter_context(socket.create_connection(address, timeout=seconds))
    waits = []
    for _ in range(5):
        begin = time.monotonic()
        with socket.create_connection(address, timeout=seconds) as link:
            link.sendall(ASK)
            assert answer(link) == 200
        waits.append(time.monotonic() - begin)
    assert min(waits) < 1.0, waits  # the others may have waited for other processes


def test_few_file_descriptors(tmp_path, opened):
    with run(tmp_path, limits="", more=FEW) as server:
        check_few_descriptors(server, opened)
        assert server.end() == (0, "")


def test_the_test_of_few_file_descriptors_can_fail(tmp_path, opened):
    with run(tmp_path, limits="", more=FEW + STAY) as server, pytest.raises(TimeoutError):
        check_few_descriptors(server, opened, 3.0)


def test_limits_within_file_descriptors(monkeypatch):
    asked = []
    monkeypatch.setattr(resource, "setrlimit", lambda _, pair: asked.append(pair))
    no, usual = resource.RLIM_INFINITY, Limits()
    assert usual.connections == 2000 > app_module.FEEDS
    for now, wanted, connections in [
        ((1024, 524288), [(2576, 524288)], 2000),
        ((1024, no), [(2576, no)], 2000),
        ((no, no), [], 2000),
        ((20000, 20000), [], 2000),
        ((256, 1024), [(1024, 1024)], 480),
        ((256, 2500), [(2500, 2500)], 1924),
        ((50, 50), [(50, 50)], 4),
    ]:
        asked.clear()
        monkeypatch.setattr(resource, "getrlimit", lambda _, now=now: now)
        found = usual.within_descriptors()
        assert (asked, found.connections) == (wanted, connections)
        assert (found.idle, found.request, found.stuck) == (5, 10.0, 30.0)
        if connections < 2000 and connections > 4:
            used = found.connections + 4 * found.at_once + connections_module._SPARE
            assert used <= now[1]

    def refused(*_):
        raise ValueError("not allowed to raise maximum limit")

    monkeypatch.setattr(resource, "setrlimit", refused)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, no))
    assert usual.within_descriptors().connections == 480


def test_a_run_goes_first(tmp_path):
    with run(tmp_path) as server:
        own = os.getpriority(os.PRIO_PROCESS, 0)
        assert os.getpriority(os.PRIO_PROCESS, server.process.pid) == min(19, own + 10)
        if hasattr(os, "SCHED_BATCH"):
            assert os.sched_getscheduler(server.process.pid) == os.SCHED_BATCH


def test_connections_take_over_what_the_listener_has():
    """So that the system keeps little for a reader who takes nothing, and drops one who is gone."""
    with (
        serve.bound("127.0.0.1", 0) as listener,
        socket.create_connection(listener.getsockname()),
        listener.accept()[0] as link,
    ):
        assert link.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) <= 2 * serve._SENT
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            gone = link.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
            assert gone == serve._GONE == 30_000
