"""What the benchmarks have in common: reports, a code fingerprint, and watched processes."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import platform
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = Path("results/bench")


def fingerprint() -> str:
    """A short hash that changes with the machine and the code of jdpack or the benchmarks.

    Saved times are valid for one machine and one version only.
    """
    digest = hashlib.sha256(f"{platform.node()} {os.cpu_count()}".encode())
    for folder in ("src/jdpack", "bench"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def report(
    name: str,
    folder: Path,
    text: str,
    numbers: Any,
    picture: str,
    rows: Sequence[Mapping[str, Any]],
) -> None:
    """Print a table, and write it with all numbers as JSON, its rows as CSV, and its plot."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.md").write_text(text + "\n")
    (folder / f"{name}.json").write_text(json.dumps(numbers, indent=1) + "\n")
    (folder / f"{name}.svg").write_text(picture)
    with (folder / f"{name}.csv").open("w", newline="") as file:
        flat = [dict(_flat(row)) for row in rows]
        columns = dict.fromkeys(key for row in flat for key in row)
        writer = csv.DictWriter(file, list(columns), lineterminator="\n")
        writer.writeheader()
        writer.writerows(flat)
    print(text, flush=True)


def _flat(row: Mapping[str, Any], under: str = "") -> Iterator[tuple[str, Any]]:
    """The cells of a row; those of a nested mapping are named `part.name`."""
    for key, value in row.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{under}{key}.")
        elif not isinstance(value, list | tuple):
            yield f"{under}{key}", value


@dataclass(frozen=True)
class Watched:
    """A process that has ended."""

    out: str
    seconds: float
    """From its start, or from when it was ready, to its end."""
    peak: int | None
    """Its largest resident size in bytes, without mapped files; None without /proc."""


def watched(command: Sequence[str | Path], *, ready: bool = False) -> Watched:
    """Run a process to its end, and sample its memory every few milliseconds.

    With `ready`, time and memory count from the first line that it prints.

    Memory is RssAnon + RssShmem of /proc: what the process has allocated itself. Pages of mapped
    files do not count, because the system reclaims them when it needs space. VmHWM, the kernel's
    own peak, includes them and cannot be split afterwards. A peak of a few milliseconds may be
    missed.
    """
    begin, ended, sizes = time.perf_counter(), threading.Event(), [0]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:

        def look() -> None:
            while not ended.wait(0.005):
                sizes.append(_own_memory(process.pid))

        looking = threading.Thread(target=look)
        assert process.stdout is not None
        if ready:
            process.stdout.readline()
            begin = time.perf_counter()
        looking.start()
        try:
            out = process.stdout.read()
            failed = process.wait()
            seconds = time.perf_counter() - begin
        finally:
            ended.set()
            looking.join()
    if failed:
        raise SystemExit(f"{' '.join(map(str, command[:3]))} ... failed with code {failed}")
    return Watched(out, seconds, max(sizes) or None)


def _own_memory(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    own = [line.split()[1] for line in lines if line.startswith(("RssAnon", "RssShmem"))]
    return 1024 * sum(map(int, own))
