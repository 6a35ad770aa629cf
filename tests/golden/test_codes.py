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
    3: {
        "dense, numbers": "d734551e51885af0dc5b98cf6907817e",
        "dense, texts": "8a29a4a9dc3e0200523c56756ebcbbac",
        "dense, clamped": "14ece66e75a6583b53178f07652a59a2",
        "sparse, numbers": "ffd26646cc1b54e55a24709930f30590",
        "sparse, texts": "890da361f71d9c83b7e43daf8d3d27b6",
        "sparse, clamped": "5af7cf35ccc30363102adcf8b0fbcb05",
        "options, numbers": "47c3c7ea91eb650cdc11cf95eec2a4de",
        "options, texts": "4b42627ae93134bfb07ecb2a0dcba25e",
        "options, clamped": "7a6ce6d5edf1b4842f161a5d217ed922",
        "sparse options, numbers": "9d89672f909f6f5348a85d798b7c494f",
        "sparse options, texts": "18a7ed7e23e7fb58495def61321b0719",
        "sparse options, clamped": "3678b3e6a53ace208747162e483f59e7",
        "add-remove, numbers": "989842c7c368051971bfcddd2275bcb9",
        "add-remove, texts": "90d351b84b6436ba6715573f815bb4be",
        "add-remove, clamped": "21e7d1643e04388bc3cc6f413aeef255",
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
