"""Finds the programs that tests need and pip does not bring, or installs them.

`make test` does this first for each of them. A program is the one that a variable names, or else
one of those that are known and work. If there is none, it is installed with apt-get, by whoever is
root or may become root without a password. If nothing helps, the message says so, and what to do.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

Way = tuple[str, list[list[str]]]
"""What may install a program, and its commands."""


class MissingError(Exception):
    """There is no such program; the message says why."""


def answers(*command: str) -> bool:
    """Whether a program starts: a package may be a stub, or lack libraries."""
    try:
        return subprocess.run(command, capture_output=True, timeout=60).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def _no_ways(root: list[str] | None) -> Iterable[Way]:
    return ()


@dataclass(frozen=True)
class Program:
    """A program, how to find it, and how to install it."""

    name: str
    tests: str
    """Which tests need it."""
    variable: str
    """Names the path to take; "no" if its tests are left out."""
    package: str
    """Of Debian."""
    hint: str
    candidates: Callable[[], Iterable[str]]
    works: Callable[[str], bool]
    other_ways: Callable[[list[str] | None], Iterable[Way]] = _no_ways
    """More ways to install it, given the prefix that runs a command as root, if we may."""

    def find(self) -> str | None:
        """The path of one that works; MissingError if the variable names another."""
        if named := os.environ.get(self.variable):
            if not self.works(named):
                raise MissingError(f"{self.variable} is {named!r}, which does not start")
            return named
        return next(filter(self.works, self.candidates()), None)

    def needed(self) -> str:
        """`find`, or MissingError."""
        if (found := self.find()) is None:
            raise MissingError(f"there is no {self.name}: {self.hint}")
        return found

    def for_test(self) -> str:
        """`needed` for a test: it fails without the program, or is skipped if it is left out."""
        import pytest

        if os.environ.get(self.variable) == "no":
            pytest.skip(f"the tests that need {self.name} are left out")
        try:
            return self.needed()
        except MissingError as error:
            pytest.fail(str(error), pytrace=False)

    def install(self) -> str:
        """Install it and return its path; MissingError if that is impossible here."""
        tried = []
        for what, commands in self._ways():
            sys.stdout.write(f"installing {self.name} for {self.tests}, with {what}\n")
            sys.stdout.flush()
            with open(__file__) as own:  # apt-get fails while another one works
                fcntl.flock(own, fcntl.LOCK_EX)
                failed = [why for command in commands if (why := _failure(command)) is not None]
            if found := self.find():  # whatever the commands printed
                return found
            tried.append(f"{what}: {failed[-1] if failed else 'what it installed does not start'}")
        if not tried:
            raise MissingError("it is not installed, and only root can install it, with apt-get")
        raise MissingError("; ".join(tried))

    @property
    def apt(self) -> list[str]:
        """The arguments of apt-get."""
        return ["install", "--yes", "--no-install-recommends", self.package]

    def _ways(self) -> Iterator[Way]:
        root = _root()
        if root is not None and shutil.which("apt-get"):
            apt = [*root, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "--quiet"]
            yield "apt-get", [[*apt, "update"], [*apt, *self.apt]]
        yield from self.other_ways(root)

    def main(self) -> int:
        """Make sure that it is installed."""
        try:
            if self.find() is None:
                sys.stdout.write(f"installed {self.install()}\n")
        except MissingError as error:
            sys.stderr.write(f"error: {self.tests} need {self.name}: {error}\nhint: {self.hint}\n")
            return 1
        return 0


def _root() -> list[str] | None:
    """The prefix that runs a command as root; None if we may not."""
    if os.geteuid() == 0:
        return []
    sudo = ["sudo", "-n"]
    return sudo if shutil.which("sudo") and _failure([*sudo, "true"], quiet=True) is None else None


def _failure(command: Sequence[str], quiet: bool = False) -> str | None:
    """Why a command failed, if it did."""
    out = subprocess.DEVNULL if quiet else None
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    except OSError as error:
        return str(error.strerror)
    return f"exit code {done.returncode}" if done.returncode else None
