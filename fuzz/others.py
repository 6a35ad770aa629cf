"""Targets: market files, tables of agents, ledgers, and the files from which a run resumes."""

from __future__ import annotations

import json
import re
import sqlite3
from functools import cache
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from jdpack import solve
from jdpack.billboard.board import Billboard
from jdpack.engines import settings
from jdpack.ledger.account import Account
from jdpack.ledger.ledger import Ledger
from jdpack.market.market import Market, Neighbours
from jdpack.policies.mwu_fixed import MwuFixed
from jdpack.policies.newton import Newton
from jdpack.privacy.accounting import Budget
from jdpack.records import tables
from jdpack.records.encode import encode
from jdpack.run.run_file import RunFile
from mutate import chain_changed, changed

MARKET = """name = "clinic"
divisible = true
[privacy]
epsilon = 1.0
delta = 1e-6
neighbours = "replace-one"
[value]
column = "value"
max = 10.0
[agents]
count = 3
options = 1
bundle_size = 2
layout = "wide"
ignore = ["note"]
[[resource]]
name = "beds"
unit = "nights"
supply = 500.0
max_demand = 2.0
[[resource]]
name = "nurses"
column = "nurses"
supply = 900
max_demand = 3.0
"""

_TOML = ["1", "-1", "0x" + "f" * 5000, "9" * 5000, "1e308", "nan", "-inf", "true", "1979-05-27"]
_TOML += ['"' + "x" * 5000 + '"', '"\\u001b[31m"', "[]", "[" * 300 + "]" * 300, "{a = 1}", "''"]
_TOML += ['"long"', '"add-remove"', "1e-99", "2147483647", "65536", "0", '"""\\\n"""']


# --- market files -------------------------------------------------------------------------


def market_seeds() -> list[bytes]:
    return [MARKET.encode(), MARKET.replace('"wide"', '"long"').encode()]


def market_mutate(data: bytes, size: int, random: Random) -> bytes:
    lines = data.decode(errors="replace").split("\n")
    at, what = random.randrange(len(lines)), random.random()
    if what < 0.1:
        del lines[at]
    elif what < 0.3:
        lines.insert(random.randrange(len(lines)), lines[at])
    elif what < 0.4:
        lines[at] = re.sub(
            r"^\w+", lambda key: ".".join([key[0]] * random.choice([2, 9])), lines[at]
        )
    else:
        lines[at] = lines[at].partition("=")[0] + "= " + random.choice(_TOML)
    return "\n".join(lines).encode()[:size]


def market_run(data: bytes, folder: str) -> None:
    path = Path(folder) / "market.toml"
    path.write_bytes(data)
    market = Market.from_toml(path)
    assert Market.from_dict(market.to_dict()) == market
    Newton().start(market, Budget(1.0, 1e-6, 0.02, 0.0, 1e-8))


# --- tables of agents ---------------------------------------------------------------------


@cache
def _market(long: bool, options: int) -> Market:
    return Market.from_dict(
        {
            "value": {"max": 10.0},
            "agents": {"count": 3, "layout": "long" if long else "wide", "options": options},
            "resource": [
                {"name": name, "supply": 500.0, "max_demand": 3.0} for name in ("beds", "nurses")
            ],
        }
    )


_WIDE = "id,value,beds,nurses\na,1,1,2\nb,2.5,0,1\nc,3,2,0\n"
_LONG = "id,option,value,resource,amount\na,x,1,beds,1\na,x,1,nurses,2\nb,y,2,,\nc,z,3,beds,1\n"
_CELLS = ["", '"', "nan", "-0", "-1", "1e999", "9" * 400, "\x00", "\xff", "é", "beds", "x" * 5000]


def csv_seeds() -> list[bytes]:
    return [_WIDE.encode(), _LONG.encode()]


def csv_mutate(data: bytes, size: int, random: Random) -> bytes:
    rows = [row.split(",") for row in data.decode(errors="replace").split("\n")]
    row = random.choice(rows)
    what = random.random()
    if what < 0.15:
        rows.insert(random.randrange(len(rows)), list(row))
    elif what < 0.25:
        row.append(random.choice(_CELLS))
    elif what < 0.35:
        random.shuffle(row)
    elif what < 0.4:
        row *= 1000
    else:
        row[random.randrange(len(row))] = random.choice(_CELLS)
    return "\n".join(map(",".join, rows)).encode(errors="replace")[:size]


def csv_run(data: bytes, folder: str) -> None:
    path = Path(folder) / "agents.csv"
    path.write_bytes(data)
    _encode_all(str(path), data.startswith(b"id,option"))


