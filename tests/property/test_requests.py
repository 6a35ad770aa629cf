"""People with several requests: all engines, layouts and languages agree, on every request.

Markets and records are random, with people at and beyond their bounds. What each request gets is
computed by the engines, by the agent's own function in Python, and by the page's script in Node.
"""

from __future__ import annotations

import base64
import csv
import itertools
from dataclasses import dataclass
from functools import cache

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from browser.test_same_numbers import in_node
from jdpack import (
    AgentsError,
    Group,
    Mapped,
    Market,
    MaxTotal,
    MwuOnline,
    PersonBounds,
    Request,
    allocate,
    explain,
    letters,
    solve,
    verify_run,
)
from jdpack.agent.in_words import tell_all
from jdpack.agent.options import counted
from jdpack.agent.own_record import parse
from jdpack.common.coins import coin, request_key
from jdpack.engines.memory import MemoryEngine
from jdpack.pages.billboard_page import data, public_page
from jdpack.records import tables
from jdpack.records.codes import is_sparse
from jdpack.records.encode import encode
from jdpack.run.solve import resume

pytestmark = pytest.mark.filterwarnings("ignore::jdpack.SupplyWarning")

Option = tuple[float, tuple[float, ...]]
People = dict[str, tuple[str | None, dict[str, list[Option]]]]
"""For each id: the group, and the options of each request by its name."""


@dataclass(frozen=True)
class Setting:
    market: Market
    people: People

    def rows(self):
        for id, (group, requests) in self.people.items():
            for request, options in requests.items():
                for number, option in enumerate(options):
                    yield id, group, request, number, *option

    def wide(self) -> pa.Table:
        ids, groups, requests, _, values, amounts = zip(*self.rows(), strict=True)
        columns = {"id": ids, "request": requests, "value": values}
        if self.market.groups:
            columns["group"] = groups
        named = zip(self.market.declared, zip(*amounts, strict=True), strict=True)
        return pa.table(columns | {r.column: own for r, own in named})

    def long(self) -> pa.Table:
        found = []
        for id, group, request, number, value, amounts in self.rows():
            pairs = [(r.column, a) for r, a in zip(self.market.declared, amounts, strict=True) if a]
            for name, amount in pairs or [(None, None)]:
                found.append((id, group, request, str(number), value, name, amount))
        names = ("id", "group", "request", "option", "value", "resource", "amount")
        columns = dict(zip(names, zip(*found, strict=True), strict=True))
        if not self.market.groups:
            del columns["group"]
        if self.market.options == 1:
            del columns["option"]
        return pa.table(columns)

    def as_long(self) -> Market:
        data = self.market.to_dict()
        data["agents"]["layout"] = "long"
        return Market.from_dict(data)

    def requests_of(self, id: str) -> list[Request]:
        return [
            Request(name, [v for v, _ in options], [list(a) for _, a in options])
            for name, options in self.people[id][1].items()
        ]


