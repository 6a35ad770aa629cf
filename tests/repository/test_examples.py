"""The gallery: every command of every page runs, and gives the numbers on the pages.

Runs are private, so not seeded. A page's numbers must be within the margin of its plan, which noise
and coins exceed with a probability of about 1e-9. What is certified of indivisible goods also moves
with the noise on luck, which some runs release.
"""

import importlib.util
import re
import runpy
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from jdpack import Billboard, Budget, Market, plan
from jdpack.curator.optimum import optimum
from jdpack.privacy import queries
from jdpack.privacy.noise import deviation, gaussian
from jdpack.privacy.tail_bounds import LUCK_SHARE

from .test_docs import ROOT, blocks, broken_links, here, rows, run_page, section

pytestmark = pytest.mark.long

FOLDER = ROOT / "examples"
NAMES = ["clinic", "cluster", "jobs", "charging", "airport"]
PAGES = [FOLDER / "README.md", *(FOLDER / name / "README.md" for name in NAMES)]
EPSILONS = [0.1, 0.3, 0.5, 1.0, 3.0]


# --- the pages' numbers -------------------------------------------------------------------


@dataclass(frozen=True)
class Ran:
    """The results of a run, in the terms of the pages, as fractions of 1."""

    agents: int
    options: int
    optimum: float
    share: float
    certified: float
    given: float
    fullest: float
    margin: float
    margins: dict[float, float]
    luck: float
    """The deviation of the noise on luck, of the optimum; 0 if goods are divisible."""

    def off(self, name: str) -> float:
        """How far a number may be from that of another run: 8.6 is sqrt 2 times 6.1 deviations."""
        return self.margin + (8.6 * self.luck if name == "certified fraction" else 0.0)

    def complaints(self, page: str) -> list[str]:
        """What is wrong on a page."""
        table = {row[0]: row[1:] for row in rows(section(page, "## What came out"))}
        wrong = [
            f"{name}: {table[name][0]}, not {exact:,}"
            for name, exact in (("agents", self.agents), ("options", self.options))
            if number(table[name][0]) != exact
        ]
        if abs(number(table["optimum without privacy"][0]) / self.optimum - 1) > 1e-5:
            wrong.append(f"optimum: {self.optimum:,.0f}")
        near = {
            "fraction of the optimum": self.share,
            "certified fraction": self.certified,
            "given": self.given,
            "fullest resource": self.fullest,
        }
        for name, found in near.items():
            one, several = number(table[name][0]), re.findall(r"[\d.]+%", table[name][1])
            if abs(one - found) > self.off(name):
                wrong.append(f"{name}: {one:.4f} on the page, {found:.4f} in the run")
            elif several:
                low, high = map(number, several)
                if not (low <= one <= high < low + self.off(name)):
                    wrong.append(f"{name}: {one:.4f} beside {low:.4f} to {high:.4f}")
        said = {row[0]: row[1] for row in rows(section(page, "## With other numbers"))}
        assert set(said) == {f"epsilon {epsilon:g}" for epsilon in EPSILONS}
        for epsilon, margin in self.margins.items():
            if said[f"epsilon {epsilon:g}"] != f"{100 * margin:#.3g}%":
                wrong.append(f"the margin at epsilon {epsilon:g} is {margin:.5f}")
        return wrong


def number(text: str) -> float:
    plain = float(text.replace(",", "").rstrip("%"))
    return plain / 100 if text.endswith("%") else plain


def ran(folder: Path) -> Ran:
    """The numbers of a run, from its files alone, not by the code that reported them."""
    market = Market.from_toml(folder / "market.toml")
    table = pa.parquet.read_table(folder / "agents.parquet")
    ids, values, demands = records(market, table)
    allocation = pa.parquet.read_table(folder / "out/private/allocation.parquet")
    last = allocation.column_names[-1]
    shares = allocation[last].to_numpy().astype(np.float64)
    assert last == ("share" if market.divisible else "granted") and len(shares) == len(values)
    new = np.concatenate([[0], ids[1:] != ids[:-1]]).astype(bool)  # options are adjacent
    people = new.sum() + 1
    if market.requests > 1:
        names = np.array(table[market.columns.request].to_pylist())
        new[1:] |= names[1:] != names[:-1]
    agents = np.cumsum(new)  # or requests
    assert np.bincount(agents, shares).max() <= 1.0  # one option each
    supply = np.array([r.supply for r in market.resources])
    best = optimum(values, demands, supply, agents).value
    board = Billboard.read(folder / "out/public/billboard.jsonl")
    certificate = board.certificate
    assert certificate is not None and certificate.ratio_at_least is not None
    margins = {e: plan(folder / "market.toml", epsilon=e).margin for e in EPSILONS}
    return Ran(
        agents=people,
        options=len(values),
        optimum=best,
        share=values @ shares / best,
        certified=certificate.ratio_at_least,
        given=shares.sum() / (agents.max() + 1),
        fullest=(demands.T @ shares / supply).max(),
        margin=margins[1.0],
        margins=margins,
        luck=0.0 if market.divisible else luck_noise(market, board.header.budget) / best,
    )


def luck_noise(market: Market, budget: Budget) -> float:
    """The deviation of a release of luck, in units of value."""
    cap = market.value_cap_code
    change = queries.luck_change(market, -cap, cap)
    noise = deviation(gaussian(change, budget.rho * LUCK_SHARE))[-1]
    return noise / cap * market.max_value