def _encode_all(source: Any, long: bool) -> None:
    for options in (1, 2):
        market = _market(long, options)
        encode(market, tables.pieces(market, source), clamp=options == 2)


def parquet_seeds() -> list[bytes]:
    return [_parquet(_odd_table(Random(at)), Random(at)) for at in range(12)]


def _parquet(table: pa.Table, random: Random) -> bytes:
    sink = pa.BufferOutputStream()
    pyarrow.parquet.write_table(
        table,
        sink,
        compression=random.choice(["none", "snappy", "zstd", "gzip"]),
        use_dictionary=random.random() < 0.5,
        row_group_size=random.choice([1, 2, 1000]),
        data_page_version=random.choice(["1.0", "2.0"]),
        store_schema=random.random() < 0.8,
    )
    return bytes(sink.getvalue().to_pybytes())


def parquet_mutate(data: bytes, size: int, random: Random) -> bytes:
    if random.random() < 0.4:
        return _parquet(_odd_table(random), random)[:size]
    changed = bytearray(data)
    for _ in range(random.choice([1, 1, 2, 8])):
        changed[random.randrange(len(changed))] = random.choice([0, 1, 255, random.randrange(256)])
    return bytes(changed)[:size]


def parquet_run(data: bytes, folder: str) -> None:
    path = Path(folder) / "agents.parquet"
    path.write_bytes(data)
    _encode_all(str(path), b"amount" in data)


def table_seeds() -> list[bytes]:
    return [bytes([at]) for at in range(64)]


def table_run(data: bytes, folder: str) -> None:
    random = Random(data)
    table = _odd_table(random)
    _encode_all(table, "amount" in table.schema.names)


def _odd_table(random: Random) -> pa.Table:
    """A table that is valid, or has some columns of odd types and values."""
    long, n = random.random() < 0.4, random.choice([0, 1, 3, 3, 3, 4])
    names = ["id", "value", "resource", "amount", "option"][: 4 + (random.random() < 0.5)]
    names = names if long else ["id", "value", "beds", "nurses"]
    odd = random.sample(names, random.choice([0, 1, 1, 2]))
    columns = [_odd(random, n) if name in odd else _fine(name, n) for name in names]
    if random.random() < 0.1:
        names, columns = [*names, names[0]], [*columns, columns[0]]
    return pa.Table.from_arrays(columns, names)


def _fine(name: str, n: int) -> pa.Array:
    if name in ("id", "option"):
        return pa.array([f"{name} {i}" for i in range(n)])
    return pa.array(["beds"] * n if name == "resource" else [1.0] * n)


_TYPES = [
    *(pa.int8(), pa.uint64(), pa.float16(), pa.float32(), pa.float64(), pa.bool_(), pa.null()),
    *(pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.date32(), pa.time64("us")),
    *(pa.timestamp("ns"), pa.timestamp("us", "UTC"), pa.duration("s"), pa.decimal128(38, 10)),
    *(pa.decimal256(76, 0), pa.list_(pa.float64()), pa.struct([("a", pa.int64())]), pa.int64()),
    *(pa.dictionary(pa.int8(), pa.string()), pa.dictionary(pa.int32(), pa.float64())),
    *(
        pa.map_(pa.string(), pa.int64()),
        pa.list_(pa.int8(), 2),
        pa.run_end_encoded(pa.int32(), pa.float64()),
    ),
]


def _odd(random: Random, n: int) -> pa.Array:
    kind = random.choice(_TYPES)
    pool: list[Any] = [None, 0, 1, -1, 2**63 - 1, 1.5, -0.0, float("nan"), float("inf"), "", "beds"]
    pool += ["x" * 10**5, b"\xff", "\x00", [1.0], {"a": 1}, True]
    values: list[Any] = []
    for _ in range(n):
        value = random.choice(pool)
        try:
            pa.array([value], kind)
        except (pa.ArrowException, TypeError, ValueError, OverflowError, AttributeError):
            value = None
        values.append(value)
    try:
        return pa.array(values, kind)
    except (pa.ArrowException, TypeError, ValueError):
        return pa.array(values, pa.null()) if not any(values) else pa.nulls(n)


# --- ledgers ------------------------------------------------------------------------------


