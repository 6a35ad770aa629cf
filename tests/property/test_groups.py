"""Groups: derived demands are the same from every source and language, and obey what is claimed."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

from browser.test_same_numbers import in_node
from helpers import Records, decode, finished_board, long_table, random_records, wide_table
from jdpack import AgentsError, Group, Market, MaxTotal, allocate, solve
from jdpack.agent.options import encoded
from jdpack.audit.people import People
from jdpack.curator.truth import Truth
from jdpack.pages.billboard_page import data
from jdpack.privacy.queries import change
from jdpack.records import tables
from jdpack.records.codes import is_sparse
from jdpack.records.encode import encode
from jdpack.records.source import Source

seeds = st.integers(0, 2**32 - 1)
NAMES = ["north", "south", "7", "unknown", "", None]
"""What records may say: groups of the market, another name, or nothing."""


def a_market(rng: np.random.Generator, *, sparse: bool, options: int = 1, **more) -> Market:
    """A market with caps and reserves on random resources, and sometimes a bound on a total."""
    m = int(rng.integers(20, 30)) if sparse else int(rng.integers(1, 5))
    supply = 10.0 ** rng.uniform(-3, 6) * rng.uniform(1.0, 30.0, m)
    caps = supply * rng.uniform(0.01, 0.2, m)
    names = [f"resource {j + 1}" for j in range(m)]

    def some(part: float) -> dict[str, float]:
        chosen = rng.permutation(m)[: rng.integers(0, min(m, 3) + 1)]
        return {names[j]: float(supply[j] * part) for j in chosen}

    groups = [
        Group("north", cap=some(0.3) | {names[0]: supply[0] / 2}, reserve=some(0.25)),
        Group("south", reserve=some(0.3) | {names[-1]: supply[-1] / 4}),
        Group("7", cap={names[0]: supply[0] / 3}),
    ]
    total = [MaxTotal(float(caps.sum() / (6 if sparse else 2)))] if rng.random() < 0.5 else None
    return Market(
        supply=supply.tolist(),
        max_demand=caps.tolist(),
        max_value=1.0,
        agents=15,
        bundle_size=2 if sparse else m,
        options=options,
        max_total=total,
        groups=groups,
        **more,
    )


def grouped(rng: np.random.Generator, market: Market) -> tuple[Records, list]:
    """Random records, and what each agent says about its group."""
    plain = replace_groups(market)
    records = random_records(rng, plain, ids=[f"a{i}" for i in range(market.agents)])
    return replace(records, market=market), [
        NAMES[i] for i in rng.integers(0, len(NAMES), market.agents)
    ]


def replace_groups(market: Market) -> Market:
    return market.changed(groups=())


def expected_codes(records: Records, groups: list) -> list:
    """The definition, resource by resource."""
    market, found = records.market, []
    for options, group in zip(records.agents, groups, strict=True):
        base = encoded(replace_groups(market), [v for v, _ in options], [a for _, a in options])
        own = []
        for value, codes in base:
            codes = list(codes)
            for rule_group in market.groups:
                for name in rule_group.cap:
                    codes.append(codes[index(market, name)] if group == rule_group.name else 0)
                for name in rule_group.reserve:
                    codes.append(codes[index(market, name)] if group != rule_group.name else 0)
            own.append((value, tuple(codes)))
        found.append(own)
    return found


def index(market: Market, name: str) -> int:
    return [r.name for r in market.declared].index(name)


def table_of(records: Records, groups: list, layout) -> pa.Table:
    plain = replace(records, market=replace_groups(records.market))
    table = layout(plain)
    by_id = dict(zip(records.ids, groups, strict=True))
    return table.append_column("group", pa.array([by_id[i] for i in table["id"].to_pylist()]))


def rows_of(records: Records, groups: list) -> list:
    return [group for options, group in zip(records.agents, groups, strict=True) for _ in options]


@settings(max_examples=40, deadline=None)
@given(seeds, st.booleans(), st.sampled_from([1, 3]))
def test_every_source_gives_the_derived_codes(tmp_path_factory, seed, sparse, options):
    rng = np.random.default_rng(seed)
    market = a_market(rng, sparse=sparse, options=options)
    assert is_sparse(market) or not sparse
    records, groups = grouped(rng, market)
    expected = expected_codes(records, groups)
    own, arrays = rows_of(records, groups), records.arrays()
    for kind in (np.ascontiguousarray, np.asfortranarray, scipy.sparse.csr_matrix):
        pieces = tables.array_pieces(
            market, arrays["values"], kind(arrays["demands"]), arrays["ids"], groups_of=own
        )
        assert decode(encode(market, pieces, clamp=True)) == expected
    folder = tmp_path_factory.mktemp("tables")
    for layout in (wide_table, long_table):
        table = table_of(records, groups, layout)
        of = market
        if layout is long_table:
            columns = replace(market.columns, layout="long")
            of = market.changed(columns=columns)
        pyarrow.parquet.write_table(table, folder / f"{layout.__name__}.parquet")
        pyarrow.csv.write_csv(table, folder / f"{layout.__name__}.csv")
        for source in (
            table,
            table.to_pandas(),
            folder / f"{layout.__name__}.parquet",
            folder / f"{layout.__name__}.csv",
        ):
            assert decode(encode(of, tables.pieces(of, source), clamp=True)) == expected
    for agent, group, codes in zip(records.agents, groups, expected, strict=True):
        by_agent = encoded(market, [v for v, _ in agent], [a for _, a in agent], group)
        assert [(v, tuple(c)) for v, c in by_agent] == codes


@settings(max_examples=100, deadline=None)
@given(seeds, st.booleans())
def test_what_sensitivities_rest_on(seed, sparse):
    """At most `bundle_width` resources are touched, some record reaches it, and totals hold."""
    rng = np.random.default_rng(seed)
    market = a_market(rng, sparse=sparse)
    records, groups = grouped(rng, market)
    for agent in expected_codes(records, groups):
        for _, codes in agent:
            assert sum(code > 0 for code in codes) <= market.bundle_width
            for total in market.person_totals:
                assert total.fits(codes)
    free = market.changed(max_total=None)
    widest = 0
    for group in ["north", "south", "7", None]:
        brings = [
            1
            + sum(r.base == j and r.demanded_by(free.group_number(group)) for _, r in free.derived)
            for j in range(len(free.declared))
        ]
        best = np.argsort(brings)[::-1][: free.bundle_size].tolist()
        demand = [r.max_demand if j in best else 0.0 for j, r in enumerate(free.declared)]
        ((_, codes),) = encoded(free, 1.0, demand, group)
        widest = max(widest, sum(code > 0 for code in codes))
    assert widest == free.bundle_width
    used = [j for total in market.person_totals for j in total.resources]
    assert len(used) == len(set(used)), "no resource is in two sets"


@settings(max_examples=10, deadline=None)
@given(seeds, st.booleans())
def test_javascript_gives_the_derived_codes(seed, sparse):
    rng = np.random.default_rng(seed)
    market = a_market(rng, sparse=sparse, options=2)
    board = finished_board(market, [((3,) * len(market.resources), 1)], 2**24 - 5)
    records, groups = grouped(rng, market)
    agents = [
        [group, [{"value": v, "demand": a} for v, a in options]]
        for group, options in zip(groups, records.agents, strict=True)
    ]
    code = """(market, agents) => agents.map(([group, options]) => {
      const found = jdpack.allocate(market, "x", options, group);
      return [found.options.map(({value, codes}) => [value, codes]), found.given];
    })"""
    found = in_node(code, data(board), agents)
    assert [[(v, tuple(c)) for v, c in codes] for codes, _ in found] == expected_codes(
        records, groups
    )
    for (group, options), (_, given_) in zip(agents, found, strict=True):
        python = allocate(
            board,
            value=[o["value"] for o in options],
            demand=[o["demand"] for o in options],
            agent="x",
            group=group,
        )
        assert [g / 2**24 for g in given_] == list(python.given)


@pytest.mark.parametrize("divisible", [False, True])
def test_a_run_keeps_caps_and_reserves_and_agents_agree(divisible):
    rng, n = np.random.default_rng(4), 3000
    market = Market(
        supply=[1000.0, 2000.0], max_demand=[1.0, 2.0], max_value=1.0, agents=n,
        names=["doses", "beds"], divisible=divisible,
        groups=[Group("north", cap={"doses": 150}), Group("south", reserve={"beds": 1200})],
    )  # fmt: skip
    demands, values = rng.uniform(0.5, 1, (n, 2)) * [1, 2], rng.random(n)
    groups = rng.choice(["north", "south", "east"], n)
    result = solve(
        market, values=values, demands=demands, groups_of=groups, epsilon=8.0, delta=1e-6
    )
    given_ = np.asarray(result.allocation, float)
    assert (given_ @ demands <= [1000, 2000]).all()
    assert given_ * (groups == "north") @ demands[:, 0] <= 150
    assert given_ * (groups != "south") @ demands[:, 1] <= 800
    # Both rules bind, and whoever is outside them gets what is left.
    assert given_ * (groups == "north") @ demands[:, 0] > 90
    assert given_ * (groups != "south") @ demands[:, 1] > 500
    for i in range(100):
        own = allocate(
            result.billboard, value=values[i], demand=demands[i], agent=i, group=str(groups[i])
        )
        assert own.share == given_[i]


def test_negative_control_without_groups_the_same_records_break_the_rules():
    rng, n = np.random.default_rng(4), 3000
    market = Market(supply=[1000.0, 2000.0], max_demand=[1.0, 2.0], max_value=1.0, agents=n)
    demands, values = rng.uniform(0.5, 1, (n, 2)) * [1, 2], rng.random(n)
    groups = rng.choice(["north", "south", "east"], n)
    result = solve(market, values=values, demands=demands, epsilon=8.0, delta=1e-6)
    given_ = np.asarray(result.allocation, float)
    assert given_ * (groups == "north") @ demands[:, 0] > 150
    assert given_ * (groups != "south") @ demands[:, 1] > 800


def test_the_truth_has_a_column_for_each_rule():
    rng = np.random.default_rng(2)
    for sparse in (False, True):
        market = a_market(rng, sparse=sparse).changed(max_total=None)
        records, groups = grouped(rng, market)
        arrays, own = records.arrays(), rows_of(records, groups)
        for kind in (np.asarray, scipy.sparse.csr_matrix):
            pieces = tables.array_pieces(
                market, arrays["values"], kind(arrays["demands"]), arrays["ids"], groups_of=own
            )
            truth = Truth(market, pieces, clamp=False).demands
            truth = truth if isinstance(truth, np.ndarray) else truth.toarray()
            assert truth.shape == (len(own), len(market.resources))
            codes = [list(c) for agent in expected_codes(records, groups) for _, c in agent]
            assert ((truth > 0) == (np.array(codes) > 0)).all()
            for j, rule in market.derived:
                assert np.isin(
                    truth[:, j] - truth[:, rule.base], [0.0, *(-truth[:, rule.base])]
                ).all()


# --- what is refused ----------------------------------------------------------------------


def small(**more) -> Market:
    return Market(
        supply=[100.0] * 2, max_demand=1.0, max_value=1.0, agents=2, options=2,
        groups=[Group("north", cap={"resource 1": 50})], **more,
    )  # fmt: skip


WIDE = {
    "id": ["a", "a", "b"], "value": [1.0, 0.5, 1.0], "resource 1": [1.0, 0.0, 1.0],
    "resource 2": [0.0, 1.0, 0.0], "group": ["north", "north", "south"],
}  # fmt: skip


@pytest.mark.parametrize(
    ("groups", "says"),
    [
        (["north", "south", "south"], "agent 'a' is in two groups"),
        (["north", None, "south"], "agent 'a' is in two groups"),
        ([1.5, 1.5, 2.0], "column 'group' is of type double, not the name of a group"),
        ([True, True, False], "column 'group' is of type bool, not the name of a group"),
        (["x" * 5000] * 3, "column 'group' has 5000 bytes"),
    ],
)
def test_a_table_with_bad_groups_is_refused(groups, says):
    with pytest.raises(AgentsError, match=says):
        solve(small(), pa.table(WIDE | {"group": groups}), epsilon=1.0, delta=1e-6)


def test_an_agent_with_two_groups_is_refused_wherever_rows_are_cut(monkeypatch):
    long = small().changed(columns=replace(small().columns, layout="long"))
    rows = {
        "id": ["a", "a", "b"], "value": [1.0] * 3, "resource": ["resource 1"] * 3,
        "amount": [1.0, 0.5, 1.0], "option": ["x", "y", "x"], "group": ["north", "", ""],
    }  # fmt: skip
    for same in (True, False):
        changed = rows | {"option": ["x", "x" if same else "y", "x"]}
        changed |= {"resource": ["resource 1", "resource 2", "resource 1"]}
        with pytest.raises(AgentsError, match="agent 'a' is in two groups"):
            solve(long, pa.table(changed), epsilon=1.0, delta=1e-6)
    halves = pa.concat_tables(
        [pa.table(WIDE).slice(0, 1), pa.table(WIDE | {"group": [""] * 3}).slice(1)]
    )
    with pytest.raises(AgentsError, match="agent 'a' is in two groups"):
        solve(small(), halves, epsilon=1.0, delta=1e-6)


def test_a_group_column_that_is_missing_or_not_asked_for_is_refused():
    table = pa.table(WIDE)
    with pytest.raises(AgentsError, match="lacks the column 'group'"):
        solve(small(), table.drop(["group"]), epsilon=1.0, delta=1e-6)
    with pytest.raises(AgentsError, match="column 'group' that the market does not name"):
        solve(small().changed(groups=()), table, epsilon=1.0, delta=1e-6)


@pytest.mark.parametrize(
    ("market", "arguments", "says"),
    [
        (small(), {}, "groups_of is needed"),
        (small().changed(groups=()), {"groups_of": ["x"] * 3}, "goes with values and demands"),
        (small(), {"groups_of": ["north"]}, "there are 1 groups for 3 values"),
        (small(), {"groups_of": [1.5] * 3}, "groups_of is of type double"),
        (small(), {"groups_of": object()}, "groups_of cannot be read"),
    ],
)
def test_arrays_with_bad_groups_are_refused(market, arguments, says):
    arrays = {"values": [1.0] * 3, "demands": [[1.0, 0.0]] * 3, "ids": ["a", "a", "b"]}
    with pytest.raises(AgentsError, match=says):
        solve(market, **arrays, **arguments, epsilon=1.0, delta=1e-6)


def test_a_group_of_a_table_is_in_the_table():
    with pytest.raises(AgentsError, match="goes with values and demands"):
        solve(small(), pa.table(WIDE), groups_of=["north"] * 3, epsilon=1.0, delta=1e-6)


def test_the_agents_function_refuses_what_is_no_group():
    board = finished_board(small(), [((1, 1, 1), 1)], 2**24)
    free = finished_board(small().changed(groups=()), [((1, 1), 1)], 2**24)
    record = {"value": 1.0, "demand": [1.0, 0.0], "agent": "a"}
    assert allocate(board, **record, group="elsewhere") == allocate(board, **record)
    for group in (1.5, True, ["north"]):
        with pytest.raises(AgentsError, match="is not the name of a group"):
            allocate(board, **record, group=group)
    with pytest.raises(AgentsError, match="this market has no groups"):
        allocate(free, **record, group="north")


@settings(max_examples=60, deadline=None)
@given(seeds, st.booleans(), st.sampled_from(["replace-one", "add-remove"]))
def test_no_two_records_move_demand_further_than_claimed(seed, sparse, neighbours):
    """Two agents at their caps, in any two groups, against the claim."""
    rng = np.random.default_rng(seed)
    market = a_market(rng, sparse=sparse, neighbours=neighbours).changed(max_total=None)
    claimed = change(market, "demand").worst((1.0,))
    m, k = len(market.declared), market.bundle_size
    found = []
    for group in ["north", "south", "7", None]:
        for _ in range(20):
            wanted = rng.permutation(m)[:k]
            demand = [r.max_demand * (j in wanted) for j, r in enumerate(market.declared)]
            ((_, codes),) = encoded(market, 1.0, demand, group)
            found.append(np.array(codes, float))
    others = found if neighbours == "replace-one" else [np.zeros(len(market.resources))]
    furthest = max(float(((x - y) ** 2).sum()) for x in found for y in others)
    assert furthest <= claimed


@settings(max_examples=20, deadline=None)
@given(seeds, st.booleans())
def test_the_audit_reads_groups_as_resources_of_their_own(seed, sparse):
    rng = np.random.default_rng(seed)
    market = a_market(rng, sparse=sparse, options=2)
    records, groups = grouped(rng, market)
    arrays = records.arrays()
    source = Source(market, None, **arrays, groups_of=rows_of(records, groups), clamp=True)
    people = People.read(source)
    assert people.market.unit_sizes == market.unit_sizes
    assert people.market.supply_codes == market.supply_codes
    plain = encode(people.market, tables.array_pieces(people.market, **people.arrays))
    assert decode(plain) == expected_codes(records, groups)
