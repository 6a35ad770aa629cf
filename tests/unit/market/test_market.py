"""The market: to and from files, its grid as exact rationals, its bounds."""

import json
import math
import pickle
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jdpack import Columns, Group, Market, MarketError, MaxTotal, Neighbours
from jdpack.market.grid import (
    DEMAND_CODE_MAX,
    PRICE_CODE_MAX,
    PRICE_UNITS_PER_VALUE_CODE,
    VALUE_CODE_MAX,
    round_up,
)

SPECTRUM = """
name = "beds and nurses"
divisible = true
excess_probability = 0.001

[privacy]
epsilon = 1
delta = 1e-8
neighbours = "add-remove"

[value]
column = "need"
max = 100

[agents]
count = 5000
bundle_size = 2
options = 3
id = "patient"
layout = "long"
option = "plan"
resource = "what"
amount = "how much"
ignore = ["ward", "note"]

[[resource]]
name = "bed"
supply = 300
max_demand = 1
unit = "beds"

[[resource]]
name = "nurse"
supply = 812.5
max_demand = 7.75
column = "nurse hours"

[[max_total]]
amount = 6
resources = ["nurse"]

[[group]]
name = "children"
cap = { bed = 100 }
reserve = { bed = 40.5, nurse = 80 }
"""


def a_market(**changes) -> Market:
    return Market(
        **{"supply": [10.0, 30.0], "max_demand": 1.0, "max_value": 5.0, "agents": 100} | changes
    )


def a_group(name="x", **rules) -> Group:
    return Group(name, **{rule: {"resource 1": amount} for rule, amount in rules.items()})


def significant_bits(x: float) -> int:
    odd = Fraction(x).numerator
    while odd % 2 == 0:
        odd //= 2
    return odd.bit_length()


def as_toml(data: dict) -> str:
    """A writer for the shape of a market file: scalars, lists, tables, lists of tables."""

    def scalar(value: object) -> str:
        if isinstance(value, dict):
            inner = (f"{scalar(key)} = {scalar(item)}" for key, item in value.items())
            return f"{{{', '.join(inner)}}}"
        return json.dumps(value, ensure_ascii=False)

    def table(items: dict) -> list[str]:
        return [f"{key} = {scalar(value)}" for key, value in items.items()]

    lists = ("resource", "max_total", "group")
    plain = {k: v for k, v in data.items() if not isinstance(v, dict) and k not in lists}
    lines = table(plain)
    for key in ("privacy", "value", "agents"):
        lines += [f"[{key}]", *table(data[key])]
    for key in lists:
        for entry in data.get(key, []):
            lines += [f"[[{key}]]", *table(entry)]
    return "\n".join(lines) + "\n"


texts = st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=6)
sizes = st.floats(1e-6, 1e9, allow_subnormal=False)


@st.composite
def markets(draw) -> Market:
    m = draw(st.integers(1, 5))
    supply = draw(st.lists(sizes, min_size=m, max_size=m))
    shares = draw(st.lists(st.floats(0.1, 1.0), min_size=m, max_size=m))
    layout = draw(st.sampled_from(["wide", "long"]))
    scarce = draw(st.sampled_from([1.0, 1e-4, 1e-8]))  # fine grids reveal how units are rounded
    names = draw(st.lists(texts, min_size=m, max_size=m, unique=True))
    first = draw(st.integers(0, m - 1))
    totals = draw(
        st.sampled_from([None, 3.5, [MaxTotal(2.0, (names[first],))]])
        if max(supply) / min(supply) < 1e3
        else st.none()
    )
    groups = draw(st.lists(texts.filter(bool), max_size=2, unique=True))
    return Market(
        supply=supply,
        max_demand=[b * share * scarce for b, share in zip(supply, shares, strict=True)],
        max_value=draw(sizes),
        agents=draw(st.integers(1, 2**31 - 1)),
        bundle_size=draw(st.none() | st.integers(1, m)),
        options=draw(st.integers(1, 9)),
        neighbours=draw(st.sampled_from(Neighbours)),
        divisible=draw(st.booleans()),
        max_total=totals,
        groups=[Group(g, cap={names[first]: 2 * supply[first]}) for g in groups],
        names=names,
        units=[draw(texts)] * m if totals == 3.5 else draw(st.lists(texts, min_size=m, max_size=m)),
        resource_columns=[f"column {j}" for j in range(m)],
        name=draw(texts),
        epsilon=draw(st.none() | st.floats(0.01, 10) | st.integers(1, 10)),
        delta=draw(st.none() | st.floats(1e-12, 0.1)),
        excess_probability=draw(st.sampled_from([0.0, 1e-3, 0.1])),
        columns=Columns(
            layout=layout,
            ignore=tuple(draw(st.lists(texts, max_size=2))),
            group="which group" if groups else "group",
        ),
    )


