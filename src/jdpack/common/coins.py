"""Public: the agents' coins.

An agent's coin is a hash of its id as UTF-8 text, keyed with the billboard's seed: its 53 highest
bits. It looks uniform to anybody who does not know the seed. The header commits to the seed before
the first round, and the seed is posted after the last. The id of agent number 17 is the text "17".

There are two hashes, and the header names the one of its run:

* SipHash-2-4 (Aumasson & Bernstein 2012), a keyed hash, the default;
* SHA-256 of the key in hexadecimal digits, a space, and the text. Databases compute it too.

If agents may make several requests, each request has its own coin: the coin of a text that holds
the id and the request's name (`request_key`). So nobody's coin depends on what other requests there
are. An agent's turn (`jdpack.common.batches`) depends on its id alone.
"""

from __future__ import annotations

import hashlib
from typing import Literal

COIN_BITS = 53

CoinHash = Literal["siphash-2-4", "sha-256"]
SIPHASH: CoinHash = "siphash-2-4"
SHA256: CoinHash = "sha-256"

_MASK = 2**64 - 1
_INIT = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)


def coin(seed: bytes, agent: int | str, hash: CoinHash = SIPHASH) -> int:
    """The coin of one agent, from 0 to 2^53 - 1."""
    if hash == SHA256:
        return sha256(seed, str(agent).encode()) >> (64 - COIN_BITS)
    return siphash(seed, str(agent).encode()) >> (64 - COIN_BITS)


def request_key(agent: int | str, request: str) -> str:
    """The text whose hash is the coin of a request; no two requests of any agents share it."""
    return f"{len(str(agent).encode())}:{agent}:{request}"


def sha256(key: bytes, message: bytes) -> int:
    """The 64 highest bits of SHA-256 of the key in hexadecimal digits, a space, and a message."""
    return int.from_bytes(hashlib.sha256(key_text(key) + message).digest()[:8], "big")


def key_text(key: bytes) -> bytes:
    """What SHA-256 hashes before a message. It has the same length for every key of 16 bytes."""
    return key.hex().encode() + b" "


def siphash(key: bytes, message: bytes) -> int:
    """SipHash-2-4 of a message, in plain Python integers."""
    k0, k1 = int.from_bytes(key[:8], "little"), int.from_bytes(key[8:16], "little")
    v = [a ^ b for a, b in zip(_INIT, (k0, k1, k0, k1), strict=True)]
    padded = message + bytes(-(len(message) + 1) % 8) + bytes([len(message) & 255])
    for start in range(0, len(padded), 8):
        word = int.from_bytes(padded[start : start + 8], "little")
        v[3] ^= word
        _rounds(v, 2)
        v[0] ^= word
    v[2] ^= 255
    _rounds(v, 4)
    return v[0] ^ v[1] ^ v[2] ^ v[3]


def _rounds(v: list[int], count: int) -> None:
    a, b, c, d = v
    for _ in range(count):
        a = (a + b) & _MASK
        b = ((b << 13 | b >> 51) & _MASK) ^ a
        a = (a << 32 | a >> 32) & _MASK
        c = (c + d) & _MASK
        d = ((d << 16 | d >> 48) & _MASK) ^ c
        a = (a + d) & _MASK
        d = ((d << 21 | d >> 43) & _MASK) ^ a
        c = (c + b) & _MASK
        b = ((b << 17 | b >> 47) & _MASK) ^ c
        c = (c << 32 | c >> 32) & _MASK
    v[:] = a, b, c, d
