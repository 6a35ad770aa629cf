"""The server shows the public side of a run, live, to many readers, and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import gzip
import http.client
import importlib.util
import itertools
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from html import unescape
from pathlib import Path

import numpy as np
import pytest

from helpers import SHARE, check_error, finished_board, open_board, run_cli
from jdpack import Billboard, Market, MwuFixed, resume, solve
from jdpack.errors import JdpackError, OutputError
from jdpack.pages.billboard_page import build, public_page
from jdpack.run.run_file import locked
from jdpack.serve import app as app_module
from jdpack.serve import server as serve
from jdpack.serve import site as site_module
from jdpack.serve.folder import Folder
from jdpack.serve.site import Site, View

SECRET = "for the curator only"
MARKET = Market(
    name="Garden plots", supply=[100.0, 50.0], max_demand=1.0, max_value=10.0, agents=1000
)
ROUNDS = [((10**9 + i, 10**9), 1) for i in range(12)]


def text_of(board: Billboard, lines: int | None = None) -> str:
    return "".join(f"{line}\n" for line in list(board.lines())[:lines])


FINISHED = finished_board(MARKET, ROUNDS, SHARE)
BEGUN = open_board(MARKET, ROUNDS[:5])


def make_folder(out: Path) -> None:
    """What a run leaves, with a secret in every private file and beside the billboard."""
    (out / "public").mkdir(parents=True)
    (out / "private").mkdir(mode=0o700)
    for name in [
        "run.json",
        "journal.jsonl",
        "allocation.parquet",
        "granted.parquet",
        "report.html",
    ]:
        (out / "private" / name).write_text(f"{SECRET}\n" * 3)
    for name in ["index.html", "notes.txt", ".billboard.jsonl.x.part"]:
        (out / "public" / name).write_text(SECRET)
    (out / "public" / "link").symlink_to("../private")
    (out / "secret.txt").write_text(SECRET)


MOST = 160

IMPATIENT = """
import functools
from jdpack import cli; from jdpack.serve import server as serve
from jdpack.serve import app, connections, site
app.PAUSE = site.PAUSE = 0.05
site._QUIET, site._PAUSE_PER_WORK = 0.15, 0
app._RETRY = 150
serve.serve = functools.partial(serve.serve, limits=connections.Limits({limits}))
{more}
cli.main()
"""
"""The command, which looks at its folder more often, so that a test need not wait, and has limits
that a test can reach."""


class Running:
    """A server in its own process, and the folder that it shows."""

    def __init__(
        self, out: Path, port: int = 0, limits: str = f"connections={MOST}", more: str = ""
    ) -> None:
        self.out, self.billboard = out, out / "public" / "billboard.jsonl"
        pipe, code = subprocess.PIPE, IMPATIENT.format(limits=limits, more=more)
        command = [sys.executable, "-c", code, "serve", str(out), "--port", str(port)]
        self.process = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True)
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().strip()
        found = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/", self.address)
        assert found, self.process.stderr.read()
        self.port = int(found[1])

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def get(self, path: str = "/", method: str = "GET", **headers: str):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        with contextlib.closing(connection):
            connection.request(
                method, path, headers={k.replace("_", "-"): headers[k] for k in headers}
            )
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()

    def link(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)

    def raw(self, request: bytes, end: bool = False) -> bytes:
        """What comes back for bytes that no client would send; with `end`, no more follow."""
        with self.link() as link:
            link.sendall(request)
            if end:
                link.shutdown(socket.SHUT_WR)
            found = b""
            with contextlib.suppress(ConnectionError):
                while piece := link.recv(65536):
                    found += piece
            return found

    def show(self, text: str) -> None:
        """Put a billboard there, and wait until readers have it."""
        new = self.billboard.with_suffix(".new")
        new.write_text(text)
        new.replace(self.billboard)  # at once: the server would say that the file is missing
        whole = text[: text.rfind("\n") + 1].encode()
        self.until(lambda: self.get("/billboard.jsonl")[::2] == (200, whole))

    def until(self, holds, seconds: float = 60.0) -> None:
        end = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < end, "it never came"
            time.sleep(0.03)

    def feed(self):
        """The events of the feed, as they come."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        with contextlib.closing(connection):
            connection.request("GET", "/live")
            answer = connection.getresponse()
            assert answer.getheader("content-type") == "text/event-stream"
            while line := answer.readline():
                if line.startswith(b"data: "):
                    yield line[6:-1].decode()

    def end(self) -> tuple[int, str]:
        self.process.send_signal(signal.SIGINT)
        _, errors = self.process.communicate(timeout=60)
        return self.process.returncode, errors


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    out = tmp_path_factory.mktemp("served") / "out"
    make_folder(out)
    (out / "public" / "billboard.jsonl").write_text("")
    with Running(out) as running:
        yield running
        code, errors = running.end()
    assert code == 0 and "Traceback" not in errors, errors
    assert "Invalid HTTP" not in errors, "whoever sends rubbish fills no log"