# --- in and out -------------------------------------------------------------------------------


def test_a_market_file_says_what_the_code_says(tmp_path):
    path = tmp_path / "market.toml"
    path.write_text(SPECTRUM)
    assert Market.from_toml(path) == Market(
        name="beds and nurses",
        divisible=True,
        epsilon=1.0,
        delta=1e-8,
        neighbours=Neighbours.ADD_REMOVE,
        max_value=100.0,
        agents=5000,
        bundle_size=2,
        options=3,
        max_total=[MaxTotal(6.0, ("nurse",))],
        groups=[Group("children", cap={"bed": 100}, reserve={"bed": 40.5, "nurse": 80})],
        excess_probability=0.001,
        supply=[300.0, 812.5],
        max_demand=[1.0, 7.75],
        names=["bed", "nurse"],
        units=["beds", ""],
        resource_columns=["bed", "nurse hours"],
        columns=Columns(
            id="patient",
            value="need",
            layout="long",
            option="plan",
            resource="what",
            amount="how much",
            ignore=("ward", "note"),
        ),
    )


def test_defaults_are_replace_one_indivisible_one_option_and_whole_bundles():
    market = a_market()
    assert market.neighbours is Neighbours.REPLACE_ONE
    assert not market.divisible
    assert market.options == 1
    assert market.bundle_size == 2
    assert (market.epsilon, market.delta) == (None, None)
    assert (market.max_total, market.groups, market.excess_probability) == ((), (), 0.0)
    assert not {"max_total", "group", "excess_probability"} & set(market.to_dict())
    assert "group" not in market.to_dict()["agents"]
    assert market.declared == market.resources and market.bundle_width == market.bundle_size


