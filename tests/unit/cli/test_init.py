"""jdpack init: a few answers become a market file that everything else reads."""

import pytest
import typer.testing

from jdpack import Market, plan
from jdpack.cli import app_of
from jdpack.errors import MarketError, OutputError


def answer(path, *lines):
    given = "".join(f"{line}\n" for line in lines)
    return typer.testing.CliRunner().invoke(app_of(["init"]), ["init", str(path)], input=given)


GOODS = ["North", "2500", "1", "slots", 'Süd "2"', "1500.5", "2", "", ""]


def test_the_answers_are_the_market(tmp_path):
    path = tmp_path / "market.toml"
    rest = ["10000", "n", "3", "2", "n", "100", "patient", "points", "0.5"]
    done = answer(path, "Clinics", *GOODS, *rest)
    assert done.exit_code == 0, done.output
    assert done.stdout.endswith(f"wrote {path}\nnext: jdpack plan {path}\n")
    market = Market.from_toml(path)
    assert [(r.name, r.supply, r.max_demand, r.unit) for r in market.resources] == [
        ("North", 2500.0, 1.0, "slots"),
        ('Süd "2"', 1500.5, 2.0, ""),
    ]
    assert (market.name, market.agents, market.options, market.bundle_size) == (
        "Clinics", 10000, 3, 2,
    )  # fmt: skip
    assert market.neighbours.value == "add-remove" and not market.divisible
    assert (market.columns.id, market.columns.value, market.max_value) == ("patient", "points", 100)
    assert (market.epsilon, market.delta) == (0.5, 1e-8)
    assert plan(path).margin < 0.2
    assert path.read_text().count("  # ") > 10  # comments


def test_defaults_are_a_market(tmp_path):
    path = tmp_path / "market.toml"
    assert answer(path, "", "", "", "", "", "", *[""] * 9).exit_code == 0
    assert Market.from_toml(path).agents == 1000


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        (["x", "a", "5", "9", "", "", *[""] * 9], "max_demand 9 is above its supply 5"),
        (["x", "a", "5", "1", "", "a"], "two resources have the name 'a'"),
    ],
)
def test_what_does_not_fit_is_not_written(tmp_path, lines, says):
    path = tmp_path / "market.toml"
    done = answer(path, *lines)
    assert isinstance(done.exception, MarketError) and says in str(done.exception)
    assert not path.exists()


def test_a_file_is_never_overwritten(tmp_path):
    path = tmp_path / "market.toml"
    path.write_text("mine")
    done = answer(path, *[""] * 20)
    assert isinstance(done.exception, OutputError) and path.read_text() == "mine"
