"""The optimum without privacy, against SciPy's linprog and against its own proof."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.optimize
import scipy.sparse

from jdpack.curator import optimum as module
from jdpack.curator.optimum import Optimum, optimum
from jdpack.errors import AgentsError, JdpackError

Rng = np.random.Generator
Market = tuple[Any, Any, Any, Any]
"""Values, demands, supply, agents."""


def linprog(values: Any, demands: Any, supply: Any, agents: Any = None) -> float:
    """The whole program, with every constraint written out."""
    a = scipy.sparse.csr_matrix(demands, dtype=float)
    ids = np.arange(len(values)) if agents is None else np.unique(agents, return_inverse=True)[1]
    one_each = scipy.sparse.csr_matrix((np.ones(len(ids)), (ids, np.arange(len(ids)))))
    found = scipy.optimize.linprog(
        -np.asarray(values, float),
        A_ub=scipy.sparse.vstack([a.T, one_each]).tocsr(),
        b_ub=np.concatenate([supply, np.ones(one_each.shape[0])]),
        bounds=(0.0, 1.0),
        method="highs",
    )
    assert found.status == 0
    return float(-found.fun)


def check(found: Optimum, values: Any, demands: Any, supply: Any, agents: Any = None) -> None:
    """The proof, from the definitions: feasible, worth its value, and nothing is worth more."""
    ids = np.arange(len(values)) if agents is None else np.unique(agents, return_inverse=True)[1]
    assert found.shares.min() >= 0.0
    assert np.bincount(ids, weights=found.shares).max() <= 1.0 + 1e-12
    assert np.all(demands.T @ found.shares <= np.asarray(supply) * (1.0 + 1e-12))
    assert values @ found.shares == pytest.approx(found.value, rel=1e-12, abs=0.0)
    assert found.prices.min() >= 0.0
    best = np.zeros(ids.max() + 1)
    np.maximum.at(best, ids, values - demands @ found.prices)
    dual = found.prices @ supply + best.sum()
    assert dual == pytest.approx(found.bound, rel=1e-12, abs=0.0)
    assert -1e-12 * dual <= found.bound - found.value <= 1e-9 * dual


# --- markets of all kinds -----------------------------------------------------------------


def some_of(n: int, m: int, k: int, rng: Rng, amounts: Any) -> scipy.sparse.csr_matrix:
    columns = np.argsort(rng.random((n, m)), axis=1)[:, :k]
    entries = np.broadcast_to(amounts, n * k), (np.repeat(np.arange(n), k), columns.ravel())
    return scipy.sparse.csr_matrix(entries, shape=(n, m))


def dense(n: int, rng: Rng) -> Market:
    return rng.random(n), rng.random((n, 4)), np.full(4, 0.15 * n), None


def single(n: int, rng: Rng) -> Market:
    return rng.random(n), rng.uniform(0.1, 1.0, (n, 1)), [0.2 * n], None


def sparse(n: int, rng: Rng) -> Market:
    return rng.random(n), some_of(n, 12, 3, rng, rng.random(3 * n)), np.full(12, 0.06 * n), None


def tied_values(n: int, rng: Rng) -> Market:
    return rng.choice([0.25, 0.5, 1.0], n), rng.random((n, 3)), np.full(3, 0.2 * n), None


def all_tied(n: int, rng: Rng) -> Market:
    """Value for money is the same for everybody: every agent is at the margin."""
    demands = rng.random((n, 3))
    return demands @ [0.5, 0.2, 0.3], demands, np.full(3, 0.2 * n), None


def unit_and_tied(n: int, rng: Rng) -> Market:
    values = rng.choice([1.0, 2.0, 3.0, 4.0], n)
    return values, some_of(n, 5, 1, rng, 1.0), np.full(5, 0.07 * n), None


def ones(n: int, rng: Rng) -> Market:
    return np.ones(n), some_of(n, 10, 3, rng, 1.0), np.full(10, 0.1 * n), None


def identical(n: int, rng: Rng) -> Market:
    return np.full(n, 0.7), np.tile(rng.random(5), (n, 1)), np.full(5, 0.1 * n), None


def some_slack(n: int, rng: Rng) -> Market:
    return rng.random(n), rng.random((n, 3)), np.array([0.1, 0.4, 5.0]) * n, None


def all_slack(n: int, rng: Rng) -> Market:
    return rng.random(n), rng.random((n, 3)), np.full(3, 2.0 * n), None


def complements(n: int, rng: Rng) -> Market:
    """Two resources always in the same proportion: their prices are not unique."""
    return rng.random(n), rng.random((n, 1)) * [1.0, 0.5], [0.2 * n, 0.1 * n], None


def many_sizes(n: int, rng: Rng) -> Market:
    values = 10.0 ** rng.uniform(-6, 0, n)
    return values, 10.0 ** rng.uniform(-4, 0, (n, 3)), np.array([1e-3, 0.1, 10.0]) * n, None


def with_zeros(n: int, rng: Rng) -> Market:
    demands = rng.random((n, 3)) * (rng.random((n, 1)) < 0.7) * [1.0, 1.0, 0.0]
    return rng.random(n) * (rng.random(n) < 0.7), demands, np.full(3, 0.1 * n), None


def scarce(n: int, rng: Rng) -> Market:
    return rng.random(n), rng.random((n, 3)), [0.01, 0.5, 1.0], None


def assignment(n: int, rng: Rng) -> Market:
    agents = np.repeat(np.arange(n), rng.integers(1, 5, n))
    slots = some_of(len(agents), 6, 1, rng, 1.0)
    return rng.random(len(agents)), slots, np.full(6, 0.1 * n), agents


def tied_assignment(n: int, rng: Rng) -> Market:
    values, slots, _, agents = assignment(n, rng)
    return np.ceil(values * 3) / 3, slots, np.array([1, 2, 3, 10, 20, 40]) * 0.01 * n, agents


def same_assignment(n: int, rng: Rng) -> Market:
    """All agents have the same options at the same values."""
    agents, values = np.repeat(np.arange(n), 3), np.tile([1.0, 0.8, 0.5], n)
    return values, scipy.sparse.csr_matrix(np.tile(np.eye(3), (n, 1))), np.full(3, 0.3 * n), agents


def dense_options(n: int, rng: Rng) -> Market:
    agents = np.repeat(np.array([f"agent {i}" for i in range(n)]), 3)
    return rng.random(3 * n), rng.random((3 * n, 4)), np.full(4, 0.1 * n), agents


def one_agent_many_options(n: int, rng: Rng) -> Market:
    return rng.random(n), rng.random((n, 3)), np.full(3, 0.3), np.zeros(n)


KINDS: list[Callable[[int, Rng], Market]] = [
    dense, single, sparse, tied_values, all_tied, unit_and_tied, ones, identical, some_slack,
    all_slack, complements, many_sizes, with_zeros, scarce, assignment, tied_assignment,
    same_assignment, dense_options, one_agent_many_options,
]  # fmt: skip


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples and small programs already for a few hundred agents."""
    monkeypatch.setattr(module, "_FEW", 24)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [1, 2, 9, 150])
