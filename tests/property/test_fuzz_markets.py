"""Any tree or text instead of a market file: refused in one sentence, or a market."""

import tomllib

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from helpers import check_error
from jdpack import JdpackError, Market
from jdpack.policies.newton import Newton
from jdpack.privacy.accounting import Budget

BUDGET = Budget.split(1.0, 1e-6, truncated=False)
TREE = {
    "name": "clinic",
    "divisible": False,
    "privacy": {"epsilon": 1.0, "delta": 1e-6, "neighbours": "replace-one"},
    "value": {"column": "value", "max": 10.0},
    "agents": {"count": 3, "options": 1, "bundle_size": 1, "layout": "wide", "ignore": ["note"]},
    "resource": [{"name": "beds", "unit": "nights", "supply": 500.0, "max_demand": 2.0}],
}

odd = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([2**31, 2**31 - 1, 65536, 10**5000, -(10**5000)]),
    st.floats(),
    st.sampled_from([1e-100, 1e-99, 1e99, 1e100, 5e-324, -0.0]),
    st.text(st.characters(exclude_categories=()), max_size=10),
    st.just("x" * 2000),
    st.dates(),
    st.times(),
    st.lists(st.integers(), max_size=3),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=3),
)


def checked(make):
    """The market, if it is valid; then it can be written to a file, and a run can begin."""
    try:
        market = make()
        assert Market.from_dict(market.to_dict()) == market
        Newton().step(Newton().start(market, BUDGET))
    except JdpackError as error:
        check_error(error, [], longest=1300)  # it may quote 10**400


@settings(max_examples=300)
@given(st.data())
def test_any_value_at_any_place(data):
    def changed(tree):
        if isinstance(tree, dict) and data.draw(st.integers(0, 9)):
            key = data.draw(st.sampled_from([*tree, "x"]))
            return {**tree, key: changed(tree[key]) if key in tree else data.draw(odd)}
        if isinstance(tree, list) and tree and data.draw(st.booleans()):
            return [changed(tree[0]), *tree[: data.draw(st.integers(0, 2))]]
        return data.draw(odd)

    tree = changed(TREE)
    checked(lambda: Market.from_dict(tree))


@settings(max_examples=200)
@given(text=st.text(st.sampled_from("ab.=[]{}\"'#\\\n \t01-_"), max_size=60))
@example(text='a = """\\')
@example(text="'''")
@example(text="a = 0x" + "f" * 5000)
def test_any_text_is_toml_or_is_not(text, tmp_path_factory):
    """It is accepted exactly if `tomllib` accepts it and its keys have few parts."""
    path = tmp_path_factory.getbasetemp() / "market.toml"
    path.write_text(text, newline="")
    with pytest.raises(JdpackError) as caught:
        Market.from_toml(path)
    try:
        tree = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, ValueError):
        assert "is not a TOML file" in caught.value.message
        return
    if "more parts" in caught.value.message:
        assert text.count(".") >= 8
    else:
        with pytest.raises(JdpackError) as other:
            Market.from_dict(tree)
        assert str(caught.value) == str(other.value)
