"""Public: a short code of an id and a record, which shows people that they mistyped one.

An organiser prints the code in a person's letter. The person types it with the record, and the page
or the command line compares. `pages/web/allocate.js` computes the same. The code depends on the
record only through its codes, so 8.3 and 8.30 are the same, and so are two values that nothing can
tell apart. It is neither a proof nor a secret key: anybody who guesses somebody's record and sees
their code can check the guess, and is wrong once in a million times. So a code is as private as the
letter.
"""

from __future__ import annotations

from collections.abc import Sequence

from jdpack.agent.options import Coded
from jdpack.common.coins import siphash

LETTERS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
"""Digits and letters that are not mistaken for each other (Crockford's base 32)."""

LENGTH = 4


def check_code(
    order: bytes, agent: int | str, requests: Sequence[tuple[str | None, Sequence[Coded]]]
) -> str:
    """The code of an agent's id and all its requests; `order` is a public key of the run.

    Each request has its name, or None if the agent makes only one, and its options.
    """
    lines = ["check code", str(agent)]
    for name, options in requests:
        lines += [] if name is None else [f"request {name}"]
        for value, codes in options:
            asked = (f" {j}:{code}" for j, code in enumerate(codes) if code > 0)
            lines.append(f"{value}{''.join(asked)}")
    number = siphash(order, "\n".join(lines).encode()) >> (64 - 5 * LENGTH)
    return "".join(LETTERS[number >> 5 * i & 31] for i in reversed(range(LENGTH)))


def as_meant(typed: str) -> str:
    """A code as somebody types it: small letters, spaces, O for 0, I and L for 1, U for V."""
    plain = "".join(c for c in typed.upper() if c.isalnum())
    return plain.translate(str.maketrans("OILU", "011V"))