def test_equals_linprog(kind: Callable[[int, Rng], Market], n: int) -> None:
    for seed in range(3):
        market = kind(n, np.random.default_rng([n, seed]))
        found = optimum(*market)
        check(found, *market)
        assert found.value == pytest.approx(linprog(*market), rel=1e-8)


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("kind", KINDS)
def test_equals_linprog_by_samples_and_parts(kind: Callable[[int, Rng], Market]) -> None:
    for seed, n in enumerate([70, 400, 2000]):
        market = kind(n, np.random.default_rng(seed))
        found = optimum(*market)
        check(found, *market)
        assert found.value == pytest.approx(linprog(*market), rel=1e-8)


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("kind", [dense, all_tied, same_assignment, tied_assignment])
def test_the_programs_are_small(
    monkeypatch: pytest.MonkeyPatch, kind: Callable[[int, Rng], Market]
) -> None:
    """What makes millions of agents possible: most have no separate column, even if tied."""
    columns: list[int] = []
    solve = module._highs

    def counted(cost: Any, *rest: Any) -> Any:
        columns.append(len(cost))
        return solve(cost, *rest)

    monkeypatch.setattr(module, "_highs", counted)
    market = kind(20_000, np.random.default_rng(1))
    check(optimum(*market), *market)
    assert max(columns) < 20_000 / 4