# --- what is served -----------------------------------------------------------------------


def test_a_run_that_has_posted_nothing(server):
    """It says what it knows: whether records are being read, or nobody is working any more."""

    def says(words, running):
        status, headers, body = server.get()
        assert status == 200 and headers["cache-control"] == "no-store"
        return (
            words in body.decode() and body.decode() == build(None, running=running, live=True).html
        )

    server.until(lambda: says("stopped before it posted anything", running=False))
    with locked(server.out / "private"):
        server.until(lambda: says("records are being read", running=True))
    server.until(lambda: says("stopped before it posted anything", running=False))
    moved = server.out / "elsewhere"
    (server.out / "private").rename(moved)
    server.until(lambda: says("cannot tell whether a run is working", running=None))
    moved.rename(server.out / "private")
    assert server.get("/billboard.jsonl")[::2] == (200, b"")


def test_a_finished_run(server):
    server.show(text_of(FINISHED))
    status, headers, body = server.get()
    assert status == 200 and body.decode() == public_page(FINISHED)
    assert server.get("/index.html")[2] == server.get("/?x=../private/run.json")[2] == body
    meta = unescape(re.search(r'Security-Policy" content="([^"]+)"', body.decode())[1])
    assert headers["content-security-policy"] == f"{meta}; frame-ancestors 'none'"
    assert "connect-src 'none'" in meta and "unsafe" not in meta
    assert headers["content-type"] == "text/html; charset=utf-8"
    assert headers["content-length"] == str(len(body))
    assert headers["cache-control"] == "no-cache"
    packed = server.get(accept_encoding="br, gzip")
    assert packed[1]["content-encoding"] == "gzip" and gzip.decompress(packed[2]) == body
    assert packed[1]["etag"] != headers["etag"]
    assert "content-encoding" not in server.get(accept_encoding="gzip;q=0, br")[1]
    status, headers, lines = server.get("/billboard.jsonl")
    assert lines.decode() == text_of(FINISHED)
    assert headers["content-type"] == "application/x-ndjson"
    for path in ["/", "/billboard.jsonl"]:
        tag = server.get(path)[1]["etag"]
        assert server.get(path, if_none_match=tag)[::2] == (304, b"")
        assert server.get(path, if_none_match='"other"')[0] == 200
        status, headers, none = server.get(path, method="HEAD")
        assert status == 200 and none == b"" and int(headers["content-length"]) > 1000


def test_every_answer_has_the_headers(server):
    server.show(text_of(FINISHED))
    for method, path in [
        *(("GET", p) for p in ["/", "/billboard.jsonl", "/nothing"]),
        *(("HEAD", "/live"), ("POST", "/"), ("HEAD", "/")),
    ]:
        headers = server.get(path, method=method)[1]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert {"server", "set-cookie", "access-control-allow-origin"}.isdisjoint(headers)


def test_it_can_only_be_read(server):
    for method in ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "PROPFIND"]:
        status, headers, _ = server.get("/", method=method)
        assert status == 405 and headers["allow"] == "GET, HEAD", method
    for method in ["get", "NOTHING"]:  # no methods at all
        assert server.get("/", method=method)[0] == 400


TARGETS = [
    *("/../private/run.json", "/public/../../private/run.json", "/private/run.json"),
    *("/%2e%2e/private/run.json", "/%2E%2E%2Fprivate%2Frun.json", "/..%2fprivate%2frun.json"),
    *("/%252e%252e/private/run.json", "/..%c0%af..%c0%afprivate/run.json", "/.%2e/secret.txt"),
    *("//private/run.json", "///etc/passwd", "//etc/passwd", "/.//../private/run.json"),
    *("/..\\private\\run.json", "/..%5cprivate%5crun.json", "\\private\\run.json"),
    *("/link/run.json", "/link", "/notes.txt", "/.billboard.jsonl.x.part", "/./notes.txt"),
    *("/billboard.jsonl/", "/billboard.jsonl/../../private/run.json", "/Billboard.jsonl"),
    *("/billboard.jsonl%00", "/billboard.jsonl\x00", "/%00", "/private/run.json%00.html"),
    *("/%62illboard.jsonl", "/index.html/", "/index.html;x", "/live/", "/live/../private"),
    *("private/run.json", "../private/run.json", "*", "file:///etc/passwd", "{out}/secret.txt"),
    *("http://127.0.0.1/private/run.json", "http://x/../private/run.json", "//x@y/secret.txt"),
    *("http://127.0.0.1/", "https://x/billboard.jsonl", "//127.0.0.1/billboard.jsonl", "", "?x"),
    *(
        "/?/../private/run.json%00/../../x"[1:],
        "/index.html%3f/..%2fprivate",
        "/%2f",
        "/%2findex.html",
    ),
    *("/" + "../" * 60 + "etc/passwd", "/" + "a" * 5000, "/" + "a" * 200_000, "/é", "/\x7f"),
    "/" + "%2e%2e/" * 3000,
]