def _real_ledger(path: Path) -> list[str]:
    ledger = Ledger.create(path, "patients", epsilon=2.0, delta=1e-6)
    Ledger.create(path, "staff", epsilon=1.0, delta=1e-6, neighbours=Neighbours.ADD_REMOVE)
    budget = Budget.split(0.1, 1e-8, truncated=False)
    for at, run in enumerate("abc"):
        ledger.reserve("patients", run, budget, Neighbours.REPLACE_ONE)
        if at == 0:
            ledger.finish(run, "0" * 64)
        if at == 1:
            ledger.cancel(run)
    with sqlite3.connect(path) as db:
        lines = [line for (line,) in db.execute("SELECT line FROM entries ORDER BY number")]
    db.close()
    return lines


@cache
def _ledger() -> tuple[bytes, bytes]:
    """The file of a ledger, and its lines."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.db"
        lines = _real_ledger(path)
        return path.read_bytes(), "".join(line + "\n" for line in lines).encode()


def ledger_seeds() -> list[bytes]:
    return list(_ledger())


def ledger_mutate(data: bytes, size: int, random: Random) -> bytes:
    if data.startswith(b"SQLite"):
        changed = bytearray(data)
        for _ in range(random.choice([1, 2, 8])):
            changed[random.randrange(len(changed))] = random.choice([0, 255, random.randrange(256)])
        return bytes(changed)[:size]
    return chain_changed(data.decode(), random).encode()[:size]


def ledger_run(data: bytes, folder: str) -> None:
    path = Path(folder) / "ledger.db"
    for left in Path(folder).glob("ledger.db*"):
        left.unlink()
    if data.startswith(b"SQLite"):
        path.write_bytes(data)
    else:
        path.write_bytes(_ledger()[0])
        _put_lines(path, data.decode(errors="replace").split("\n")[:-1])
    ledger = Ledger.open(path)
    ledger.verify()
    for dataset in ledger.datasets:
        ledger.balance(dataset)
        ledger.entries(dataset)
        budget = Budget(0.1, 1e-8, 1e-6, 0.0, 1e-12)
        ledger.reserve(dataset, "next", budget, ledger.balance(dataset).neighbours)


def _put_lines(path: Path, lines: list[str]) -> None:
    """Write these lines into a ledger, as an attacker would."""
    with sqlite3.connect(path) as db:
        triggers = list(db.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'"))
        for name, _ in triggers:
            db.execute(f"DROP TRIGGER {name}")
        db.execute("DELETE FROM entries")
        db.executemany("INSERT INTO entries VALUES (?, ?)", list(enumerate(lines, start=1)))
        for _, sql in triggers:
            db.execute(sql)
    db.close()


# --- run files ----------------------------------------------------------------------------


@cache
def _run_file() -> dict[str, Any]:
    """The run file of a run with a ledger."""
    with TemporaryDirectory() as folder:
        agents, ledger = Path(folder) / "agents.csv", Path(folder) / "ledger.db"
        agents.write_text(_WIDE)
        Ledger.create(ledger, "patients", epsilon=2.0, delta=1e-6)
        out = Path(folder) / "out"
        solve(
            _market(False, 1),
            str(agents),
            epsilon=1.0,
            delta=1e-7,
            policy=MwuFixed(rounds=1),
            threads=1,
            output=out,
            ledger=ledger,
            dataset="patients",
            force=True,
        )
        text = (out / "private" / "run.json").read_text()
        found: dict[str, Any] = json.loads(text.replace(folder, "/data"))
        return found


def runfile_seeds() -> list[bytes]:
    """Run files of every engine, with and without a ledger."""
    own, engines = _run_file(), [settings.to_dict(kind()) for kind in settings.KINDS.values()]
    paid = [json.dumps({**own, "engine": engine}).encode() for engine in engines]
    return [*paid, json.dumps({**own, "ledger": None, "market": "/data/market.toml"}).encode()]


def runfile_mutate(data: bytes, size: int, random: Random) -> bytes:
    """A changed run file, or one with a changed header that is sealed again."""
    own = json.loads(data)
    if random.random() < 0.3:
        own["header"] = chain_changed(own["header"], random).rstrip("\n")
    else:
        own = changed(own, random)
    return json.dumps(own).encode()[:size]


def runfile_run(data: bytes, folder: str) -> None:
    """Everything that a resume does with a run file before it opens any other file."""
    path = Path(folder) / "run.json"
    path.write_bytes(data)
    run = RunFile.read(path)
    account = Account.from_dict(run.ledger)
    assert account is None or {type(account.ledger), type(account.dataset)} == {str}
    run.fits(Billboard.from_text(run.header + "\n").header)
    settings.from_dict(run.engine)
