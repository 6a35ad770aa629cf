"""Private: the records in their own units, to measure what an allocation is worth. Curator only."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from jdpack.curator.comparison import Best, MeasuredRun
from jdpack.market.market import Market
from jdpack.records import tables
from jdpack.records.encode import encode
from jdpack.records.tables import Piece
from jdpack.run.result import Result

_ROUNDING = 1e-12  # the rounding error of sums over true numbers


class Truth:
    """The records in their own units, clamped as they were encoded."""

    def __init__(self, market: Market, pieces: Iterable[Piece], *, clamp: bool) -> None:
        read = [list(tables.read(market, piece)) for piece in pieces]
        self.market, self._kept = market, [batch for batches in read for batch in batches]
        self.agents = encode(market, read, clamp=clamp)
        self.supply = np.array([r.supply for r in market.resources])
        self.owners = self.agents.numbers() if market.options > 1 else None
        # Numbers beyond the bounds get here only if they were clamped.
        values = np.concatenate([batch.values for batch in self._kept])
        self.values = np.minimum(values, market.max_value)
        row = 0
        for part in self.agents.parts:  # what is left out is worth nothing to anybody
            if part.left_out is not None:
                self.values[row : row + part.rows][part.left_out == 1] = 0.0
            row += part.rows
        self.demands = self._demands()
        self._kept.clear()

    def _demands(self) -> Any:
        """A matrix with one row per option: NumPy, or SciPy sparse if records are pairs."""
        caps = np.array([r.max_demand for r in self.market.declared])
        if all(batch.indptr is None for batch in self._kept):
            matrix = np.concatenate([batch.dense() for batch in self._kept])
            return self._derived(self._bounded(np.minimum(matrix, caps)), np.hstack)
        from scipy.sparse import csr_matrix, hstack, vstack  # type: ignore[import-untyped]

        blocks = []
        for batch in self._kept:
            assert batch.amounts is not None and batch.resources is not None
            amounts, shape = (
                np.minimum(batch.amounts, caps[batch.resources]),
                (batch.rows, len(caps)),
            )
            blocks.append(csr_matrix((amounts, batch.resources, batch.indptr), shape))
        demands = self._bounded(vstack(blocks, format="csr"))
        return self._derived(demands, lambda parts: hstack(parts, format="csr"))

    def _derived(self, demands: Any, hstack: Callable[[list[Any]], Any]) -> Any:
        """The matrix with a column for each derived resource."""
        if not self.market.groups:
            return demands
        groups = np.concatenate([np.asarray(batch.groups) for batch in self._kept])
        found = [demands]
        for _, rule in self.market.derived:
            asks = [rule.demanded_by(g) for g in (*range(len(self.market.groups)), -1)]
            column = demands[:, [rule.base]]
            who = np.array(asks)[groups][:, None]
            found.append(column * who if isinstance(column, np.ndarray) else column.multiply(who))
        return hstack(found)

    def _bounded(self, demands: Any) -> Any:
        """The matrix after cutting the rows whose totals are beyond a bound."""
        for total in self.market.totals:
            own = list(total.resources)
            asked = np.asarray(demands[:, own].sum(axis=1)).ravel()
            for row in np.flatnonzero(asked > total.amount):
                amounts = demands[[row]][:, own]
                amounts = amounts if isinstance(amounts, np.ndarray) else amounts.toarray()
                room = np.maximum(0.0, total.amount - np.cumsum(amounts) + amounts.ravel())
                for j, amount in zip(own, np.minimum(amounts.ravel(), room), strict=True):
                    if demands[row, j] != amount:
                        demands[row, j] = amount
        return demands

    def optimum(self) -> Best:
        from jdpack.curator.optimum import optimum

        start = time.perf_counter()
        found = optimum(self.values, self.demands, self.supply, self.owners)
        return Best(found.value, found.bound, time.perf_counter() - start)

    def measure(self, result: Result, best: Best, seed: int, seconds: float) -> MeasuredRun:
        given, board = result.allocation.astype(np.float64), result.billboard
        load = float((np.asarray(self.demands.T @ given).ravel() / self.supply).max())
        most = given.max() if self.owners is None else np.bincount(self.owners, given).max()
        welfare = float(self.values @ given)
        return MeasuredRun(
            seed=seed,
            welfare=welfare,
            share=welfare / best.value if best.value > 0.0 else 1.0,
            certified=result.certificate.ratio_at_least,
            load=load,
            fits=bool(max(load, most) <= 1.0 + _ROUNDING),
            dropped=result.private.dropped,
            rounds=sum(release.step.query == "demand" for release in board.releases),
            releases=len(board.releases),
            seconds=seconds,
        )
