"""Many readers of `jdpack serve` while a run goes on: errors, waiting times, and what it costs.

A run of a fixed number of rounds, timed by itself and with a server and its readers on the same
machine, in turns. Every reader has the feed of news open and loads the page once a second; one in
fifty of these loads is of the whole record. The run, the server and all readers share the cores;
the readers, who would be elsewhere, at a lower priority.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from common import RESULTS

RUN = """
import sys, time, numpy as np, jdpack
agents, rounds, out = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
rng = np.random.default_rng(1)
market = jdpack.Market(
    supply=[agents / 5] * 10, max_demand=1.0, max_value=1.0, agents=agents, divisible=True
)
values, demands = rng.random(agents), rng.random((agents, 10))
begun = []
def progress(now):
    if now.stage == "rounds" and not begun:
        begun.append(time.perf_counter())
        print("begun", flush=True)
result = jdpack.solve(
    market, values=values, demands=demands, epsilon=1.0, delta=1e-8, output=out,
    policy=jdpack.MwuFixed(rounds=rounds), progress=progress,
)
print(time.perf_counter() - begun[0], flush=True)
"""


@dataclass
class Seen:
    """What the readers saw."""

    loads: int = 0
    news: int = 0
    bytes: int = 0
    errors: list[str] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)


class Load:
    """Readers of a server, until the run has ended."""

    def __init__(self, port: int, readers: int) -> None:
        self._port, self._readers, self.seen = port, readers, Seen()

    async def all(self, ended: asyncio.Event) -> None:
        """All readers at once."""
        each = [self._loads(ended, i) for i in range(self._readers)]
        feeds = [asyncio.create_task(self._feed()) for _ in range(self._readers)]
        await asyncio.gather(*each)
        for feed in feeds:
            feed.cancel()
        await asyncio.gather(*feeds, return_exceptions=True)

    async def _loads(self, ended: asyncio.Event, number: int) -> None:
        await asyncio.sleep(number / self._readers)
        link = await asyncio.open_connection("127.0.0.1", self._port)
        count = number
        while not ended.is_set():
            count += 1
            start = time.perf_counter()
            try:
                path = "/billboard.jsonl" if count % 50 == 0 else "/"
                await self._load(*link, path)
            except Exception as error:
                self.seen.errors.append(repr(error))
                await _closed(link[1])
                link = await asyncio.open_connection("127.0.0.1", self._port)
            took = time.perf_counter() - start
            self.seen.waits.append(took)
            await asyncio.sleep(max(0.0, 1.0 - took))
        await _closed(link[1])

    async def _load(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str
    ) -> None:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nAccept-Encoding: gzip\r\n\r\n".encode())
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        if not head.startswith("http/1.1 200 "):
            raise ValueError(head.splitlines()[0])
        body = await reader.readexactly(int(head.split("content-length: ")[1].split("\r\n")[0]))
        if path != "/" and not body.endswith(b'"}\n'):
            raise ValueError("a torn line")
        self.seen.loads += 1
        self.seen.bytes += len(body)

    async def _feed(self) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        writer.write(b"GET /live HTTP/1.1\r\nHost: x\r\n\r\n")
        try:
            while line := await reader.readline():
                self.seen.news += line.startswith(b"data: ")
            self.seen.errors.append("a feed ended")
        finally:
            await _closed(writer)


async def _closed(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


def run(agents: int, rounds: int, out: Path, readers: int) -> tuple[float, Seen | None, float]:
    """Seconds of a run, what its readers saw, and the CPU seconds of the server."""
    command = [sys.executable, "-c", RUN, str(agents), str(rounds), str(out)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        if not readers:
            return float(process.stdout.readline()), None, 0.0
        server = subprocess.Popen(
            [sys.executable, "-m", "jdpack.cli", "serve", str(out), "--port", "0"],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert server.stdout is not None
        port = int(server.stdout.readline().rstrip("/\n").rsplit(":", 1)[1])
        load = Load(port, readers)

        async def all_readers() -> float:
            ended = asyncio.Event()
            reading = asyncio.create_task(load.all(ended))
            assert process.stdout is not None
            seconds = float(await asyncio.to_thread(process.stdout.readline))
            ended.set()
            await reading
            return seconds

        def aside() -> float:
            """Readers are elsewhere: as far as that can be had here, they come after the run."""
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
            return asyncio.run(all_readers())

        with ThreadPoolExecutor(1) as pool:
            seconds = pool.submit(aside).result()
        before = os.times()
        server.send_signal(signal.SIGINT)
        server.communicate()
        after = os.times()
        used = after.children_user + after.children_system
        return seconds, load.seen, used - before.children_user - before.children_system


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--agents", type=int, default=2_000_000)
    parser.add_argument("--seconds", type=float, default=35.0, help="of a run by itself")
    parser.add_argument("--rounds", type=int, help="of a run, in place of --seconds")
    parser.add_argument("--readers", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("-o", "--output", type=Path, default=RESULTS)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place, rounds = Path(folder), args.rounds
        if rounds is None:
            rounds = round(args.seconds / run(args.agents, 400, place / "few", 0)[0] * 400)
        alone, served, seen, used = [], [], [], []
        for i in range(args.repeats):
            alone.append(run(args.agents, rounds, place / f"alone{i}", 0)[0])
            seconds, saw, cpu = run(args.agents, rounds, place / f"served{i}", args.readers)
            assert saw is not None
            served.append(seconds)
            seen.append(saw)
            used.append(cpu)
    waits = np.array([wait for saw in seen for wait in saw.waits])
    result = {
        "readers": args.readers,
        "rounds": rounds,
        "seconds_alone": alone,
        "seconds_served": served,
        "ratio": float(np.median(served) / np.median(alone)),
        "loads": sum(saw.loads for saw in seen),
        "news": sum(saw.news for saw in seen),
        "megabytes": sum(saw.bytes for saw in seen) / 1e6,
        "errors": [error for saw in seen for error in saw.errors],
        "wait_ms": {q: float(1e3 * np.percentile(waits, q)) for q in (50, 99, 100)},
        "server_cpu_share": sum(used) / sum(served),
    }
    args.output.mkdir(parents=True, exist_ok=True)
    (args.output / "serve.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
