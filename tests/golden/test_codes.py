"""The bytes that fixed records are encoded to: a store must not use codes of an older format.

If they change, increase `jdpack.engines.code_store._FORMAT`, so that older codes are no longer
found, and put the new hashes here under the new number.
"""

import hashlib

import numpy as np
import pytest

from jdpack import Market
from jdpack.engines import code_store
from jdpack.records import tables
from jdpack.records.encode import encode_piece
from jdpack.records.threads import Threads

GOLDEN = {
    2: {
        "dense, numbers": "eadbee31eea0e5597d1bf0a204b17595",
        "dense, texts": "1b776a8f7ca7930daea2223a42f94d4a",
        "dense, clamped": "8fc01de599ae00d0bda21ba4ec24f154",
        "sparse, numbers": "5b55c64c108668bd9d0704ab01589710",
        "sparse, texts": "fcdd60ce8a0bf99757e6dc9904dc9e27",
        "sparse, clamped": "d036eb9e77787b910f26678910f71ed0",
        "options, numbers": "67a446d0298ed23ba810ea4e21fc9db2",
        "options, texts": "55115f235db278f2974e8ac7cbf9e81a",
        "options, clamped": "59a36dd357ec04c3ed9abc3988ef7650",
        "sparse options, numbers": "532c05a54a970d732ad13c38488d0cfb",
        "sparse options, texts": "c715a57ced1ecfe33b75b50158f52242",
        "sparse options, clamped": "0912d29f0538df20903e3116b57cc5ec",
        "add-remove, numbers": "d67e42668e4a48837d52355d51a06c26",
        "add-remove, texts": "88fe807924dfa355c7e9831f276c4ae2",
        "add-remove, clamped": "ffd59fff4ab449759a54469864eba074",
    },
}


def market_of(*, m, bundle_size, options, n, **more):
    caps = [2.0 + j / 3 for j in range(m)]
    return Market(
        supply=[n / 3 + j for j in range(m)],
        max_demand=caps,
        max_value=10.0,
        agents=n,
        bundle_size=bundle_size,
        options=options,
        **more,
    )


def numbers(count, top, seed):
    """Random reals from 0 to `top`, both included, from a generator that never changes."""
    x, out = seed, np.empty(count)
    for i in range(count):
        x = (6364136223846793005 * x + 1442695040888963407) % 2**64
        out[i] = top * (x >> 33) / (2**31 - 1)
    out[0], out[-1] = 0.0, top
    return out


def records_of(market, *, texts):
    n, m, options = market.agents, len(market.resources), market.options
    rows = n * options
    demands = np.stack([numbers(rows, market.resources[j].max_demand, j) for j in range(m)], axis=1)
    for row in range(rows):
        used = 1 + row * 7 % market.bundle_size
        demands[row, [j for j in range(m) if (j + row) % m >= used]] = 0.0
    ids = np.repeat(np.arange(n) * 3 - 5, options)
    named = [f"ä{i}" for i in ids.tolist()] if texts else ids
    return {"values": numbers(rows, market.max_value, 99), "demands": demands, "ids": named}


CASES = {
    "dense": {"m": 3, "bundle_size": 3, "options": 1, "n": 2500},
    "sparse": {"m": 40, "bundle_size": 6, "options": 1, "n": 2500},
    "options": {"m": 3, "bundle_size": 3, "options": 3, "n": 900},
    "sparse options": {"m": 40, "bundle_size": 6, "options": 3, "n": 900},
    "add-remove": {"m": 2, "bundle_size": 2, "options": 1, "n": 50, "neighbours": "add-remove"},
}


def bytes_of(folder, name, *, texts=False, clamp=False, more=0):
    """The hash of everything that a store holds for some records."""
    market = market_of(**CASES[name])
    records = records_of(market, texts=texts)
    if clamp:
        records["values"][3::100] *= 3.0
        records["demands"][::100] *= 2.5
    pieces = tables.array_pieces(market, **records, rows=1000)

    def encode(piece, keep):
        def changed(part):
            part.values[0, 7] += more
            keep(part)

        return encode_piece(market, piece, clamp=clamp, keep=changed)

    code_store.Store(folder).codes("", pieces, encode, Threads(1))
    whole = hashlib.sha256()
    for path in sorted(folder.glob("*/*")):
        whole.update(f"{path.name} {path.stat().st_size}\n".encode() + path.read_bytes())
    return whole.hexdigest()


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("how", ["numbers", "texts", "clamped"])
def test_codes_are_those_of_the_format(tmp_path, name, how):
    found = bytes_of(tmp_path / "store", name, texts=how == "texts", clamp=how == "clamped")
    assert found[:32] == GOLDEN[code_store._FORMAT][f"{name}, {how}"]


def test_a_code_that_is_one_larger_would_show(tmp_path):
    found = bytes_of(tmp_path / "store", "dense", more=1)
    assert found[:32] != GOLDEN[code_store._FORMAT]["dense, numbers"]
