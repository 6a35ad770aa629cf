"""A packing linear program, as people who come from LP solvers write it."""

import numpy as np
import pandas as pd
import pytest
import scipy.optimize
import scipy.sparse

import jdpack
from jdpack import AgentsError, MarketError

RNG = np.random.default_rng(7)
N = 4000
C = RNG.uniform(0.0, 10.0, N)
A = RNG.uniform(0.0, 1.0, (2, N)) * (RNG.random((2, N)) < 0.7)
B = {"machine": 600.0, "labour": 450.0}
PUBLIC = {"max_value": 10.0, "max_demand": 1.0, "epsilon": 4.0, "delta": 1e-6}


def test_it_comes_close_to_the_optimum_with_duals_and_slacks_by_name():
    program = jdpack.from_lp(C, A, B, **PUBLIC)
    result = program.solve(seed=1)
    x = program.x(result)
    exact = scipy.optimize.linprog(-C, A_ub=A, b_ub=list(B.values()), bounds=(0, 1))
    assert 0.93 < C @ x / -exact.fun <= 1.0 + 1e-9
    assert (A @ x <= np.array(list(B.values())) + 1e-9).all()
    assert result.prices.names == result.slacks.names == ("machine", "labour")
    duals = dict(zip(B, -exact.ineqlin.marginals, strict=True))
    for name, price in duals.items():
        assert result.prices[name] == pytest.approx(price, rel=0.15)
        left = B[name] - A[list(B).index(name)] @ x
        assert result.slacks[name] == pytest.approx(left, abs=0.05)


def test_every_spelling_is_the_same_program():
    listed = jdpack.from_lp(C, A, list(B.values()), names=list(B), **PUBLIC)
    frame = pd.DataFrame(A, index=list(B))
    others = [
        jdpack.from_lp(C.tolist(), scipy.sparse.csc_matrix(A), B, **PUBLIC),
        jdpack.from_lp(pd.Series(C), frame, pd.Series(B)[::-1], **PUBLIC),
        jdpack.from_lp(C, frame, list(B.values()), **PUBLIC),
    ]
    given = listed.solve(seed=1).allocation
    for other in others:
        assert other.market == listed.market
        assert (other.solve(seed=1).allocation == given).all()
    assert jdpack.from_lp(C, A, [1.0, 2.0], **PUBLIC).market.resources[1].name == "row 2"
    assert "values" not in repr(listed)


def test_variables_of_one_agent_sum_to_at_most_one():
    agent_of = RNG.permutation(np.repeat(np.arange(N // 2), 2))
    program = jdpack.from_lp(C, A, B, agent_of=agent_of, options=2, **PUBLIC)
    assert program.market.agents == N // 2
    x = program.x(program.solve(seed=1))
    assert np.bincount(agent_of, weights=x).max() <= 1.0 + 1e-9 and x.sum() > 100.0
    assert (A @ x <= np.array(list(B.values())) + 1e-9).all()
    whole = jdpack.from_lp(C, A, B, agent_of=agent_of, options=2, divisible=False, **PUBLIC)
    assert set(np.unique(whole.x(whole.solve(seed=1)))) == {0.0, 1.0}


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"A": np.vstack([A[0], -A[1]])}, AgentsError, r"A is -0\.\d+ in row 'labour' for var"),
        ({"A": scipy.sparse.csr_matrix(-A)}, AgentsError, r"A is -0\.\d+ in row 'machine'"),
        ({"b": {"machine": 600.0, "labour": -5.0}}, MarketError, "b is -5 in row 'labour'"),
        ({"c": -C}, AgentsError, r"c is -\d.*\n.*c is maximised"),
        ({"A": A[:1]}, MarketError, r"A has the shape \(1, 4000\), not \(2, 4000\)"),
        ({"b": {"machine": 1.0, "x": 2.0}, "names": ["machine", "y"]}, MarketError, "b names 'x'"),
        ({"b": "x"}, MarketError, "b is not a vector"),
        ({"c": [[1.0]]}, MarketError, r"c has the shape \(1, 1\)"),
        ({"agent_of": [1, 2]}, AgentsError, "agent_of has 2 entries for 4000 variables"),
    ],
)
def test_what_does_not_fit_is_said(change, error, says):
    with pytest.raises(error, match=says) as caught:
        jdpack.from_lp(**{"c": C, "A": A, "b": B, **PUBLIC, **change})
    if "in row" in says:
        assert "Equalities, floors (>=)" in str(caught.value)


def test_bounds_are_never_read_off_the_records():
    with pytest.raises(TypeError, match="max_value"):
        jdpack.from_lp(C, A, B, max_demand=1.0)
    with pytest.raises(AgentsError, match="is above the public bound"):
        jdpack.from_lp(C, A, B, **{**PUBLIC, "max_demand": 0.5}).solve(seed=1)