@given(markets())
def test_a_market_survives_its_dict_json_and_toml(tmp_path_factory, market):
    data = market.to_dict()
    assert Market.from_dict(data) == market
    written = json.dumps(data)
    again = Market.from_dict(json.loads(written))
    assert again == market
    assert json.dumps(again.to_dict()) == written  # to the byte: the billboard hashes it
    path = tmp_path_factory.mktemp("market") / "market.toml"
    path.write_text(as_toml(data), encoding="utf-8")
    assert Market.from_toml(path) == market


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"supply": []}, "1 to 65536 resources"),
        ({"supply": [0.0, 1.0]}, "supply must be positive"),
        ({"supply": [-1.0, 1.0]}, "supply must be positive"),
        ({"supply": [math.nan, 1.0]}, "finite"),
        ({"supply": [math.inf, 1.0]}, "finite"),
        ({"supply": 3.0}, "must be a list"),
        ({"supply": ["much", 1.0]}, "must be a number"),
        ({"max_demand": 11.0}, "above its supply"),
        ({"max_demand": 0.0}, "max_demand must be positive"),
        ({"max_demand": [1.0, 1.0, 1.0]}, "3 entries for 2"),
        ({"max_demand": 1e-14}, "is too small for the supply"),
        ({"max_value": 0.0}, "max_value must be positive"),
        ({"max_value": None}, "must be a number"),
        ({"max_value": True}, "must be a number"),
        ({"agents": 0}, "from 1 to"),
        ({"agents": 2**31}, "from 1 to"),
        ({"agents": 10.0}, "whole number"),
        ({"agents": True}, "whole number"),
        ({"bundle_size": 0}, "from 1 to"),
        ({"options": 0}, "from 1 to"),
        ({"neighbours": "friends"}, "not a neighbour relation"),
        ({"divisible": 1}, "true or false"),
        ({"names": ["one"]}, "1 entries for 2"),
        ({"names": ["one", "one"]}, "two resources have the name"),
        ({"names": ["a", "b"], "resource_columns": ["c", "c"]}, "two resources have the column"),
        ({"names": ["id", "b"]}, "used for a resource and for id or value"),
        ({"columns": Columns(layout="tall")}, "layout 'tall'"),
        ({"epsilon": "one"}, "epsilon must be a number"),
        ({"epsilon": True}, "epsilon must be a number"),
        ({"delta": math.nan}, "delta must be a finite number"),
        ({"excess_probability": -0.1}, "excess_probability -0.1 is not from 0 to 0.1"),
        ({"excess_probability": 0.2}, "excess_probability 0.2 is not from 0 to 0.1"),
        ({"excess_probability": "rarely"}, "excess_probability must be a number"),
        ({"groups": 3}, "groups must be a list"),
        ({"groups": ["north"]}, "group 1 must be a table"),
        ({"groups": [{}]}, "group 1 lacks 'name'"),
        ({"groups": [Group("")]}, "group 1 has an empty name"),
        ({"groups": [Group("x")]}, "group 'x' has neither a cap nor a reserve"),
        ({"groups": [{"name": "x", "caps": {}}]}, "unknown key 'caps'"),
        ({"groups": [{"name": "x", "cap": 3}]}, "group 1: cap must be a table, not 3"),
        ({"groups": [a_group(cap=0)]}, "group 'x': cap of 'resource 1' must be positive"),
        ({"groups": [a_group(cap="all")]}, "group 'x': cap of 'resource 1' must be a number"),
        ({"groups": [a_group(cap=0.5)]}, "cap of 0.5 of 'resource 1' is below its max_demand 1"),
        ({"groups": [a_group(reserve=9.5)]}, "reserve of 9.5 .* leaves 0.5 for the others"),
        ({"groups": [a_group(cap=2), a_group(cap=3)]}, "two groups have the name 'x'"),
        ({"groups": [a_group("y", reserve=6), a_group(reserve=6)]}, "add up to 12, but its supply"),
        ({"groups": [Group("x", cap={"resource 3": 5})]}, "did you mean 'resource 2'"),
        ({"columns": Columns(group="district")}, "column 'district' is for groups, but the market"),
        (
            {"groups": [a_group(cap=2)], "columns": Columns(group="resource 2")},
            "column 'resource 2' is used for the group and for something else",
        ),
        (
            {"groups": [a_group(cap=2)], "names": ["resource 1", "resource 1, for x"]},
            "two resources have the name 'resource 1, for x'",
        ),
        ({"max_total": 0.0}, "max_total must be positive"),
        ({"max_total": True}, "max_total must be a number"),
        ({"max_total": "much"}, "max_total must be a number"),
        ({"max_total": [3.0]}, "max_total 1 must be a table"),
        ({"max_total": {"amount": -1.0}}, "max_total 1: amount must be positive"),
        ({"max_total": [{"resources": ["resource 1"]}]}, "lacks 'amount'"),
        ({"max_total": [{"amount": 1.0, "resource": []}]}, "unknown key 'resource'"),
        ({"max_total": [{"amount": 1.0, "resources": []}]}, "resources is empty"),
        ({"max_total": [{"amount": 1.0, "resources": [0]}]}, "must list names of resources"),
        ({"max_total": MaxTotal(1.0, "resource 1")}, "must list names of resources"),
        ({"max_total": MaxTotal(1.0, ("resource 3",))}, "did you mean 'resource 2'"),
        ({"max_total": [MaxTotal(1.0), MaxTotal(2.0, ("resource 2",))]}, "is in two max_total"),
        ({"max_total": MaxTotal(1.0, ("resource 1", "resource 1"))}, "is in two max_total"),
        ({"max_total": 2.0, "units": ["h", "kg"]}, r"'resource 1' \(unit 'h'\) to 'resource 2'"),
        (
            {"supply": [1e-9, 1e9], "max_demand": [1e-9, 1e9], "max_total": 2.0},
            "too far apart to be counted together",
        ),
    ],
)
def test_a_market_that_makes_no_sense_is_refused(change, says):
    with pytest.raises(MarketError, match=says):
        a_market(**change)


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("divisible = true", "divisible = 1", "not a bool"),
        ("count = 5000", "count = 5000.0", "not a int"),
        ("count = 5000", "count = true", "not a int"),
        ("count = 5000", "", "lacks 'count'"),
        ("supply = 300", "", "lacks 'supply'"),
        ("supply = 300", "supply = true", "not a float"),
        ("supply = 300", "supply = inf", "finite"),
        ("epsilon = 1", "epsilom = 1", "unknown key 'epsilom'"),
        ("options = 3", "optons = 3", "unknown key 'optons'"),
        ('unit = "beds"', "price = 3", "unknown key 'price'"),
        ("[value]", "[[value]]", "not a dict"),
        ("max = 100", "max = 100 100", "not a TOML file"),
        ("amount = 6", "amount = -6", r"\[\[max_total\]\] 1: amount must be positive"),
        ("amount = 6", "amount = true", "not a float"),
        ('resources = ["nurse"]', 'resources = "nurse"', "not a list"),
        ('resources = ["nurse"]', 'resources = ["nurses"]', "did you mean 'nurse'"),
        ("[[max_total]]", "[max_total]", "not a list"),
        ("0.001", "1", "is not from 0 to 0.1"),
        ("cap = { bed = 100 }", "cap = 100", r"\[\[group\]\] 1: cap must be a table"),
        ("cap = { bed = 100 }", "cap = { beds = 100 }", "did you mean 'bed'"),
        ("cap = { bed = 100 }", "cap = { bed = true }", "cap of 'bed' must be a number"),
        ('name = "children"', "", r"\[\[group\]\] 1 lacks 'name'"),
    ],
)
def test_a_market_file_with_a_mistake_is_refused(tmp_path, old, new, says):
    assert old in SPECTRUM
    path = tmp_path / "market.toml"
    path.write_text(SPECTRUM.replace(old, new, 1))
    with pytest.raises(MarketError, match=says):
        Market.from_toml(path)