def records(market: Market, table: pa.Table):
    """The ids, values and demands (sparse) of the options of a table."""
    from scipy.sparse import coo_array

    columns = market.columns
    names = [r.column for r in market.resources]
    ids, values = table[columns.id].to_numpy(), table[columns.value].to_numpy()
    if columns.layout == "wide":
        return ids, values, coo_array(np.stack([table[n] for n in names], axis=1)).tocsr()
    plans = table[columns.option].to_numpy()
    begins = np.concatenate([[True], (ids[1:] != ids[:-1]) | (plans[1:] != plans[:-1])])
    place = {name: j for j, name in enumerate(names)}
    which = np.array([place[name] for name in table[columns.resource].to_pylist()])
    cells = (table[columns.amount].to_numpy(), (np.cumsum(begins) - 1, which))
    return ids[begins], values[begins], coo_array(cells, (begins.sum(), len(names))).tocsr()


# --- every page runs ----------------------------------------------------------------------


@pytest.fixture(scope="module", params=NAMES)
def example(request, tmp_path_factory):
    """A copy of an example's folder, after running the commands of its page in order."""
    name = request.param
    folder = tmp_path_factory.mktemp("examples") / name
    shutil.copytree(FOLDER / name, folder, ignore=shutil.ignore_patterns("__pycache__"))
    page = folder / "README.md"
    text = page.read_text(encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "argv", data_command(text))
        runpy.run_path(sys.argv[0], run_name="__main__")
        run_page(text, page, here)
    return folder


def data_command(page: str) -> list[str]:
    """How a page makes its data: with its first command, and no other."""
    console = [block for language, _, block in blocks(page) if language == "console"]
    commands = [line for block in console for line in block.split("\n")]
    assert commands[0].startswith("$ python make_agents.py ")
    assert all(command.startswith("$ jdpack ") for command in commands[1:])
    return commands[0].split(" ")[2:]


def test_a_page_says_what_comes_out(example):
    page = (FOLDER / example.name / "README.md").read_text(encoding="utf-8")
    found = ran(example)
    assert found.complaints(page) == []
    assert found.certified <= found.share + 1e-9 and found.fullest <= 1.0
    assert found.margin < 0.08 and found.share > 1 - 2 * found.margin  # useful at epsilon 1

    # Every number is checked: a wrong one is found.
    for name, cell, several in rows(section(page, "## What came out")):
        wrong = f"{number(cell) * 1.1:,.0f}"
        if "%" in cell:
            wrong = f"{100 * (number(cell) - 3 * found.off(name)):.2f}%"
        off = page.replace(f"| {name} | {cell} |", f"| {name} | {wrong} |")
        assert off != page and len(found.complaints(off)) == 1, name
        if several:
            off = page.replace(f"| {several} |", "| 10.0% to 99.9% |")
            assert len(found.complaints(off)) == 1, name
    for row in rows(section(page, "## With other numbers")):
        off = page.replace(f"| {row[0]} | {row[1]} |", f"| {row[0]} | 9{row[1]} |")
        assert len(found.complaints(off)) == 1, row


def test_the_run_is_private_and_has_its_page(example):
    assert Billboard.read(example / "out/public/billboard.jsonl").header.private
    assert (example / "out/public/index.html").stat().st_size > 1000
    console = (FOLDER / example.name / "README.md").read_text(encoding="utf-8")
    assert "\n$ jdpack verify out\n" in console  # run_page has checked that it succeeds


def test_the_commands_of_a_page_are_those_that_make_its_data():
    assert data_command("```console\n$ python make_agents.py -o a\n```") == [
        "make_agents.py",
        "-o",
        "a",
    ]
    with pytest.raises(AssertionError):
        data_command("```console\n$ jdpack plan market.toml\n```")
    with pytest.raises(AssertionError):
        data_command("```console\n$ python make_agents.py\n$ rm -r out\n```")


@pytest.mark.parametrize("name", NAMES)
def test_the_list_has_every_example_with_the_figure_of_its_page(name):
    listed = {row[0]: row[2] for row in rows((FOLDER / "README.md").read_text(encoding="utf-8"))}
    page = (FOLDER / name / "README.md").read_text(encoding="utf-8")
    title = page.split("\n")[0].removeprefix("# ")
    table = {row[0]: row[1] for row in rows(section(page, "## What came out"))}
    figure = listed[f"[{title}]({name}/README.md)"]
    assert figure.startswith(
        f"{table['fraction of the optimum']} of the optimum for {table['agents']} "
    )


def test_every_folder_is_an_example():
    assert sorted(p.parent.name for p in FOLDER.glob("*/market.toml")) == sorted(NAMES)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.parent.name)
def test_links_resolve(page):
    assert broken_links(page.read_text(encoding="utf-8"), page) == []


# --- the generators -----------------------------------------------------------------------


def generator(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        f"{name}_agents", FOLDER / name / "make_agents.py"
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", NAMES[:3])
def test_a_generator_is_deterministic_and_makes_as_many_agents_as_it_is_told(name, tmp_path):
    make = generator(name).main
    for file in ("a.parquet", "b.parquet"):
        make(["--agents", "300", "-o", str(tmp_path / file)])
    first, second = (pa.parquet.read_table(tmp_path / f) for f in ("a.parquet", "b.parquet"))
    assert first.equals(second)
    market = Market.from_toml(FOLDER / name / "market.toml")
    assert len(set(first[market.columns.id].to_pylist())) == 300


def test_flights_without_their_data_say_how_to_get_it(monkeypatch):
    module = generator("airport")
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match=r"pip install \"jdpack\[examples\]\""):
        module.data()


def test_fewer_flights_are_some_of_all_of_them(monkeypatch):
    module = generator("airport")
    flights = module.departures()
    assert len(set(flights["flight"])) == len(flights["flight"]) == 331_122
    monkeypatch.setattr(module, "departures", lambda: flights)  # reading them takes a while
    some = module.requests(500)
    assert len(set(some["flight"].to_pylist())) == 500
    assert set(some["flight"].to_pylist()) <= set(flights["flight"])
    assert some.equals(module.requests(500))