METHODS = [b"GET", b"HEAD", b"POST"]


@pytest.mark.parametrize("posted", [FINISHED, BEGUN], ids=["finished", "begun"])
def test_nothing_else_is_reachable(server, posted):
    server.show(text_of(posted))
    control = server.raw(b"GET /billboard.jsonl HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert control.startswith(b"HTTP/1.1 200 ") and control.endswith(text_of(posted).encode())
    for target in TARGETS:
        sent = target.replace("{out}", str(server.out)).encode()
        for method, end in [
            *((method, b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n") for method in METHODS),
            *((method, b" HTTP/1.0\r\n\r\n") for method in METHODS),
        ]:
            found = server.raw(method + b" " + sent + end)
            status = found[:13]
            assert re.match(rb"HTTP/1\.1 (404|400|405) |^$", status), (target[:80], status)
            assert SECRET.encode() not in found and b"root:" not in found
            assert len(found) < 1200, "and no page either"


def test_old_clients_and_parts(server):
    """HTTP/1.0 gets the same answer, then the connection ends; a range gets the whole file."""
    server.show(text_of(FINISHED))
    whole = text_of(FINISHED).encode()
    for more in [b"", b"Connection: keep-alive\r\n", b"Range: bytes=0-9\r\n"]:
        time.sleep(0.1)  # so that a look is due, and the answer comes after the end of the request
        found = server.raw(b"GET /billboard.jsonl HTTP/1.0\r\n" + more + b"\r\n", end=True)
        assert found.startswith(b"HTTP/1.1 200 ") and found.endswith(b"\r\n\r\n" + whole)
    for part in ["bytes=0-9", "bytes=-5", "bytes=5-", "bytes=0-1,4-5", "bytes=99999999-", "x"]:
        for path in ["/", "/billboard.jsonl"]:
            status, headers, body = server.get(path, range=part)
            assert (status, body) == (200, server.get(path)[2])
            assert "content-range" not in headers


def test_broken_requests_end_and_the_server_lives(server):
    server.show(text_of(FINISHED))
    for request in [
        b"\x00" * 100,
        b"GET\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"y" * 300_000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 50_000 + b"\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ]:
        with server.link() as link, contextlib.suppress(ConnectionError):
            link.sendall(request)
            link.shutdown(socket.SHUT_WR)
            assert not link.recv(100).startswith(b"HTTP/1.1 200"), request[:40]
    assert server.get()[0] == 200


# --- whole lines, and only a billboard ----------------------------------------------------


def test_a_torn_line_is_never_shown(server):
    whole = text_of(BEGUN)
    half = text_of(FINISHED)[len(whole) :][:100]
    server.show(whole + half)
    pages = [public_page(BEGUN, running=running, live=True) for running in (True, False)]
    assert server.get()[2].decode() in pages  # a busy machine may take long enough to look dead
    # Its end came to the disk before its text: not a line either.
    server.billboard.write_text(whole + "\0" * 40 + "\n")
    time.sleep(0.3)
    assert server.get("/billboard.jsonl")[::2] == (200, whole.encode())


def test_whatever_moment_a_reader_comes_the_lines_are_whole(tmp_path):
    out = tmp_path / "out"
    make_folder(out)
    path, text = out / "public" / "billboard.jsonl", text_of(FINISHED).encode()
    seen = set()
    with path.open("wb", buffering=0) as file:
        for start in range(0, len(text), 37):
            file.write(text[start : start + 37])
            _, lines = Folder(out).lines()
            assert text.startswith(lines.encode()) and (not lines or lines.endswith("\n"))
            seen.add(lines.count("\n"))
    assert seen == set(range(len(ROUNDS) + 4))


def test_what_is_no_billboard_is_not_served(server):
    private = server.out / "private" / "run.json"

    def linked():
        server.billboard.symlink_to(private)

    def hard():
        os.link(private, server.billboard)

    def pipe():
        os.mkfifo(server.billboard)

    def folder():
        server.billboard.mkdir()

    def changed():
        server.billboard.write_text(text_of(FINISHED).replace("Garden", "Barden"))

    def lines_of_another_kind():
        server.billboard.write_text('{"secret":"' + SECRET + '"}\n' * 2)

    def no_ascii():
        server.billboard.write_bytes(b"\xff\xfe\n")

    for make in [linked, hard, pipe, folder, changed, lines_of_another_kind, no_ascii, None]:
        server.show(text_of(FINISHED))
        server.billboard.unlink()
        if make is not None:
            make()
        server.until(lambda: server.get()[0] == 503)
        for path in ["/", "/billboard.jsonl"]:
            status, _, body = server.get(path)
            assert (status, body) == (503, b"The billboard cannot be read right now.\n")
        if server.billboard.is_dir():
            server.billboard.rmdir()
    server.show(text_of(BEGUN))
    public, moved = server.out / "public", server.out / "private" / "public"
    public.rename(moved)
    public.symlink_to(moved)
    server.until(lambda: server.get()[0] == 503)
    public.unlink()
    moved.rename(public)
    server.until(lambda: server.get()[0] == 200)


def hear(feed, mark):
    """Wait until the feed sends a mark; it repeats the last one after a while."""
    said = list(itertools.islice(itertools.takewhile(lambda one: not re.match(mark, one), feed), 9))
    assert len(said) < 9, said


def test_a_folder_that_is_deleted_and_made_anew(server):
    """The server keeps running: it holds nothing open, and shows what there is."""
    server.show(text_of(BEGUN))
    listening = server.feed()
    assert next(listening).endswith(f"-{BEGUN.head}")
    shutil.rmtree(server.out)
    server.until(lambda: server.get()[0] == 503)
    hear(listening, "missing")
    make_folder(server.out)
    other = open_board(MARKET, ROUNDS[5:7])
    assert other.head != BEGUN.head
    server.show("")
    hear(listening, "waiting-")
    server.show(text_of(other))
    hear(listening, f"running-{other.head}|stopped-{other.head}")
    server.until(lambda: b"Interrupted" in server.get()[2])
    assert public_page(other, running=False, live=True).encode() == server.get()[2]


def test_only_what_is_new_is_read_and_nothing_is_taken_over_unseen(tmp_path, monkeypatch):
    """If a billboard grew, shrank or was swapped, its view is that of a fresh reading."""
    make_folder(tmp_path)
    path, site = tmp_path / "public" / "billboard.jsonl", Site(Folder(tmp_path))
    read, whole = [], Billboard.from_text
    monkeypatch.setattr(Billboard, "from_text", lambda text: read.append(text) or whole(text))
    other = finished_board(MARKET, ROUNDS[3:], SHARE)
    steps = [(FINISHED, 1), (FINISHED, 2), (FINISHED, 9), (FINISHED, 4), (other, 6), (other, None)]
    for board, lines in steps:
        text = text_of(board, lines)
        path.write_text(text)
        site.look()
        view = site._view
        assert view.pages["index.html"].page.data.decode() == public_page(
            whole(text), running=site._running, live=True
        )
        assert view.lines.data.decode() == text
    assert read == [text_of(FINISHED, 1), text_of(FINISHED, 4), text_of(other, 6)]
    path.write_text(text_of(FINISHED, 4))
    site.look()
    first = text_of(FINISHED, 1)  # in no place but its own
    right = text_of(FINISHED, 6).removeprefix(text_of(FINISHED, 4))
    for wrong in [text_of(other, 8).removeprefix(text_of(other, 4)), "{}\n" + first, right + first]:
        path.write_text(text_of(FINISHED, 4) + wrong)
        with pytest.raises(JdpackError, match=r"billboard line [57]: "):
            site.look()
        site._refresh()
        assert not site._view.found
        path.write_text(text_of(FINISHED, 5))
        site._refresh()
        assert site._view.lines.data.decode() == text_of(FINISHED, 5)
        path.write_text(text_of(FINISHED, 4))
        site._refresh()


# --- whether the run is working -----------------------------------------------------------


def test_the_lock_tells_whether_a_run_is_at_work(server):
    server.show(text_of(BEGUN))

    def says(word):
        return f'<span class="pill open">{word}</span>' in server.get()[2].decode()

    with locked(server.out / "private"):
        server.until(lambda: says("Running"))
        time.sleep(0.4)  # long after the last line
        assert says("Running")
    server.until(lambda: says("Interrupted"))
    moved = server.out / "elsewhere"
    (server.out / "private").rename(moved)
    server.until(lambda: says("Not finished"))
    moved.rename(server.out / "private")
    server.until(lambda: says("Interrupted"))


def test_a_run_that_is_interrupted_and_resumed(tmp_path):
    out, site = tmp_path / "out", Site(Folder(tmp_path / "out"))
    seen = []

    def look(progress=None):
        site._grew = -10.0  # as if nothing had come for long
        site.look()
        seen.append(re.sub("-.*", "", site._view.mark))

    def stop(progress):
        if progress.stage == "rounds":
            look()
            if progress.rounds >= 3:
                raise KeyboardInterrupt

    rng = np.random.default_rng(1)
    market = Market(supply=[300.0], max_demand=1.0, max_value=1.0, agents=500, divisible=True)
    records = {"values": rng.random(500), "demands": rng.random((500, 1))}
    with pytest.raises(KeyboardInterrupt):
        solve(
            market, **records, epsilon=2.0, delta=1e-6, output=out, progress=stop,
            policy=MwuFixed(rounds=9),
        )  # fmt: skip
    look()
    assert set(seen[:-1]) == {"running"} and seen[-1] == "stopped"
    before = site._view.lines.data
    seen.clear()
    resume(out, **records, progress=lambda progress: progress.stage == "rounds" and look())
    look()
    assert seen[0] == "running" and set(seen) == {"running", "finished"} and seen[-1] == "finished"
    assert site._view.lines.data.startswith(before)
    assert site._view.pages["index.html"].page.data == (out / "public" / "index.html").read_bytes()


def test_links_are_followed_to_the_folder_only(tmp_path):
    """The given folder may be a link; no link inside it is followed."""
    make_folder(tmp_path / "out")
    (tmp_path / "out" / "public" / "billboard.jsonl").write_text(text_of(FINISHED))
    (tmp_path / "link").symlink_to("out")
    Site(Folder(tmp_path / "link")).look()
    assert Folder(tmp_path / "link").at_work() is False
    for name in ["public", "private"]:
        (tmp_path / "out" / name).rename(tmp_path / name)
        (tmp_path / "out" / name).symlink_to(tmp_path / name)
    assert Folder(tmp_path / "out").at_work() is None
    with pytest.raises(JdpackError, match="cannot serve"):
        Site(Folder(tmp_path / "out")).look()


def test_looking_at_the_lock_stops_no_run(tmp_path):
    """A look takes a shared lock for a moment; a run that begins just then waits for it."""
    assert Folder(tmp_path.parent / "nothing").at_work() is None
    folder = tmp_path / "private"
    folder.mkdir()
    looking = os.open(folder, os.O_RDONLY)
    fcntl.flock(looking, fcntl.LOCK_SH)
    timer = threading.Timer(0.07, os.close, [looking])
    timer.start()
    with locked(folder):
        assert Folder(tmp_path).at_work() is True
        with pytest.raises(OutputError, match="another process is working"), locked(folder):
            pass
    timer.join()
    assert Folder(tmp_path).at_work() is False
    with locked(folder):
        pass


def test_of_the_private_folder_nothing_is_opened(tmp_path):
    out = tmp_path / "out"
    make_folder(out)
    (out / "public" / "billboard.jsonl").write_text(text_of(BEGUN))
    opened: list[str] = []
    watching = True

    def watch(event: str, arguments: tuple) -> None:
        if watching and event in ("open", "os.listdir", "os.scandir", "glob.glob"):
            opened.append(str(arguments[0]))

    sys.addaudithook(watch)
    Site(Folder(out)).look()
    watching = False
    ours = [path for path in opened if str(out) in path or path == "billboard.jsonl"]
    assert set(ours) == {str(out / "public"), "billboard.jsonl", str(out / "private")}


# --- many readers -------------------------------------------------------------------------


PAUSE = 0.4


def in_a_thread(work, *given):
    """The result of a coroutine; a browser of other tests may have this thread's loop."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(lambda: asyncio.run(work(*given))).result()


def test_a_view_is_made_once_for_all(tmp_path, monkeypatch):
    out = tmp_path / "out"
    make_folder(out)
    path = out / "public" / "billboard.jsonl"
    path.write_text(text_of(FINISHED, 1))
    made, of = [], View.of
    monkeypatch.setattr(site_module, "PAUSE", PAUSE)
    monkeypatch.setattr(site_module, "_PAUSE_PER_WORK", 0)
    monkeypatch.setattr(View, "of", lambda *given: made.append(time.monotonic()) or of(*given))
    site = Site(Folder(out))
    site.look()

    async def reader(end):
        seen = set()
        while len(seen) < 4 and time.monotonic() < end:
            seen.add((await site.view()).mark)
            await asyncio.sleep(0.01)
        return seen

    async def writer(readers):
        for line in itertools.count():
            path.write_text(text_of(FINISHED, line % 12 + 1))
            await asyncio.sleep(0.07)
            if all(one.done() for one in readers):
                return

    async def all_of_them():
        end = time.monotonic() + 60.0  # 4 pauses, on a machine that has nothing else to do
        readers = [asyncio.ensure_future(reader(end)) for _ in range(40)]
        return await asyncio.gather(writer(readers), *readers)

    _, *seen = in_a_thread(all_of_them)
    assert np.diff(made[1:]).min() > 0.95 * PAUSE
    assert all(len(marks) == 4 for marks in seen)


def test_a_view_that_takes_long_is_made_less_often(tmp_path, monkeypatch):
    out = tmp_path / "out"
    make_folder(out)
    path, made = out / "public" / "billboard.jsonl", []
    path.write_text(text_of(FINISHED, 1))

    def slow(*given):
        made.append(time.monotonic())
        end = time.thread_time() + 0.03
        while time.thread_time() < end:
            pass
        return View.missing()

    monkeypatch.setattr(View, "of", slow)
    monkeypatch.setattr(site_module, "PAUSE", 0.0)
    site = Site(Folder(out))
    for line in range(2, 1000):
        path.write_text(text_of(FINISHED, line % 9 + 1))
        in_a_thread(site.view)
        if len(made) == 2:
            break
        time.sleep(0.02)
    assert len(made) == 2 and made[1] - made[0] > 20 * 0.03


def test_nobody_waits_long_for_a_view(tmp_path, monkeypatch):
    out = tmp_path / "out"
    make_folder(out)
    path = out / "public" / "billboard.jsonl"
    path.write_text(text_of(BEGUN))
    site, of, go_on = Site(Folder(out)), View.of, threading.Event()
    site.look()
    monkeypatch.setattr(View, "of", lambda *given: go_on.wait(60) and of(*given))
    path.write_text(text_of(FINISHED))

    async def ask():
        views = await asyncio.gather(*(site.view() for _ in range(20)))
        waited = site._looking.done()  # whether somebody waited for the new view
        go_on.set()
        await site._looking
        return waited, [view.finished for view in views], (await site.view()).finished

    waited, first, later = in_a_thread(ask)
    assert not waited and not any(first) and later


def test_more_feeds_than_there_may_be(tmp_path):
    make_folder(tmp_path / "out")
    sent = []

    async def answer():
        async def send(message):
            sent.append(message)

        scope = {"type": "http", "method": "GET", "raw_path": b"/live", "headers": []}
        await app_module.App(Site(Folder(tmp_path / "out")), feeds=0)(scope, send, send)

    in_a_thread(answer)
    assert sent[0]["status"] == 503 and b"reload the page" in sent[1]["body"]


def test_slow_readers_hold_up_nobody(server):
    """They ask, but do not take the answer; a feed that nobody reads counts too."""
    rounds = [(tuple(10**9 + 7 * i + j for j in range(2)), 1) for i in range(1500)]
    text = text_of(open_board(MARKET, rounds))
    assert len(text) > 3e5
    server.show(text)
    with contextlib.ExitStack() as opened:
        slow = []
        for path in [b"/billboard.jsonl"] * 30 + [b"/live"] * 10:
            link = opened.enter_context(socket.socket())
            link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            link.connect(("127.0.0.1", server.port))
            link.sendall(b"GET " + path + b" HTTP/1.1\r\nHost: x\r\n" + b"\r\n")
            slow.append(link)
        for link in [opened.enter_context(server.link()) for _ in range(20)]:
            link.sendall(b"GET / HT")  # and these never ask to the end
        waits = []
        for _ in range(10):
            start = time.monotonic()
            assert server.get("/billboard.jsonl")[2] == text.encode()
            waits.append(time.monotonic() - start)
        assert min(waits) < 0.5  # the others may have waited for other processes
        # Whoever takes it later gets all of it.
        slow[0].settimeout(60)
        found = b""
        while not found.endswith(text[-80:].encode()):
            piece = slow[0].recv(65536)
            assert piece
            found += piece
        assert found.partition(b"\r\n\r\n")[2] == text.encode()


@pytest.fixture
def bench(monkeypatch):
    """The benchmark's modules."""
    folder = Path(__file__).parents[3] / "bench"
    monkeypatch.syspath_prepend(str(folder.parent / "experiments"))
    monkeypatch.syspath_prepend(str(folder))
    spec = importlib.util.spec_from_file_location("bench_serve", folder / "serve.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "bench_serve", module)
    spec.loader.exec_module(module)
    return module


def test_the_readers_of_the_benchmark(bench, server, monkeypatch):
    """They read, and count what goes wrong."""
    import readers

    monkeypatch.setattr(readers, "EVERY", 0.3)
    monkeypatch.setattr(readers, "RECORD", 20)
    server.show(text_of(FINISHED))

    def read(seconds, done=lambda seen: False):
        load, end = readers.Load(server.port, 40), time.monotonic() + seconds
        while time.monotonic() < end and not done(load.seen):
            load.step()
        load.close()
        return load.taken()

    # Less than a second, where nothing else is at work.
    seen = read(60, lambda seen: seen.loads >= 100 and seen.news >= 40)
    assert seen.errors == [] and seen.loads >= 80 and seen.news == 40
    assert seen.records >= 4 and len(seen.waits) == seen.loads and seen.opened == 0
    assert seen.bytes > seen.records * len(text_of(FINISHED)) + 70 * 1000
    patience = readers.PATIENCE
    monkeypatch.setattr(readers, "PATIENCE", 0.2)
    server.process.send_signal(signal.SIGSTOP)
    try:
        seen = read(0.7)
    finally:
        server.process.send_signal(signal.SIGCONT)
    assert seen.loads == 0 and seen.errors[0] == "no answer in 0.2 s"
    server.billboard.unlink()
    server.until(lambda: server.get()[0] == 503)
    monkeypatch.setattr(readers, "PATIENCE", patience)
    seen = read(60, lambda seen: len(seen.errors) >= 10)
    assert seen.loads == 0 and len(seen.errors) >= 10 and "503" in seen.errors[0]


def phases(bench, slower, seed=1, pairs=20):
    """Made up: a machine whose speed drifts by a third, and a server that slows the run."""
    noise, found = np.random.default_rng(seed), []
    for i, on in enumerate(bench.order(pairs, bench.random.Random(seed))):
        seconds = 1 + 0.3 * np.sin(i / 9) + 0.02 * noise.normal()
        found.append(bench.Phase(on, seconds * (slower if on else 1.0), (0.0, 0.0, 0.0)))
    return found


def test_the_benchmark_finds_what_slows_a_run_and_nothing_else(bench):
    right = [bench.compared(phases(bench, slower, seed))
             for slower in [1.0, 1.04, 1.3] for seed in range(60)]  # fmt: skip
    inside = [
        ratio.low < slower < ratio.high
        for ratio, slower in zip(right, np.repeat([1.0, 1.04, 1.3], 60), strict=True)
    ]
    assert np.mean(inside) > 0.85
    assert all(ratio.high < 1.1 for ratio in right[:60])
    assert all(ratio.low > 1.1 for ratio in right[120:])
    nothing = bench.idle(phases(bench, 1.3))
    assert nothing.low < 1.0 < nothing.high < 1.1 and nothing.pairs >= 5
    assert bench.Ratio.of([]).high == bench.Ratio.of([(2.0, 1.0)]).high == np.inf, (
        "none is no proof"
    )
    flags = bench.order(20, bench.random.Random(3))
    assert len(flags) == 40 and all(a != b for a, b in zip(flags[::2], flags[1::2], strict=True))
    assert len({tuple(flags[i : i + 4]) for i in range(0, 40, 4)}) == 2


def test_the_benchmark_from_begin_to_end(bench, tmp_path, monkeypatch, capsys):
    short = ["--readers", "60", "--agents", "3000", "--window", "1", "--phase", "0.5"]
    monkeypatch.setattr(
        sys, "argv", ["serve.py", *short, "--pairs", "2", "--case", "1", "-o", str(tmp_path)]
    )
    bench.main()
    (found,) = json.loads((tmp_path / "serve.json").read_text())
    assert found["window"]["errors"] == found["errors_later"] == []
    assert found["window"]["loads"] > 0 and found["rounds"] > 20
    on = [phase for phase in found["phases"] if phase["on"]]
    off = [phase for phase in found["phases"] if not phase["on"]]
    assert len(on) == len(off) == 2
    assert sum(phase["cores"][0] for phase in off) > 0, "the run goes on"
    assert all(phase["cores"][1] == phase["cores"][2] == 0 for phase in off), "they are stopped"
    assert found["cores"]["server"] > 0
    assert "| quick rounds, 3,000 agents |" in capsys.readouterr().out
    assert {path.suffix for path in tmp_path.iterdir()} == {".json", ".md", ".csv", ".svg"}


def test_a_run_is_seen_live_by_fifty(tmp_path):
    """A slow run beside the server: all readers see it grow, and see it finished."""
    out, rng = tmp_path / "out", np.random.default_rng(1)
    market = Market(supply=[3000.0], max_demand=1.0, max_value=1.0, agents=5000, divisible=True)
    records = {"values": rng.random(5000), "demands": rng.random((5000, 1))}
    begun, called, seen = threading.Event(), itertools.count(), [0] * 50

    def slowly(progress):
        """Wait now and then until everybody has seen what is posted."""
        if progress.stage == "rounds" and next(called) % 10 == 0:
            posted = (out / "public" / "billboard.jsonl").read_bytes().count(b"\n")
            begun.set()
            end = time.monotonic() + 120
            while min(seen) < posted:
                assert time.monotonic() < end, seen
                time.sleep(0.02)

    def run():
        fixed = MwuFixed(rounds=30)
        solve(market, **records, epsilon=2.0, delta=1e-6, policy=fixed, output=out, progress=slowly)

    solving = threading.Thread(target=run)
    solving.start()
    assert begun.wait(60)
    with Running(out) as server:

        def read(number):
            marks, counts = [], []
            for mark in server.feed():
                marks.append(mark)
                status, _, lines = server.get("/billboard.jsonl")
                assert status == 200
                counts.append(lines.count(b"\n"))
                seen[number] = counts[-1]
                if number < 5:
                    Billboard.from_text(lines.decode())
                page = server.get()[2].decode()
                state = re.search(r'<span class="pill \w+">(\w+)<', page)[1]
                assert state == "Finished" or (state == "Running" and mark.startswith("running-"))
                if mark.startswith("finished-"):
                    return marks, counts
            raise AssertionError("the feed ended")

        with ThreadPoolExecutor(50) as pool:
            readers = list(pool.map(read, range(50)))
        solving.join()
        for marks, counts in readers:
            assert marks[0].startswith("running-") and len(set(marks)) == len(marks) >= 3
            assert counts == sorted(counts) and counts[0] < counts[-1]
        server.until(lambda: (out / "public" / "index.html").exists())
        assert server.get()[2] == (out / "public" / "index.html").read_bytes()
        listening = server.feed()
        next(listening)
        assert server.end() == (0, "")  # in time, whoever listens
        assert list(listening) == []


# --- the command --------------------------------------------------------------------------


@pytest.fixture
def served(monkeypatch):
    """The command in this process, with what it would serve."""
    calls = []

    def serve(out, listener, ready):
        calls.append((out, listener.getsockname()))
        ready()

    monkeypatch.setattr("jdpack.serve.server.serve", serve)
    monkeypatch.setattr("jdpack.serve.server.step_back", lambda: None)
    return calls


def test_loopback_unless_asked(monkeypatch, capsys, served):
    code, out, err = run_cli(monkeypatch, capsys, "serve", "out", "--port", 0)
    assert code == 0 and err == ""
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\n", out)
    code, out, err = run_cli(monkeypatch, capsys, "serve", "out", "--host", "0.0.0.0", "--port", 0)
    assert code == 0 and "everybody who can reach this machine" in err
    assert [address[0] for _, address in served] == ["127.0.0.1", "0.0.0.0"]


def test_an_address_that_cannot_be_had(monkeypatch, capsys, served):
    with serve.bound("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        code, out, err = run_cli(monkeypatch, capsys, "serve", "out", "--port", port)
        assert (code, out) == (2, "")
        assert err.startswith(f"error: port {port} of '127.0.0.1' is in use\nhint: ")
    for host in ["no such host", "203.0.113.7", "x" * 300, "a\0b"]:
        with pytest.raises(JdpackError) as error:
            serve.bound(host, 0)
        check_error(error.value, ["cannot serve at"], longest=500)
    assert served == []


def test_without_the_library_it_says_so(monkeypatch, capsys):
    monkeypatch.setattr(serve.importlib.util, "find_spec", lambda name: None)
    code, _, err = run_cli(monkeypatch, capsys, "serve", "out")
    assert code == 2 and err.startswith("error: to serve pages, jdpack needs uvicorn\nhint: pip")


def test_folders_without_a_run(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("jdpack.serve.server.step_back", lambda: None)
    make_folder(tmp_path / "out")
    shutil.rmtree(tmp_path / "out" / "public")
    (tmp_path / "file").write_text("")
    for name in ["nothing", "out", "file"]:
        code, out, err = run_cli(monkeypatch, capsys, "serve", tmp_path / name, "--port", 0)
        assert (code, out) == (2, "") and "error: cannot serve" in err and "hint: give" in err
    (tmp_path / "out" / "public").mkdir()
    (tmp_path / "out" / "public" / "billboard.jsonl").write_text("{}\n" + text_of(BEGUN))
    code, out, err = run_cli(monkeypatch, capsys, "serve", tmp_path / "out", "--port", 0)
    assert (code, out) == (2, "") and err.startswith("error: billboard line 1: ")
