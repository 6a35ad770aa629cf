"""The server shows the public side of a run, live, to many readers, and nothing else whatever."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import gzip
import http.client
import importlib.util
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

import jdpack.cli.serve
from helpers import SHARE, check_error, finished_board, open_board, run_cli
from jdpack import Billboard, Market, serve, solve
from jdpack.errors import JdpackError, OutputError
from jdpack.page import public_page, waiting_page
from jdpack.runfile import locked
from jdpack.serve import app as app_module
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
    for name in ["run.json", "journal.jsonl", "allocation.parquet", "report.html"]:
        (out / "private" / name).write_text(f"{SECRET}\n" * 3)
    for name in ["index.html", "notes.txt", ".billboard.jsonl.x.part"]:
        (out / "public" / name).write_text(SECRET)
    (out / "public" / "link").symlink_to("../private")
    (out / "secret.txt").write_text(SECRET)


IMPATIENT = """
from jdpack import cli
from jdpack.serve import app, site
app.PAUSE = site.PAUSE = {0}
site._QUIET, site._SHARE = 3 * {0}, 0
cli.main()
"""
"""The command, which looks at its folder more often, so that a test need not wait."""


class Running:
    """A server in a process of its own, and the folder that it shows."""

    def __init__(self, out: Path, pause: float = 0.1, port: int = 0) -> None:
        self.out, self.billboard = out, out / "public" / "billboard.jsonl"
        code, pipe = IMPATIENT.format(pause), subprocess.PIPE
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
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        with contextlib.closing(connection):
            connection.request(
                method, path, headers={k.replace("_", "-"): headers[k] for k in headers}
            )
            answer = connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()

    def raw(self, request: bytes) -> bytes:
        """What comes back for bytes that no client would send."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=10) as link:
            link.sendall(request)
            found = b""
            with contextlib.suppress(ConnectionError):
                while piece := link.recv(65536):
                    found += piece
            return found

    def show(self, text: str) -> None:
        """Put a billboard there, and wait until readers have it."""
        self.billboard.unlink(missing_ok=True)
        self.billboard.write_text(text)
        whole = text[: text.rfind("\n") + 1].encode()
        self.until(lambda: self.get("/billboard.jsonl")[::2] == (200, whole))

    def until(self, holds, seconds: float = 15.0) -> None:
        end = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < end, "it never came"
            time.sleep(0.03)

    def feed(self):
        """The events of the feed, as they come."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        with contextlib.closing(connection):
            connection.request("GET", "/live")
            answer = connection.getresponse()
            assert answer.getheader("content-type") == "text/event-stream"
            while line := answer.readline():
                if line.startswith(b"data: "):
                    yield line[6:-1].decode()

    def end(self) -> tuple[int, str]:
        self.process.send_signal(signal.SIGINT)
        _, errors = self.process.communicate(timeout=15)
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


# --- what is served -----------------------------------------------------------------------


def test_a_run_that_has_posted_nothing(server):
    status, headers, body = server.get()
    assert status == 200 and body.decode() == waiting_page()
    assert headers["cache-control"] == "no-store"
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
    for method in ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "PROPFIND", "get"]:
        status, headers, _ = server.get("/", method=method)
        assert status == 405 and headers["allow"] == "GET, HEAD", method


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
    *("/" + "../" * 60 + "etc/passwd", "/" + "a" * 5000, "/" + "a" * 200_000, "/é", "/\x7f"),
    "/" + "%2e%2e/" * 3000,
]


@pytest.mark.parametrize("posted", [FINISHED, BEGUN], ids=["finished", "begun"])
def test_nothing_else_is_reachable(server, posted):
    server.show(text_of(posted))
    control = server.raw(b"GET /billboard.jsonl HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert control.startswith(b"HTTP/1.1 200 ") and control.endswith(text_of(posted).encode())
    for target in TARGETS:
        sent = target.replace("{out}", str(server.out)).encode()
        for method in [b"GET", b"HEAD", b"POST"]:
            found = server.raw(
                method + b" " + sent + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
            )
            status = found[:13]
            assert re.match(rb"HTTP/1\.1 (404|400|405) |^$", status), (target[:80], status)
            assert SECRET.encode() not in found and b"root:" not in found
            assert len(found) < 1200, "and no page either"


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
        link = socket.create_connection(("127.0.0.1", server.port), timeout=10)
        with link, contextlib.suppress(ConnectionError):
            link.sendall(request)
            link.shutdown(socket.SHUT_WR)
            assert not link.recv(100).startswith(b"HTTP/1.1 200"), request[:40]
    assert server.get()[0] == 200


# --- whole lines, and only a billboard ----------------------------------------------------


def test_a_torn_line_is_never_shown(server):
    whole = text_of(BEGUN)
    half = text_of(FINISHED)[len(whole) :][:100]
    server.show(whole + half)
    assert server.get()[2].decode() == public_page(BEGUN, running=True, live=True)
    # Its end came to the disk before its text: not a line either.
    server.billboard.write_text(whole + "\0" * 40 + "\n")
    time.sleep(0.5)
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
            assert (status, body) == (503, b"The billboard cannot be read at the moment.\n")
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


# --- whether the run is at work -----------------------------------------------------------


def test_the_lock_tells_whether_a_run_is_at_work(server):
    server.show(text_of(BEGUN))

    def says(word):
        return f'<span class="pill open">{word}</span>' in server.get()[2].decode()

    with locked(server.out / "private"):
        server.until(lambda: says("Running"))
        time.sleep(0.6)  # long after the last line
        assert says("Running")
    server.until(lambda: says("Interrupted"))
    moved = server.out / "elsewhere"
    (server.out / "private").rename(moved)
    server.until(lambda: says("Not finished"))
    moved.rename(server.out / "private")
    server.until(lambda: says("Interrupted"))


def test_looking_at_the_lock_stops_no_run(tmp_path):
    """Who looks holds a shared lock for a moment; a run that begins just then waits for it."""
    assert Folder(tmp_path.parent / "nothing").at_work() is None
    folder = tmp_path / "private"
    folder.mkdir()
    looking = os.open(folder, os.O_RDONLY)
    fcntl.flock(looking, fcntl.LOCK_SH)
    timer = threading.Timer(0.07, os.close, [looking])
    timer.start()
    with locked(folder):
        assert Folder(tmp_path).at_work() is True
        with pytest.raises(OutputError, match="another process is at work"), locked(folder):
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
    monkeypatch.setattr(site_module, "_SHARE", 0)
    monkeypatch.setattr(View, "of", lambda *given: made.append(time.monotonic()) or of(*given))
    site = Site(Folder(out))
    site.look()

    async def reader(end):
        seen = set()
        while time.monotonic() < end:
            seen.add((await site.view()).mark)
            await asyncio.sleep(0.01)
        return seen

    async def writer(end):
        line = 1
        while time.monotonic() < end and line < 14:
            line += 1
            path.write_text(text_of(FINISHED, line))
            await asyncio.sleep(0.07)

    async def all_of_them():
        end = time.monotonic() + 3.2 * PAUSE
        return await asyncio.gather(writer(end), *(reader(end) for _ in range(40)))

    _, *seen = in_a_thread(all_of_them)
    gaps = np.diff(made[1:])
    assert 3 <= len(made) <= 5 and gaps.min() > 0.95 * PAUSE
    assert all(len(marks) >= 3 for marks in seen)


def test_a_view_that_takes_long_is_made_less_often(tmp_path, monkeypatch):
    out = tmp_path / "out"
    make_folder(out)
    path, made = out / "public" / "billboard.jsonl", []
    path.write_text(text_of(FINISHED, 1))

    def slow(*given):
        made.append(time.monotonic())
        time.sleep(0.03)
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
    site, of = Site(Folder(out)), View.of
    site.look()
    monkeypatch.setattr(View, "of", lambda *given: time.sleep(1.0) or of(*given))
    path.write_text(text_of(FINISHED))

    async def ask():
        start = time.monotonic()
        views = await asyncio.gather(*(site.view() for _ in range(20)))
        took = time.monotonic() - start
        await asyncio.sleep(1.5)
        return took, [view.finished for view in views], (await site.view()).finished

    took, first, later = in_a_thread(ask)
    assert took < 0.9 and not any(first) and later


def test_more_feeds_than_there_may_be(tmp_path, monkeypatch):
    make_folder(tmp_path / "out")
    monkeypatch.setattr(app_module, "FEEDS", 0)
    sent = []

    async def answer():
        async def send(message):
            sent.append(message)

        scope = {"type": "http", "method": "GET", "raw_path": b"/live", "headers": []}
        await app_module.App(Site(Folder(tmp_path / "out")))(scope, send, send)

    in_a_thread(answer)
    assert sent[0]["status"] == 503 and b"load the page again" in sent[1]["body"]


def test_the_load_of_the_benchmark(server, monkeypatch):
    """Its readers read, and count what goes wrong."""
    folder = Path(__file__).parents[2] / "bench"
    monkeypatch.syspath_prepend(str(folder))
    spec = importlib.util.spec_from_file_location("bench_serve", folder / "serve.py")
    bench = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "bench_serve", bench)
    spec.loader.exec_module(bench)
    server.show(text_of(FINISHED))

    async def load(seconds):
        load, ended = bench.Load(server.port, 60), asyncio.Event()
        asyncio.get_running_loop().call_later(seconds, ended.set)
        await load.all(ended)
        return load.seen

    seen = in_a_thread(load, 1.2)
    assert seen.errors == [] and seen.loads >= 60 and seen.news == 60
    server.billboard.unlink()
    server.until(lambda: server.get()[0] == 503)
    seen = in_a_thread(load, 0.5)
    assert seen.loads == 0 and len(seen.errors) >= 10 and "503" in seen.errors[0]


def test_a_run_is_seen_live_by_fifty(tmp_path):
    """A slow run beside the server: all readers see it grow, and see it finished."""
    out, rng = tmp_path / "out", np.random.default_rng(1)
    market = Market(supply=[3000.0], max_demand=1.0, max_value=1.0, agents=5000, divisible=True)
    records = {"values": rng.random(5000), "demands": rng.random((5000, 1))}
    begun, watched = threading.Event(), threading.Event()

    def slowly(progress):
        if progress.stage == "rounds":
            begun.set()
            assert watched.wait(60)
            time.sleep(0.03)

    def run():
        solve(market, **records, epsilon=2.0, delta=1e-6, output=out, progress=slowly)

    solving = threading.Thread(target=run)
    solving.start()
    assert begun.wait(60)
    first = threading.Semaphore(0)
    with Running(out, pause=0.3) as server:

        def read(number):
            marks, counts = [], []
            for mark in server.feed():
                marks.append(mark)
                first.release()
                status, _, lines = server.get("/billboard.jsonl")
                assert status == 200
                counts.append(lines.count(b"\n"))
                if number < 5:
                    Billboard.from_text(lines.decode())
                page = server.get()[2].decode()
                state = re.search(r'<span class="pill \w+">(\w+)<', page)[1]
                assert state == "Finished" or (state == "Running" and mark.startswith("running-"))
                if mark.startswith("finished-"):
                    return marks, counts
            raise AssertionError("the feed ended")

        with ThreadPoolExecutor(50) as pool:
            reading = [pool.submit(read, number) for number in range(50)]
            for _ in range(50):
                assert first.acquire(timeout=30)
            watched.set()
            readers = [one.result() for one in reading]
        solving.join()
        for marks, counts in readers:
            assert marks[0].startswith("running-") and len(set(marks)) == len(marks) >= 3
            assert counts == sorted(counts) and counts[0] < counts[-1]
        server.until(lambda: (out / "public" / "index.html").exists())
        assert server.get()[2] == (out / "public" / "index.html").read_bytes()
        listening = server.feed()
        next(listening)
        start = time.monotonic()
        code, errors = server.end()
        assert (code, errors) == (0, "") and time.monotonic() - start < 5.0
        assert list(listening) == []


# --- the command --------------------------------------------------------------------------


@pytest.fixture
def served(monkeypatch):
    """The command in this process, with what it would serve."""
    calls = []

    def serve(out, listener, ready):
        calls.append((out, listener.getsockname()))
        ready()

    monkeypatch.setattr(jdpack.cli.serve, "serve", serve)
    monkeypatch.setattr(os, "nice", lambda by: by)
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
    monkeypatch.setattr(os, "nice", lambda by: by)
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
