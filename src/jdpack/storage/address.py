"""Public: addresses of databases, without passwords.

Passwords come from the environment (PGPASSWORD), a password file, a service file or a connection
profile. An address that holds one is refused, because addresses are kept in run files, and command
lines can be seen by everybody on a machine.
"""

from __future__ import annotations

import re
from urllib.parse import unquote

_SECRET = re.compile(
    r"(?i)pass(word|wd|phrase)?$|pwd$|secret|token|credential|private.?key|api.?key"
)
_IN_TEXT = re.compile(r"(?i)((?:password|passwd|pwd|secret|token)\s*=\s*)[^\s&'\"]+")

HINT = (
    "leave it out of the address: for PostgreSQL it comes from PGPASSWORD, a password file or a "
    "service file, for other databases from a connection profile of ADBC"
)


def is_address(text: str) -> bool:
    """Whether a text is an address of some scheme, and not a path."""
    return re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", text) is not None


def scheme_of(address: str) -> str:
    """The scheme of an address, such as postgresql."""
    return address.partition(":")[0].lower()


def secret_in(address: str) -> str | None:
    """What is secret in an address, in words; None if nothing is."""
    user = _authority(address)[0]
    if ":" in user:
        return "a password"
    query = address.partition("?")[2].partition("#")[0]
    for part in re.split("[&;]", query):
        name = unquote(part.partition("=")[0])
        if _SECRET.search(name):
            return f"the secret parameter {name!r}"
    if "://" not in address and _IN_TEXT.search(address):
        return "a password"
    return None


def shown(address: str) -> str:
    """The address as messages show it: without user, password and parameters."""
    if "://" not in address:
        return _IN_TEXT.sub(r"\1...", address.rpartition("@")[2])
    _, place = _authority(address)
    return f"{scheme_of(address)}://{place.partition('?')[0]}"


def without_secrets(text: str, address: str = "") -> str:
    """A text that may quote an address, without its password."""
    user, _ = _authority(address)
    for secret in {user, user.partition(":")[2], unquote(user.partition(":")[2])} - {""}:
        if ":" in user:
            text = text.replace(secret, "...")
    return _IN_TEXT.sub(r"\1...", re.sub(r"://[^@\s'\"]*@", "://", text))


def _authority(address: str) -> tuple[str, str]:
    """The user with the password, and what follows. A password may contain any character."""
    rest = address.partition("://")[2]
    head, at, _ = rest.partition("?")[0].rpartition("@")
    if not at and "@" in rest:  # a question mark in the password
        head, at, _ = rest.rpartition("@")
    return (head, rest[len(head) + 1 :]) if at else ("", rest)
