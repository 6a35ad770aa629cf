"""Any JSON anywhere in a billboard, resealed: refused in one sentence, or harmless."""

import json
from functools import cache

from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import check_error
from jdpack import Billboard, JdpackError, Market, allocate, verify
from jdpack.billboard.lines import Header, Release, Seed
from jdpack.pages.billboard_page import public_page, script
from jdpack.policies.mwu_fixed import MwuFixed
from jdpack.policies.mwu_online import MwuOnline
from jdpack.policies.newton import Newton
from jdpack.privacy import queries
from jdpack.privacy.accounting import Budget
from jdpack.protocol.certificate import certify
from jdpack.protocol.run_state import RunState
from jdpack.storage import hash_chain

POLICIES = [MwuFixed(rounds=2), MwuOnline(batch=2), Newton()]

numbers = st.one_of(
    st.integers(-(2**65), 2**65),
    st.sampled_from([10**400, 2**39, 2**24, 2**52, 2**63]),
    st.floats(allow_nan=False, allow_infinity=False),
)
texts = st.text(st.characters(exclude_categories=()), max_size=20) | st.sampled_from(
    ["<script>", "{{7*7}}", "../../x", "\x1b[2J", "newton", "demand", "gaussian"]
)
anything = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=8,
)


@cache
def lines(which: int) -> tuple[str, ...]:
    """A whole run of a policy without agents."""
    policy, seed = POLICIES[which], Seed(bytes(16))
    market = Market(
        supply=[5e5, 9e5], max_demand=[2.0, 3.0], max_value=10.0, agents=4, divisible=which == 2
    )
    budget = Budget.split(1.0, 1e-6, truncated=False)
    board = Billboard(Header(market, policy.to_dict(), budget, seed.commitment))
    state = RunState(policy, board)
    while (step := state.step()) is not None:
        release = Release(step, (1000,) * queries.width(market, step.query))
        board.post(release)
        state.observe(release)
    board.post(certify(board))
    board.post(seed)
    verify(board)
    return tuple(board.lines())


def places(tree, path=()):
    """The path to every place in some JSON."""
    yield path
    inner = enumerate(tree[:3]) if isinstance(tree, list) else []
    for key, value in tree.items() if isinstance(tree, dict) else inner:
        yield from places(value, (*path, key))


def put(tree, path, value):
    if not path:
        return value
    other = dict(tree) if isinstance(tree, dict) else list(tree)
    other[path[0]] = put(tree[path[0]], path[1:], value)
    return other


def resealed(records: list[dict]) -> str:
    """The text of a hash chain of these records."""
    text, before = "", ""
    for record in records:
        line = hash_chain.seal(record, before)
        before = hash_chain.hash_of(line)
        text += line + "\n"
    return text


def use_all(text: str) -> bool:
    """Do everything that anybody does with a billboard; returns whether it could be read."""
    try:
        board = Billboard.from_text(text)
    except JdpackError as error:
        check_error(error, [], longest=1300)  # it may quote 10**400
        return False
    uses = [
        verify,
        public_page,
        lambda board: allocate(board, value=1.0, demand=[1.0, 1.0], agent="ada"),
        lambda board: Newton.warm(board, board.header.market),
    ]
    for use in uses:
        try:
            shown = use(board)
            if isinstance(shown, str):  # only the page's own script, if it has a form
                assert shown.count("<script>") == shown.count(f"<script>{script()}") <= 1
        except JdpackError as error:
            check_error(error, [], longest=1300)  # it may quote 10**400
    return True


@st.composite
def changed(draw):
    which = draw(st.integers(0, len(POLICIES) - 1))
    records = [json.loads(line) for line in lines(which)]
    for record in records:
        del record["prev"], record["hash"]
    for _ in range(draw(st.integers(1, 2))):
        at = draw(st.sampled_from([0, 0, 1, len(records) - 2, len(records) - 1]))
        path = draw(st.sampled_from(list(places(records[at]))[1:]))
        value = draw(anything)
        if draw(st.booleans()):  # of the same type, to get further
            value = draw(numbers)
        records[at] = put(records[at], path, value)
    return resealed(records)


@settings(max_examples=250)
@given(changed())
def test_any_json_at_any_place_is_refused_or_harmless(text):
    use_all(text)


@settings(max_examples=60)
@given(st.data())
def test_changes_to_numbers_of_releases_are_found(data):
    """Even if it can be read, the policy would not have posted it."""
    which = data.draw(st.integers(0, len(POLICIES) - 1))
    records = [json.loads(line) for line in lines(which)]
    at = data.draw(st.integers(1, len(records) - 3))
    key = data.draw(st.sampled_from(["prices", "weight"]))
    old = records[at][key]
    new = [p + 1 for p in old] if key == "prices" else old + 1
    if new == old:  # a closing release has no prices
        return
    records[at][key] = new
    text = resealed([{k: v for k, v in r.items() if k not in ("prev", "hash")} for r in records])
    try:
        verify(Billboard.from_text(text))
    except JdpackError:
        return
    raise AssertionError("a changed line was taken for right")


@given(st.binary(max_size=200) | st.text().map(lambda text: text.encode(errors="replace")))
def test_any_bytes_are_refused(data):
    assert not use_all(data.decode(errors="replace"))
