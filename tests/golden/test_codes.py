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
    5: {
        "dense, numbers": "f6c1cd9c1f2bdbdd969bfcc4b478142c",
        "dense, texts": "6aa634f51f43e6f3775f4b7bb431d505",
        "dense, clamped": "8b75b6abd128075500572b74f9838061",
        "sparse, numbers": "fa04a56e5c75870c26bfb0fdd08c98c0",
        "sparse, texts": "b38c7ab3dcaf8c5071fd910fd2862a84",
        "sparse, clamped": "47ee7f47d7769e594e03500b9d6c21ee",
        "options, numbers": "54f9ac02766043be9c1b1b8d462e6308",
        "options, texts": "37451e0bc22de286141b1b311c578c53",
        "options, clamped": "657735d2e2d295be9b474ebc4f88ad06",
        "sparse options, numbers": "07cf958c59ba4906d3603898d9f2adb4",
        "sparse options, texts": "af15ba1c61582c565e9e489b34a67711",
        "sparse options, clamped": "e40c119e0193ff467cba4c110d28c998",
        "add-remove, numbers": "c29d20440a3c274b1081f9e8333b9ca2",
        "add-remove, texts": "d18f2cdab9811250abac99fc566ec2f7",
        "add-remove, clamped": "fa1aae096cd5c5edc7e186c11de3f2e5",
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
