"""Pieces: however the input is cut, reading each piece separately gives the same agents."""

import pickle
import tempfile
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from helpers import LONG, decode, long_table, random_market, random_records, wide_table
from jdpack import AgentsError, Market
from jdpack.records import readers, tables
from jdpack.records.encode import check_tallies, encode, encode_piece
from jdpack.records.threads import Threads

seeds = st.integers(0, 2**32 - 1)
cases = given(
    seeds, st.booleans(), st.booleans(), st.integers(1, 4), st.booleans(), st.integers(1, 25)
)


def some(seed, long, sparse, options, texts):
    """Records, and their table in either layout."""
    rng = np.random.default_rng(seed)
    more = {"columns": LONG} if long else {}
    agents = int(rng.integers(1, 15))
    market = random_market(rng, agents=agents, sparse=sparse, options=options, **more)
    ids = [f"agent {i}" for i in range(market.agents)] if texts else None
    records = random_records(rng, market, ids=ids)
    return rng, records, (long_table if long else wide_table)(records)


def write_files(rng, table, folder, csv):
    """Files, some of them empty, with row groups that may be empty or have one row."""
    n = table.num_rows
    edges = np.sort(np.concatenate([[0, n], rng.integers(0, n + 1, rng.integers(0, 5))]))
    for name, (start, stop) in enumerate(pairwise(edges.tolist())):
        piece = table.slice(start, stop - start)
        if csv and rng.random() < 0.5:
            pyarrow.csv.write_csv(piece, folder / f"{name}.csv")
            continue
        cuts = [0, len(piece), *rng.integers(0, len(piece) + 1, rng.integers(0, 4))]
        with pyarrow.parquet.ParquetWriter(folder / f"{name}.parquet", table.schema) as writer:
            for low, high in pairwise(sorted(cuts)):
                writer.write_table(piece.slice(low, high - low))


def ids_of(part) -> list:
    starts = [part.starts[b, :n] for b, n in enumerate(part.fill)] if part.starts.size else None
    ids = part.ids.to_pylist()
    if starts is None:
        return ids
    return [id for id, start in zip(ids, np.concatenate(starts), strict=True) if start]


def check(records, pieces):
    """Each piece separately, in any order, and all of them on threads."""
    market, alone = records.market, {}
    for number in reversed(range(len(pieces))):
        parts = []
        tally = encode_piece(market, pieces[number], clamp=False, keep=parts.append)
        assert tally.rows == sum(part.rows for part in parts)
        assert [part.first for part in parts] == [0] * min(1, len(parts))
        alone[number] = tally, parts
    tallies = [alone[number][0] for number in range(len(pieces))]
    parts = [part for number in range(len(pieces)) for part in alone[number][1]]
    check_tallies(market, tallies)
    assert [id for part in parts for id in ids_of(part)] == records.ids
    agents = encode(market, pieces, threads=Threads(2))
    assert decode(agents) == records.codes() and agents.count == market.agents
    firsts = np.cumsum([0, *(part.rows for part in agents.parts)])[:-1]
    assert [part.first for part in agents.parts] == firsts.tolist()
    event(f"{len(pieces)} pieces")
    event("a piece without agents", any(tally.agents == 0 for tally in tallies))


@settings(max_examples=150)
@cases
def test_pieces_of_files_are_the_whole(seed, long, sparse, options, texts, rows):
    rng, records, table = some(seed, long, sparse, options, texts)
    with tempfile.TemporaryDirectory() as name:
        write_files(rng, table, Path(name), csv=texts)
        pieces = readers.file_pieces(records.market, name, rows)
        check(records, [pickle.loads(pickle.dumps(piece)) for piece in pieces])


@settings(max_examples=60)
@cases
def test_pieces_of_tables_are_the_whole(seed, long, sparse, options, texts, rows):
    rng, records, table = some(seed, long, sparse, options, texts)
    edges = np.unique([0, table.num_rows, *rng.integers(0, table.num_rows, 3)])
    chunks = [table.slice(a, b - a) for a, b in pairwise(edges.tolist())]
    check(records, tables.pieces(records.market, pa.concat_tables(chunks), rows))


@settings(max_examples=60)
@given(seeds, st.booleans(), st.integers(1, 4), st.booleans(), st.integers(1, 25))
def test_pieces_of_arrays_are_the_whole(seed, sparse, options, texts, rows):
    _, records, _ = some(seed, False, sparse, options, texts)
    check(records, tables.array_pieces(records.market, **records.arrays(), rows=rows))


# --- agents that continue in the next piece -----------------------------------------------


def one_row_groups(folder, ids):
    table = pa.table({"id": ids, "value": [1.0] * len(ids), "resource 1": [1.0] * len(ids)})
    pyarrow.parquet.write_table(table, folder / "a.parquet", row_group_size=1)
    return folder / "a.parquet"


def simple_market(agents, options):
    return Market(supply=[100.0], max_demand=2.0, max_value=2.0, agents=agents, options=options)


@pytest.mark.parametrize("names", [["a", "b", "b", "b", "c"], [7, 8, 8, 8, 9]])
def test_an_agent_belongs_to_the_piece_of_its_first_row(names, tmp_path):
    market = simple_market(agents=3, options=3)
    pieces = readers.file_pieces(market, one_row_groups(tmp_path, names), 1)
    assert len(pieces) == 5
    found = []
    for piece in pieces:
        batches = list(tables.read(market, piece))
        found.append([id for batch in batches for id in batch.ids.to_pylist()])
    assert found == [names[:1], names[1:4], [], [], names[4:]]


def test_an_agent_that_never_ends_is_refused_by_the_piece_where_it_begins(tmp_path):
    """It looks only as far ahead as one agent's rows could reach."""
    path = one_row_groups(tmp_path, ["a", *["b"] * 40])
    market = simple_market(agents=2, options=3)
    pieces = readers.file_pieces(market, path, 1)
    assert max(len(piece.after) for piece in pieces) <= 5
    with pytest.raises(AgentsError, match="agent 'b' has more than 3 options"):
        encode_piece(market, pieces[1], clamp=False, keep=lambda part: None)
    for piece in pieces[2:]:
        assert encode_piece(market, piece, clamp=False, keep=lambda part: None).agents == 0


def test_pieces_know_where_they_stand_from_metadata_alone(tmp_path, monkeypatch):
    path = one_row_groups(tmp_path, list(range(20)))
    market = simple_market(agents=20, options=1)
    monkeypatch.setattr(readers, "_stream", None)
    pieces = readers.file_pieces(market, path, 8)
    assert [piece.rows for piece in pieces] == [8, 8, 4]
    assert [piece.spans[0].first for piece in pieces] == [0, 8, 16]
    assert all(len(piece.spans) == 1 and piece.before == piece.after == () for piece in pieces)
    assert len(pickle.dumps(pieces[1])) < 1000
