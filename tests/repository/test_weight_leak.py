"""The coalition of notes-on-the-paper.md breaks the printed algorithm, but cannot break ours.

Breaking the printed algorithm is the negative control of the attack on jdpack. A run with hardly
any noise is the negative control of the test that this attack uses.
"""

import importlib.util
import math
import sys
from pathlib import Path

import numpy as np
import pytest

FILE = Path(__file__).parents[2] / "experiments" / "weight_leak.py"
RUNS = 40


def _load():
    spec = importlib.util.spec_from_file_location("weight_leak", FILE)
    module = importlib.util.module_from_spec(spec)
    sys.modules["weight_leak"] = module
    spec.loader.exec_module(module)
    return module


leak = _load()


def chance_of(right: int, runs: int, most: float) -> float:
    """P(at least `right` of `runs`) if each is right with probability `most`."""
    return sum(
        math.comb(runs, k) * most**k * (1.0 - most) ** (runs - k) for k in range(right, runs + 1)
    )


@pytest.mark.parametrize("secret", [0.0, 0.31415, 1.0])
def test_the_printed_algorithm_hands_the_last_agents_demand_to_the_others(secret):
    people = leak.make_people(secret)
    run = leak.printed_algorithm(people, leak.SUPPLY, leak.ALPHA, leak.EPSILON, leak.DELTA, seed=7)
    readings = leak.attack_printed(
        people.coalition, run.prices, run.outputs[:-1], leak.SUPPLY, leak.ALPHA
    )
    assert {r.resource for r in readings} == {0}
    bought = [bool(leak.best_responses(people, run.prices[r.round])[-1]) for r in readings]
    assert any(bought)
    for reading, buys in zip(readings, bought, strict=True):
        assert reading.demand == pytest.approx(secret * buys, abs=1e-6)


def test_a_last_agent_that_stays_away_is_seen_to_stay_away():
    people = leak.make_people(1.0)
    people.values[-1] = 0.0
    run = leak.printed_algorithm(people, leak.SUPPLY, leak.ALPHA, leak.EPSILON, leak.DELTA, seed=7)
    readings = leak.attack_printed(
        people.coalition, run.prices, run.outputs[:-1], leak.SUPPLY, leak.ALPHA
    )
    assert readings
    assert max(abs(r.demand) for r in readings) < 1e-6


def test_the_steps_that_the_outputs_determine_are_the_hidden_ones():
    people = leak.make_people(1.0)
    run = leak.printed_algorithm(people, leak.SUPPLY, leak.ALPHA, leak.EPSILON, leak.DELTA, seed=3)
    eta_sum = math.log(3) / (leak.ALPHA * leak.SUPPLY)
    steps = leak.solve_for_steps(people.coalition, run.prices, run.outputs[:-1], eta_sum)
    known = ~np.isnan(steps)
    assert known.any() and not known.all()
    np.testing.assert_allclose(steps[known], run.hidden_steps[known], rtol=1e-9)


def test_row_reduction_knows_what_it_does_not_know():
    # x + y = 3, z = 5: z is determined, x and y are not.
    known = leak.row_reduce(np.array([[1.0, 1.0, 0.0, 3.0], [0.0, 0.0, 1.0, 5.0]]))
    assert np.isnan(known[:2]).all() and known[2] == 5.0


def test_the_printed_noise_has_the_papers_shape():
    # The paper's lemma on its noise: mean mu, variance at most 2 sigma^2, support 1 - alpha.
    noise = leak.truncated_laplace(np.random.default_rng(1), 0.2, 0.8, 100_000)
    assert np.abs(noise).max() <= 0.8
    assert abs(noise.mean()) < 6 * 0.2 * math.sqrt(2 / 100_000)
    tail = math.exp(-4.0)
    exact = (2 * 0.04 - tail * (2 * 0.8 * 0.2 + 2 * 0.04 + 0.64)) / (1 - tail)
    assert noise.var() == pytest.approx(exact, rel=0.03)


def test_the_attack_is_always_right_on_the_printed_algorithm_and_by_chance_on_ours():
    bound = leak.most_success_gaussian(leak.run_ours(leak.make_people(0.0), 0).header.budget.rho)
    assert 0.5 < bound < leak.most_success(leak.EPSILON, leak.DELTA)
    assert leak.success_printed(RUNS) == RUNS
    assert chance_of(RUNS, RUNS, bound) < 1e-9, "such success refutes the guarantee"
    right = leak.success_ours(RUNS)
    assert chance_of(right, RUNS, bound) > 1e-6
    assert chance_of(right, RUNS, leak.most_success(leak.EPSILON, leak.DELTA)) > 1e-6
    # On runs with little noise the same test sees the last agent, so it is not blind.
    assert chance_of(leak.success_ours(RUNS, epsilon=50.0), RUNS, bound) < 1e-6


def test_what_the_coalition_reads_in_ours_is_noise():
    people = leak.make_people(0.7319)
    board = leak.run_ours(people, seed=1)
    coalition = leak.Coalition(people.coalition)
    errors = np.abs(coalition.read_weights(board))
    assert len(errors) > 10 and np.median(errors) > 30.0  # times the range of a demand
    pooled = [coalition.read_demands(leak.run_ours(people, seed)) for seed in range(10)]
    # Delta / sqrt(2 * 0.9 rho) with both resources in Delta: about 7 times the range.
    deviation = pooled[0][1]
    assert deviation == pytest.approx(math.sqrt(2) / math.sqrt(1.8 * board.header.budget.rho), 0.1)
    assert deviation > 5.0
    errors = np.array([estimate - 0.7319 for estimate, _ in pooled]) / deviation
    assert 0.3 < np.sqrt((errors**2).mean()) < 2.0


def test_the_table_is_printed(capsys):
    leak.main(runs=4)
    out = capsys.readouterr().out
    assert "as printed  100.0%" in out
    assert "jdpack" in out


def test_the_papers_noise_needs_enough_supply():
    with pytest.raises(ValueError, match="sigma <= alpha"):
        leak.printed_algorithm(leak.make_people(1.0), 5.0, 0.1, 1.0, 1e-6, seed=1)