def test_a_market_file_that_is_none_is_refused(tmp_path):
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    for path in [tmp_path, tmp_path / "nowhere.toml", tmp_path / "bytes"]:
        with pytest.raises(MarketError, match="cannot read market file"):
            Market.from_toml(path)


def test_the_largest_market_is_made_in_seconds():
    market = Market(supply=[9.0] * 2**16, max_demand=1.0, max_value=1.0, agents=10, bundle_size=3)
    assert len(market.resources) == 2**16
    with pytest.raises(MarketError, match="1 to 65536"):
        Market(supply=[9.0] * (2**16 + 1), max_demand=1.0, max_value=1.0, agents=10)


def test_caps_and_reserves_are_resources_of_their_own():
    market = a_market(
        names=["doses", "beds"], units=["", "nights"], max_demand=[1.0, 3.0], bundle_size=1,
        groups=[
            Group("north", cap={"doses": 4}, reserve={"beds": 5}),
            Group("south", cap={"doses": 20}, reserve={"beds": 6.5}),
        ],
    )  # fmt: skip
    assert [r.name for r in market.declared] == ["doses", "beds"]
    rules = [(r.name, r.supply, r.max_demand, r.unit) for r in market.resources[2:]]
    assert rules == [
        ("doses, for north", 4.0, 1.0, ""),
        ("beds, except north", 25.0, 3.0, "nights"),
        ("doses, for south", 20.0, 1.0, ""),
        ("beds, except south", 23.5, 3.0, "nights"),
    ]
    assert market.unit_sizes[2:] == tuple(market.unit_sizes[j] for j in (0, 1, 0, 1))
    assert market.with_derived([7, 9], market.group_number("north")) == [7, 9, 7, 0, 0, 9]
    assert market.with_derived([7, 9], market.group_number("south")) == [7, 9, 0, 9, 7, 0]
    for other in (None, "", "North", 3):
        assert market.with_derived([7, 9], market.group_number(other)) == [7, 9, 0, 9, 0, 9]
    assert market.bundle_width == 3, "beds, for somebody in neither group"
    assert {market: 1}[Market.from_dict(market.to_dict())] == 1, "markets can be hashed"


def test_a_changed_market_keeps_the_rest():
    market = a_market(
        groups=[a_group(cap=4, reserve=2)], max_total=3.0, excess_probability=0.01, name="x",
        epsilon=1.0, delta=1e-6, options=2, divisible=True, columns=Columns(id="who"),
    )  # fmt: skip
    assert market.changed() == market
    assert market.changed(agents=7).to_dict()["agents"]["count"] == 7
    double = market.scaled(2.0)
    assert [r.supply for r in double.resources] == [2 * r.supply for r in market.resources]
    assert double.scaled(0.5) == market


# --- the grid ---------------------------------------------------------------------------------


@given(markets())
def test_units_are_short_and_a_part_of_each_cap(market):
    for r, size in zip(market.resources, market.unit_sizes, strict=True):
        assert significant_bits(size) <= 37
        exact = Fraction(r.max_demand) / DEMAND_CODE_MAX
        assert exact <= Fraction(size) <= exact * (1 + Fraction(1, 2**36))


