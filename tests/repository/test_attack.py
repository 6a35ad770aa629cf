"""The attack in the README does what it says: it works against a solver, and fails against us."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def attack():
    spec = importlib.util.spec_from_file_location("attack", ROOT / "experiments/attack.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["attack"] = module  # its dataclasses look for it there
    spec.loader.exec_module(module)
    yield module
    del sys.modules["attack"]


@pytest.mark.parametrize(("value", "demand"), [(9.5, 0.7321), (8.25, 0.3004)])
def test_a_solver_gives_the_record_away(attack, value, demand):
    assert attack.read_from_highs(value, demand) == pytest.approx((value, demand), abs=1e-4)


def reads(attack) -> tuple[list[float], list[float]]:
    """What the coalition reads, 20 times each, where the demand is 0.25 and where it is 0.75."""
    small = [attack.read_from_jdpack(0.25, seed) for seed in range(20)]
    return small, [attack.read_from_jdpack(0.75, seed) for seed in range(20, 40)]


def guessed(small: list[float], large: list[float]) -> int:
    """How many of 40 times the coalition tells a demand of 0.25 from one of 0.75."""
    return sum(read < 0.5 for read in small) + sum(read >= 0.5 for read in large)


LIMIT = 0.732 * 40
"""Epsilon 1 lets anybody guess one of two records with probability e / (1 + e) at most."""


def test_the_same_people_learn_almost_nothing_from_jdpack(attack):
    small, large = reads(attack)
    for some in (small, large):
        assert 4 < np.std(some) < 9, "a demand is at most 1"
    assert guessed(small, large) < LIMIT


def test_with_too_little_noise_the_same_attack_works(attack, monkeypatch):
    """The control: the estimate is a good one, and only the noise stops it."""
    solve = attack.jdpack.solve
    monkeypatch.setattr(attack.jdpack, "solve", lambda *a, **k: solve(*a, **{**k, "epsilon": 50.0}))
    assert guessed(*reads(attack)) > LIMIT


def test_the_readme_quotes_what_the_script_prints(attack, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["attack.py"])
    attack.main()
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"```text\n{capsys.readouterr().out}```" in readme