# --- degenerate markets -------------------------------------------------------------------


def test_no_agents() -> None:
    for agents in (None, []):
        found = optimum([], np.zeros((0, 2)), [1.0, 2.0], agents)
        assert (found.value, found.bound, len(found.shares)) == (0.0, 0.0, 0)
        assert found.prices.tolist() == [0.0, 0.0]


def test_one_agent_gets_what_fits() -> None:
    found = optimum([2.0], [[4.0, 1.0]], [1.0, 3.0])
    assert found.shares.tolist() == [0.25]
    assert (found.value, found.bound) == (0.5, 0.5)
    assert found.prices.tolist() == [0.5, 0.0]


def test_nothing_is_worth_anything() -> None:
    found = optimum(np.zeros(9), np.ones((9, 2)), [1.0, 1.0])
    assert (found.value, found.bound) == (0.0, 0.0)


def test_nobody_demands_anything() -> None:
    found = optimum(np.ones(9), np.zeros((9, 2)), [1.0, 1.0])
    assert (found.value, found.bound) == (9.0, 9.0)


def test_supply_for_all() -> None:
    found = optimum([1.0, 2.0, 3.0], np.ones((3, 1)), [3.5])
    assert (found.value, found.prices.tolist()) == (6.0, [0.0])


def test_integers_and_other_sparse_formats_are_taken() -> None:
    demands = np.array([[1, 2], [2, 1], [1, 1]], np.uint8)
    best = optimum([3.0, 4.0, 2.0], demands.astype(float), [2.0, 2.0]).value
    assert best == pytest.approx(linprog([3.0, 4.0, 2.0], demands, [2.0, 2.0]), rel=1e-12)
    for other in (demands, scipy.sparse.coo_array(demands), scipy.sparse.csc_matrix(demands)):
        assert optimum([3, 4, 2], other, [2, 2]).value == pytest.approx(best, rel=1e-12)


# --- refusals -----------------------------------------------------------------------------


@pytest.mark.parametrize(("share", "price"), [(1.0, 1e-5), (1.0 - 1e-5, 0.0)])
def test_what_is_not_proved_is_refused(
    monkeypatch: pytest.MonkeyPatch, share: float, price: float
) -> None:
    """The negative control: shares or prices of a solver that errs do not pass."""
    market = dense(100, np.random.default_rng(1))
    solve = module._highs

    def erring(*program: Any) -> Any:
        x, duals = solve(*program)
        return x * share, duals + price

    monkeypatch.setattr(module, "_highs", erring)
    with pytest.raises(JdpackError, match="no closer bounds"):
        optimum(*market)
    assert optimum(*market, tolerance=1e-3).value == pytest.approx(linprog(*market), rel=1e-3)


@pytest.mark.parametrize(
    ("market", "says"),
    [
        (([1.0], [[1.0, 2.0]], [1.0], None), "do not fit"),
        (([1.0, 2.0], [[1.0]], [1.0], None), "do not fit"),
        (([np.nan], [[1.0]], [1.0], None), "values include nan"),
        (([1.0], [[-1.0]], [1.0], None), "demands include -1.0"),
        (([1.0], [[np.inf]], [1.0], None), "demands include inf"),
        (([1.0], [[1.0]], [0.0], None), "supply include 0.0"),
        (([1.0, 2.0], [[1.0], [1.0]], [1.0], [0]), "1 agents for 2 values"),
        (([1.0, 1.0, 1.0], [[1.0]] * 3, [1.0], [0, 1, 0]), "not adjacent"),
    ],
)
def test_bad_markets_are_refused(market: Market, says: str) -> None:
    with pytest.raises(AgentsError, match=says):
        optimum(*market)


def test_without_highs_it_says_what_to_install() -> None:
    code = "import sys; sys.modules['highspy'] = None; import jdpack; import jdpack.curator.optimum"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-2:]
    assert last[0].endswith("needs HiGHS and SciPy, and highspy is not installed")
    assert last[1] == "hint: pip install 'jdpack[experiments]'"