@cache
def setting(seed: int) -> Setting:
    rng = np.random.default_rng([seed, 3])
    m, n, options = int(rng.choice([1, 3, 8])), 40, int(rng.choice([1, 3]))
    size = int(rng.choice([1, max(1, m // 2), m]))
    groups = [Group("staff", cap={"good 0": 30.0})] if rng.random() < 0.4 else []
    bounds = {
        "max_value": 3.0,
        "bundle_size": min(m, size + 1),
        "max_demand": {f"good {j}": float(rng.choice([1.0, 2.5])) for j in range(0, m, 2)},
        "max_total": (MaxTotal(1.5 if size == 1 else 2.5),),
    }
    own = list(bounds)[seed % 4]  # this one, and perhaps others
    bounds = {name: most for name, most in bounds.items() if name == own or rng.random() < 0.3}
    market = Market(
        supply=[60.0] * m,
        max_demand=1.0,
        max_value=1.0,
        agents=n,
        bundle_size=size,
        options=options,
        person=PersonBounds(int(rng.choice([3, 5])), **bounds),
        max_total=[MaxTotal(1.5)] if rng.random() < 0.4 else None,
        groups=groups,
        names=[f"good {j}" for j in range(m)],
        divisible=bool(rng.random() < 0.4),
        neighbours=str(rng.choice(["replace-one", "add-remove"])),
    )

    def option() -> Option:
        amounts = rng.choice([0.0, 1.0, 0.3, 0.123456, 1.4], m)
        amounts[rng.permutation(m)[size:]] = 0.0
        return float(rng.choice([rng.random(), 1.0, 1.7])), tuple(map(float, amounts))

    def requests() -> dict[str, list[Option]]:
        count = int(rng.integers(1, market.requests + 2))
        names = [f"é{name}" for name in rng.permutation(20)[:count]]
        return {name: [option() for _ in range(rng.integers(1, options + 1))] for name in names}

    people = {
        f"p:{i}": ("staff" if rng.random() < 0.5 else None, requests()) for i in range(n)
    }  # fmt: skip
    return Setting(market, people)


SEEDS = range(16)


@cache
def run(seed: int):
    one = setting(seed)
    policy = MwuOnline(batch=7) if seed % 5 == 3 else None
    return solve(
        one.market, one.wide(), epsilon=50.0, delta=1e-6, seed=seed, clamp=True, policy=policy
    )


def test_the_settings_reach_everything():
    some = [setting(seed).market for seed in SEEDS]
    assert len({(is_sparse(m), m.options > 1) for m in some}) == 4
    assert {m.divisible for m in some} == {m.neighbours.value == "add-remove" for m in some}
    assert any(m.groups for m in some) and any(m.totals for m in some)
    seen = {o.left_out for seed in SEEDS for id in setting(seed).people for o in outcomes(seed, id)}
    assert seen == {None, "requests", "max_value", "bundle_size", "max_demand", "max_total"}


@cache
def outcomes(seed: int, id: str):
    one = setting(seed)
    given = {"group": one.people[id][0]} if one.market.groups else {}
    return allocate(run(seed).billboard, requests=one.requests_of(id), agent=id, **given)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_request_gets_what_the_agents_own_function_says(seed):
    shares, row = run(seed).allocation, 0
    winners = left_out = 0
    for id in setting(seed).people:
        for outcome in outcomes(seed, id):
            own = shares[row : row + len(outcome.given)]
            assert own.tolist() == list(outcome.given), (id, outcome)
            row += len(own)
            winners += any(outcome.given)
            left_out += outcome.left_out is not None
    assert row == len(shares)
    exact = run(seed).curator
    assert exact.winners == winners > 0
    assert exact.clamped >= left_out
    assert exact.agents == 40 < exact.requests


@pytest.mark.parametrize("seed", SEEDS)
def test_the_page_agrees(seed):
    one, board = setting(seed), run(seed).billboard
    people = [
        {
            "id": id,
            "group": group if one.market.groups else None,
            "requests": [
                {"name": name, "options": [{"value": v, "demand": list(a)} for v, a in options]}
                for name, options in requests.items()
            ],
        }
        for id, (group, requests) in one.people.items()
    ]
    code = """(market, people) => people.map(({id, requests, group}) =>
      jdpack.allocateAll(market, id, requests, group).map(
        ({given, scaled, times, coin, left_out}) => ({given, scaled, times, coin, left_out})))"""
    for own, found in zip(people, in_node(code, data(board), people), strict=True):
        for outcome, page in zip(outcomes(seed, own["id"]), found, strict=True):
            assert [g / 2**24 for g in page["given"]] == list(outcome.given)
            assert [s / 2**24 for s in page["scaled"]] == list(outcome.scaled)
            assert page["times"] == list(outcome.rounds)
            assert page["coin"] / 2**53 == outcome.coin
            assert page["left_out"] == outcome.left_out
    assert '"person"' in public_page(board)


@pytest.mark.parametrize("seed", SEEDS)
def test_explanations_agree_with_the_outcomes(seed):
    one, board = setting(seed), run(seed).billboard
    for id in list(one.people)[:8]:
        given = {"group": one.people[id][0]} if one.market.groups else {}
        told = explain(board, requests=one.requests_of(id), agent=id, **given)
        for each, outcome in zip(told, outcomes(seed, id), strict=True):
            assert (each.request, each.left_out) == (outcome.request, outcome.left_out)
            if each.left_out is None:
                assert each.to_dict()["given"] == list(outcome.given)
        words = tell_all(told)
        assert words.count("this one would go beyond that") == sum(
            o.left_out is not None for o in told
        )
        assert f" of your {len(told)} request" in words


@pytest.mark.parametrize("seed", SEEDS)
def test_layouts_pieces_and_threads_give_the_same_codes(seed):
    one = setting(seed)
    digests = set()
    for market, table in ((one.market, one.wide()), (one.as_long(), one.long())):
        for rows, threads in itertools.product((3, 50, 10**6), (1, 2)):
            pieces = tables.pieces(market, table, rows)
            engine = MemoryEngine(encode(market, pieces, clamp=True), threads)
            digests.add((engine.digest(), engine.count, engine.requests, engine.clamped))
    assert len(digests) == 1


@pytest.mark.parametrize("seed", [0, 1, 3, 5])
def test_engines_files_verify_and_resume(seed, tmp_path):
    one = setting(seed)
    pyarrow.parquet.write_table(one.wide(), tmp_path / "agents.parquet", row_group_size=7)
    boards, tables_of = set(), []
    for name, engine in [("memory", "memory"), ("mapped", Mapped(str(tmp_path / "store")))]:
        for again in range(2 if name == "mapped" else 1):  # the second finds the store
            out = tmp_path / f"{name}{again}"
            solve(
                one.market, tmp_path / "agents.parquet", epsilon=50.0, delta=1e-6, seed=seed,
                clamp=True, engine=engine, output=out,
            )  # fmt: skip
            boards.add((out / "public" / "billboard.jsonl").read_bytes())
            tables_of.append(pyarrow.parquet.read_table(out / "private" / "allocation.parquet"))
            assert verify_run(out).agents == 40
            (out / "private" / "allocation.parquet").unlink()
            resume(out)
            assert verify_run(out).agents == 40
    assert len(boards) == 1 and all(table.equals(tables_of[0]) for table in tables_of)
    names = ["id", "request", *(["option"] if one.market.options > 1 else [])]
    assert tables_of[0].schema.names[:-1] == names
    rows = one.wide()
    assert tables_of[0].column("id").to_pylist() == rows.column("id").to_pylist()
    assert tables_of[0].column("request").to_pylist() == rows.column("request").to_pylist()


@pytest.mark.parametrize("seed", [0, 1, 3, 5])
def test_letters_and_what_is_granted_by_person(seed, tmp_path):
    one = setting(seed)
    pyarrow.parquet.write_table(one.wide(), tmp_path / "agents.parquet", row_group_size=7)
    result = solve(
        one.market, tmp_path / "agents.parquet", epsilon=50.0, delta=1e-6, seed=seed, clamp=True,
        output=tmp_path / "out",
    )  # fmt: skip
    path = letters(tmp_path / "out", outcome=True, url="https://city.example/")
    with path.open(newline="", encoding="utf-8") as file:
        written = list(csv.DictReader(file))
    assert [row["id"] for row in written] == list(one.people)
    records, wanted = [], {}
    for row in written:
        id, group = row["id"], one.people[row["id"]][0]
        given = {"group": group} if one.market.groups else {}
        own = one.requests_of(id)
        told = explain(result.billboard, requests=own, agent=id, **given, code=row["check code"])
        assert {each.code for each in told} == {row["check code"]}
        with pytest.raises(AgentsError, match="not the check code"):
            explain(result.billboard, requests=own, agent=f"{id}x", **given, code=row["check code"])
        encoded = row["link"].partition("#me=")[2].partition(".")[0]
        records.append(base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)).decode())
        found = allocate(result.billboard, requests=own, agent=id, **given)
        for request, outcome in zip(own, found, strict=True):
            assert f"request “{request.name}”: " in row["outcome"]
            for o, (share, amounts) in enumerate(
                zip(outcome.given, request.demand, strict=True), start=1
            ):
                kept = counted(one.market, amounts)
                for resource, amount in zip(one.market.declared, kept, strict=True):
                    if share * amount > 0:
                        wanted[id, request.name, o, resource.name] = amount * share
        assert "in total: " in row["outcome"]
    page = in_node(
        """(market, records) => records.map((text) => {
          const { id, requests, group } = jdpackRecord.parse(market, text);
          const outcomes = jdpack.allocateAll(market, id, requests, group);
          return jdpack.checkCode(market, id, outcomes);
        })""",
        data(result.billboard), records,
    )  # fmt: skip
    assert page == [row["check code"] for row in written]
    frame = result.to_frame()
    option = frame.option if one.market.options > 1 else [1] * len(frame)
    keys = zip(frame.id, frame.request, option, frame.resource, strict=True)
    assert dict(zip(keys, frame.amount, strict=True)) == wanted and wanted


def test_what_others_ask_for_changes_neither_coin_nor_what_is_kept():
    one, board = setting(1), run(1).billboard
    id = next(id for id, (_, requests) in one.people.items() if len(requests) > 2)
    own = one.requests_of(id)
    given = {"group": one.people[id][0]} if one.market.groups else {}
    alone = allocate(board, requests=own[:1], agent=id, **given)[0]
    assert alone == outcomes(1, id)[0]
    assert alone.coin == coin(board.seed.seed, request_key(id, own[0].name)) / 2**53
    assert request_key("a:1", "b") != request_key("a", "1:b")
    assert request_key("é", "b") == "2:é:b"


def test_the_promise_is_for_the_whole_person():
    one = setting(1)
    board = solve(one.market, one.wide(), epsilon=1.0, delta=1e-8, clamp=True).billboard
    assert "Everything that one person asked for, however many requests" in public_page(board)


def test_records_from_files():
    one = setting(5)
    id, (_, requests) = next(iter(one.people.items()))
    table = one.wide()
    mine = table.filter(pa.compute.equal(table.column("id"), id))
    sink = pa.BufferOutputStream()
    pyarrow.csv.write_csv(mine, sink)
    text = sink.getvalue().to_pybytes().decode()
    record = parse(one.market, text)
    assert record.id == id and record.values == ()
    assert [r.name for r in record.requests] == list(requests)
    for request, options in zip(record.requests, requests.values(), strict=True):
        assert list(zip(request.value, request.demand, strict=True)) == options
    page = in_node(
        "(market, text) => jdpackRecord.parse(market, text)", data(run(5).billboard), text
    )
    assert [r["name"] for r in page["requests"]] == list(requests)
    assert page["requests"][0]["options"][0]["demand"] == list(
        requests[record.requests[0].name][0][1]
    )


REFUSED = {
    "twice": ({"request": ["a", "b", "a"]}, "two requests named 'a'"),
    "missing": ({"request": ["a", None, "b"]}, "the name of a request is missing"),
    "no column": ({}, "lacks the column 'request'"),
    "floats": ({"request": [1.0, 2.0, 3.0]}, "not the name of a request"),
    "too many": ({"request": ["a", "b", "c"]}, "beyond the public bound of 2 requests"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refusals(what):
    more, sentence = REFUSED[what]
    market = Market(supply=[9.0], max_demand=1.0, max_value=1.0, agents=1, person=2, names=["x"])
    table = pa.table({"id": ["p"] * 3, "value": [1.0] * 3, "x": [1.0] * 3, **more})
    with pytest.raises(AgentsError, match=sentence):
        solve(market, table, epsilon=1.0, delta=1e-6, seed=1)


def test_an_agents_rows_must_be_together():
    market = Market(supply=[9.0], max_demand=1.0, max_value=1.0, agents=3, person=2, names=["x"])
    rows = {"id": ["p", "q", "p"], "request": ["a", "a", "b"], "value": [1.0] * 3, "x": [1.0] * 3}
    with pytest.raises(AgentsError, match="belongs to more than one agent"):
        solve(market, pa.table(rows), epsilon=1.0, delta=1e-6, seed=1)


def test_one_request_or_a_list():
    board, one = run(0).billboard, setting(0)
    with pytest.raises(AgentsError, match="all requests are needed"):
        allocate(board, value=1.0, demand=[0.0], agent="p")
    with pytest.raises(AgentsError, match="replaces value and demand"):
        allocate(board, value=1.0, requests=one.requests_of("p:0"), agent="p:0")
    with pytest.raises(AgentsError, match="two requests are named"):
        allocate(board, requests=one.requests_of("p:0")[:1] * 2, agent="p:0")
