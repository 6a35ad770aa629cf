"""Copies of undecided agents stay within a limit, in bytes of whole blocks."""

import numpy as np
import pytest

from helpers import whole_market
from jdpack.engines import screening
from jdpack.engines.screening import Box
from jdpack.records.codes import BLOCK
from jdpack.records.encode import encode
from jdpack.records.tables import array_pieces
from jdpack.records.threads import Threads

PARTS, ROWS, M = 8, BLOCK + 100, 12
LOW, HIGH = np.full(M, 1e3), np.full(M, 2e3)


def parts_with(open_rows, *, sparse=False):
    """Parts with the given number of rows open between the prices, and all others in."""
    market = whole_market(M, agents=PARTS * ROWS, sparse=sparse)
    values, demands = np.full(PARTS * ROWS, 2.0**31), np.zeros((PARTS * ROWS, M))
    demands[:, 0] = 60000.0
    for part in range(PARTS):
        values[part * ROWS : part * ROWS + open_rows] = 60000.0 * 1500.0 / 2**20
    agents = encode(market, array_pieces(market, values, demands, rows=ROWS))
    assert len(agents.parts) == PARTS
    return agents.parts


def box_of(parts, limit, threads=1):
    return Box.screen(parts, LOW, HIGH, PARTS * ROWS, Threads(threads), limit)


@pytest.mark.parametrize("open_rows", [1, BLOCK, BLOCK + 1])
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_box_fits_its_limit_or_is_not_made(open_rows, sparse, threads):
    parts = parts_with(open_rows, sparse=sparse)
    whole = box_of(parts, None)
    assert [part.rows for part in whole.open] == [open_rows] * PARTS
    size = sum(part.nbytes for part in whole.open)
    assert size > PARTS * (BLOCK if open_rows <= BLOCK else 2 * BLOCK) * 4, "whole blocks"
    assert box_of(parts, size + 4 * PARTS * open_rows, threads) is not None
    assert box_of(parts, size - 1, threads) is None
    assert box_of(parts, 0, threads) is None


@pytest.mark.parametrize("sparse", [False, True])
def test_under_a_tiny_limit_no_part_is_copied_and_few_are_screened(monkeypatch, sparse):
    parts, looked, screened = parts_with(1, sparse=sparse), [], screening._screened

    def looking(part, low, high):
        looked.append(part)
        return screened(part, low, high)

    monkeypatch.setattr(screening, "_screened", looking)
    monkeypatch.setattr(screening, "rows_of", None)
    assert box_of(parts, BLOCK) is None
    assert len(looked) == 1


def test_a_limit_that_only_copies_exceed_is_kept(monkeypatch):
    """The estimate may be too low for rows that are wider than most."""
    parts, copied, rows_of = parts_with(1), [], screening.rows_of

    def copying(part, rows):
        copied.append(part)
        return rows_of(part, rows)

    monkeypatch.setattr(screening, "_about", lambda part, rows: 0)
    monkeypatch.setattr(screening, "rows_of", copying)
    size = parts[0].nbytes // 2  # one block
    assert box_of(parts, 3 * size + 4 * PARTS) is None
    assert len(copied) == 4


def test_rows_count_as_before():
    parts = parts_with(10)
    for most, made in [(10 * PARTS, True), (10 * PARTS - 1, False)]:
        assert (Box.screen(parts, LOW, HIGH, most, Threads(2)) is not None) == made
