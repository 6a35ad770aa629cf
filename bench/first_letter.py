"""From an empty environment to a letter in hand: how long each step takes.

Run it with `python bench/first_letter.py`. It makes a new environment in a temporary folder,
installs jdpack from this repository with pip, answers the questions of `jdpack init`, writes a
table of 9,000 people, and follows the commands to `jdpack letters`. Reading and typing come on top.
The first commands also compile the kernels, once for each environment.
"""

from __future__ import annotations

import csv
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
ANSWERS = "Swimming\nlanes\n2500\n1\nhours\n\n9000\ny\n1\nn\n10\nid\nvalue\n1\n"
PEOPLE = 9000


class Steps:
    """Commands with their times, on the clock and in all processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rows: list[tuple[str, float, float]] = []

    def run(self, name: str, command: Sequence[object], given: str = "") -> None:
        """Run a command, or stop with what it said."""
        begun, spent = time.perf_counter(), _cpu()
        done = subprocess.run(
            list(map(str, command)), cwd=self.folder, input=given, capture_output=True, text=True
        )
        if done.returncode:
            sys.exit(f"{name} failed:\n{done.stdout}{done.stderr}")
        self.rows.append((name, time.perf_counter() - begun, _cpu() - spent))

    def table(self) -> str:
        """The times as a table in Markdown, with their sum."""
        total = "total", sum(row[1] for row in self.rows), sum(row[2] for row in self.rows)
        lines = ["| step | seconds | CPU seconds |", "|---|---|---|"]
        lines += [f"| {name} | {wall:.1f} | {cpu:.1f} |" for name, wall, cpu in [*self.rows, total]]
        return "\n".join(lines)


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def walk(folder: Path) -> Steps:
    """All steps, in an empty folder."""
    steps = Steps(folder)
    python, jdpack = (folder / "venv" / "bin" / name for name in ("python", "jdpack"))
    steps.run("make an environment", [sys.executable, "-m", "venv", folder / "venv"])
    steps.run("pip install", [python, "-m", "pip", "install", "--quiet", ROOT])
    steps.run("jdpack init", [jdpack, "init"], ANSWERS)
    steps.run("jdpack plan", [jdpack, "plan", "market.toml"])
    rng = random.Random(1)
    with (folder / "wishes.csv").open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["id", "value", "lanes"])
        rows.writerows([f"k{i}", rng.randint(1, 100) / 10, 1] for i in range(PEOPLE))
    steps.run("jdpack check", [jdpack, "check", "market.toml", "wishes.csv"])
    steps.run("jdpack solve", [jdpack, "solve", "market.toml", "wishes.csv", "-o", "out"])
    steps.run("jdpack letters", [jdpack, "letters", "out", "--url", "https://example.org/"])
    with (folder / "out" / "private" / "letters.csv").open(encoding="utf-8", newline="") as file:
        letters = list(csv.DictReader(file))
    assert len(letters) == PEOPLE and letters[0]["link"].startswith("https://example.org/#")
    return steps


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as folder:
        sys.stdout.write(f"{walk(Path(folder)).table()}\n")


if __name__ == "__main__":
    main()
