"""Markets of random structure: the same on every machine, unlike each other, and all allowed."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "experiments"))

import random_markets
from loss import Run

SMALL = 17  # 2,000 agents, 8 resources, epsilon 1


def test_a_number_always_gives_the_same_market():
    (one, epsilon), (again, same) = random_markets.drawn(SMALL), random_markets.drawn(SMALL)
    assert epsilon == same == 1.0 and one.count == 2000
    assert np.array_equal(one.values, again.values) and np.array_equal(one.supply, again.supply)
    assert (one.demands != again.demands).nnz == 0
    other, _ = random_markets.drawn(SMALL + 1)
    assert len(other.values) != len(one.values)


def test_the_markets_differ_in_structure_and_are_all_allowed():
    seen = set()
    for number in range(12):
        instance, epsilon = random_markets.drawn(number)
        instance.market()  # no bound is broken
        assert np.all(instance.demands.max(axis=0).toarray() <= instance.caps * (1 + 1e-12))
        assert instance.values.min() >= 0.0 and instance.values.max() <= 1.0
        seen.add((len(instance.supply), instance.bundle_size, instance.options, epsilon))
    assert len(seen) > 9


def run(loss, *, fits=True, certified=0.5):
    return Run(0.1, 0.1, loss, fits, certified, 88, 92, 0.1)


def test_the_summary_counts_what_went_wrong():
    found = {
        (SMALL, True): {"default": [run(0.12)], "rival": [run(0.30)]},
        (SMALL, False): {"default": [run(0.25, fits=False, certified=0.8)], "rival": [run(0.2)]},
    }
    said = list(random_markets.summary(found, {str(SMALL): 0.1}))
    assert "1.20 F* in the median" in said[0] and said[0].endswith("F* + 0.3% in 1")
    assert "in 0 of 1" in said[1] and "ahead by 18.0%" in said[1]
    assert said[2] == "divisible: supply exceeded in 0, certificates above the truth: 0"
    assert "2.50 F* in the median" in said[3] and said[3].endswith("F* + 0.5% in 0")
    assert "in 1 of 1, by 5.0% at most" in said[4]
    assert said[5] == "indivisible: supply exceeded in 1, certificates above the truth: 1"


def test_one_market_from_beginning_to_end(monkeypatch, capsys, tmp_path):
    arguments = ["x", "--first", str(SMALL), "--markets", "1", "--results", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", [*arguments, "--seeds", "1"])
    random_markets.main()
    first = capsys.readouterr().out
    assert first.count(f"| {SMALL} | 2,000 | 8 | 3 | 1 | 1 |") == 2
    assert "supply exceeded in 0, certificates above the truth: 0" in first
    with pytest.MonkeyPatch.context() as patch:  # what is on file is not run again
        patch.setattr("loss.run", None)
        patch.setattr("random_markets.floor_of", None)
        random_markets.main()
    assert capsys.readouterr().out == first