@given(markets())
def test_what_fits_in_codes_fits_in_truth(market):
    for r, w, codes in zip(market.resources, market.unit_sizes, market.supply_codes, strict=True):
        assert codes * Fraction(w) <= Fraction(r.supply) < (codes + 1) * Fraction(w)


@given(markets())
def test_caps_fill_the_grid_and_stay_inside(market):
    for j, r in enumerate(market.declared):  # all of the 16 bits are used
        assert market.demand_code(j, r.max_demand) == DEMAND_CODE_MAX
    assert 2**32 - 2**13 < market.value_cap_code <= VALUE_CODE_MAX
    assert market.value_cap_code * PRICE_UNITS_PER_VALUE_CODE < PRICE_CODE_MAX
    assert significant_bits(market.value_step) <= 21


@given(st.data(), markets())
def test_a_demand_code_is_the_least_that_covers_the_amount(data, market):
    j = data.draw(st.integers(0, len(market.resources) - 1))
    cap, size = market.resources[j].max_demand, market.unit_sizes[j]
    on_grid = st.integers(0, DEMAND_CODE_MAX).map(lambda k: k * size)
    near = st.tuples(on_grid, st.sampled_from([-math.inf, math.inf])).map(
        lambda pair: math.nextafter(*pair)
    )
    amount = data.draw(
        (st.floats(0.0, cap) | on_grid | near).filter(lambda a: 0.0 <= a <= cap), label="amount"
    )
    code = market.demand_code(j, amount)
    assert code * Fraction(size) >= Fraction(amount)
    assert code == 0 or (code - 1) * Fraction(size) < Fraction(amount)
    assert Fraction(code * size) == code * Fraction(size)  # the product of doubles is exact
    assert 0 <= code <= DEMAND_CODE_MAX


@given(st.data(), markets())
def test_a_value_code_is_the_largest_that_the_value_covers(data, market):
    step = market.value_step
    on_grid = st.integers(0, market.value_cap_code).map(lambda k: k * step)
    near = st.tuples(on_grid, st.sampled_from([-math.inf, math.inf])).map(
        lambda pair: math.nextafter(*pair)
    )
    value = data.draw(
        (st.floats(0.0, market.max_value) | on_grid | near).filter(
            lambda v: 0.0 <= v <= market.max_value
        ),
        label="value",
    )
    code = market.value_code(value)
    assert code * Fraction(step) <= Fraction(value) < (code + 1) * Fraction(step)
    assert Fraction(code * step) == code * Fraction(step)
    assert 0 <= code <= market.value_cap_code


def test_equal_markets_have_equal_hashes_also_after_a_journey():
    """Another process hashes texts differently, so a hash is not pickled."""
    market = Market(supply={"North": 9.0}, max_demand=1.0, max_value=1.0, agents=9)
    numbers = {market: 1}
    assert numbers[market.changed()] == 1 and market.changed(agents=8) not in numbers
    arrived = pickle.loads(pickle.dumps(market))
    assert "_hash" in vars(market) and "_hash" not in vars(arrived)
    assert numbers[arrived] == 1


def test_a_price_is_shown_per_unit_of_the_resource():
    market = a_market(supply=[64.0, 128.0], max_demand=[2.0, 4.0])
    # One unit of resource 0 is 1/2 of its cap of 65535 codes.
    code = 10**9
    exact = Fraction(code) * Fraction(market.value_step) / 2**20 / Fraction(market.unit_sizes[0])
    assert market.unit_price(0, code) == pytest.approx(float(exact), rel=1e-15)
    assert market.unit_price(0, code) == pytest.approx(2 * market.unit_price(1, code), rel=1e-9)


@given(st.fractions(min_value=Fraction(1, 10**30), max_value=10**30), st.integers(2, 53))
def test_round_up_gives_the_least_short_double_from_above(x, bits):
    up = round_up(x, bits)
    assert Fraction(up) >= x
    assert significant_bits(up) <= bits
    # The next such double below it, one step of its last bit down, is too small.
    _, exponent = math.frexp(up)
    step = Fraction(2) ** (exponent - bits)
    if Fraction(up) == Fraction(2) ** (exponent - 1):
        step /= 2  # below a power of two the steps are half as wide
    assert Fraction(up) - step < x
