"""What no input may do, whatever the target: use too much memory, run code, open other files."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import jdpack
from jdpack.errors import JdpackError

SPARE, TIMES = 256 * 2**20, 64
"""An input may take SPARE bytes of memory, plus TIMES its own length."""

_OWN = (
    sys.prefix,
    sys.base_prefix,
    os.path.dirname(jdpack.__file__),
    "/proc/",
    "/sys/",
    "/dev/null",
    "/usr/share/zoneinfo/",
    *filter(None, [sys.pycache_prefix]),
)
_FORBIDDEN = ("os.system", "os.exec", "os.posix_spawn", "subprocess.Popen", "socket.connect")
_watching: str | None = None


class ForbiddenError(BaseException):
    """An input made the program do what no input may. `except Exception` does not catch it."""


@contextmanager
def watched(length: int, folder: str) -> Iterator[None]:
    """Raise ForbiddenError for what no input may do. A JdpackError refuses an input, as it may."""
    global _watching
    before, _watching = _from_here(), folder
    try:
        yield
    except JdpackError as error:
        check_error(error)
    finally:
        _watching = None
    if (took := _peak() - before) > SPARE + TIMES * length:
        raise ForbiddenError(f"{length} bytes of input took {took >> 20} MB of memory")


def check_error(error: JdpackError) -> None:
    """A refusal is one sentence and a hint, without control characters for the terminal."""
    for text in (error.message, error.hint):
        if not text.isprintable() or len(text) > 2000:
            raise ForbiddenError(f"an error is not fit to be shown: {text[:2000]!r}")


def _from_here() -> int:
    """The memory in use now; resets the peak that `_peak` reads.

    If the kernel cannot reset it, the peak stays that of the whole process, and an input is caught
    only if it takes more than any before it.
    """
    with suppress(OSError), open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    return _memory("VmRSS")


def _peak() -> int:
    return _memory("VmHWM")


def _memory(what: str) -> int:
    """A number from /proc/self/status, in bytes."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(what + ":"))


def _hook(event: str, arguments: tuple[object, ...]) -> None:
    if _watching is None:
        return
    if event in _FORBIDDEN:
        raise ForbiddenError(f"{event} {arguments!r}")
    if event == "open" and isinstance(arguments[0], str | bytes):
        path = os.fspath(os.path.abspath(os.fsdecode(arguments[0])))
        if not path.startswith((*_OWN, _watching)):
            raise ForbiddenError(f"opened {path!r}")


sys.addaudithook(_hook)
