"""The page as a text: what it says in each state of a run, its charts and its numbers."""

import math
import re
from dataclasses import replace
from fractions import Fraction
from importlib import resources

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from browser import boards
from helpers import SHARE, finished_board, open_board
from jdpack import Billboard, Budget, Market, MwuOnline, Provenance, solve
from jdpack.billboard.lines import Release, Step
from jdpack.pages import billboard_page, chart, number_text, public_report
from jdpack.privacy.noise import Gaussian, NoNoise, TruncatedLaplace, deviation


def text_of(html):
    """The words of a page, without its style and script."""
    html = re.sub(r"<(style|script)[^>]*>.*?</\1>", " ", html, flags=re.DOTALL)
    return " ".join(re.sub(r"<[^>]+>", " ", html).split())


def a_market(m=2, **more):
    whole = {"supply": [500.0] * m, "max_demand": 2.0, "max_value": 10.0, "agents": 1000}
    return Market(**whole | more)


# --- what it says -------------------------------------------------------------------------


def test_the_page_is_a_function_of_the_billboard():
    board = boards.charging()
    again = Billboard.from_text("".join(f"{line}\n" for line in board.lines()))
    assert (
        billboard_page.public_page(again)
        == billboard_page.public_page(board)
        == billboard_page.public_page(board)
    )


def test_bounds_from_the_records_count_in_the_promise():
    """They are on the page, so the promise about the page includes what they cost."""
    market = a_market(provenance=[Provenance(0.5, 1e-7, "x"), Provenance(0.25, 2e-7, "y")])
    budget = Budget.split(1.0, 1e-6, truncated=False)
    board = Billboard(replace(open_board(market, []).header, budget=budget, private=True))
    epsilon, delta = board.header.in_all
    assert (epsilon, delta) == (budget.epsilon + 0.75, budget.delta + 3e-7)
    for page in (billboard_page.public_page(board), public_report.public_report(board)):
        words = text_of(page)
        times = float(re.search(r"at most ([\d.,]+) times as likely", words)[1].replace(",", ""))
        assert math.exp(epsilon) <= times < 1.01 * math.exp(epsilon)
        assert "chosen from people’s records, with noise. That cost (0.75, 3e-07) more" in words
    for language in ("de", "es", "fr"):
        other = Billboard(replace(board.header, market=market.changed(languages=[language])))
        assert re.search(r"\(0,75 ?; 3e-07\)", text_of(billboard_page.public_page(other)))
    weak = replace(board.header, market=a_market(provenance=[Provenance(9.0, 1e-7, "x")]))
    assert "is above 4" in weak.weakness


def test_the_certificate_in_words():
    board = boards.charging()
    words = text_of(billboard_page.public_page(board))
    ratio = board.certificate.ratio_at_least
    assert "What you asked for barely changes this page." in words
    assert "Supply is not exceeded." in words
    shown = float(re.search(r"At least ([\d.]+)% of the best possible total value", words)[1])
    assert ratio - 0.001 < shown / 100 <= ratio, "rounded down"
    for load in re.findall(r"([\d.]+)%</span>", billboard_page.public_page(board)):
        assert float(load) <= 100.0
    assert "(4, 1e-06)-joint differential privacy" in words
    assert board.head in words and "Not private" not in words
    assert "at most 54.6 times as likely with your record as with any other in its place" in words
    assert "or the other way round, plus a chance of 1 in 1 million." in words
    assert "everybody asked for what was worth its price" in words


@pytest.mark.parametrize("epsilon", [1e-6, 0.001, 0.7, 1.0, 2.3, 4.0, 4.1, 50.0])
def test_the_factor_is_rounded_up(epsilon):
    header = finished_board(a_market(), [], SHARE).header
    budget = Budget.split(epsilon, 1.04e-9, truncated=False)
    html = billboard_page.public_page(Billboard(replace(header, budget=budget, private=True)))
    shown = float(re.search(r"at most ([\d.,e+]+) times as likely", html)[1].replace(",", ""))
    assert math.exp(epsilon) <= shown < 1.01 * math.exp(epsilon)
    assert ", 1.04e-09)-joint" in html, "and delta is not"
    assert ("barely changes this page" in html) == (epsilon <= 4.0)
    assert ("Little: this page may reveal a lot" in html) == (epsilon > 4.0)


@pytest.mark.parametrize("epsilon", [0.1, 20.0])
@pytest.mark.parametrize("delta", [1e-9, 0.0999, 0.1001, 0.5, 3.0])
def test_a_large_delta_is_no_promise_either(delta, epsilon):
    """In multiples of 1 / agents: from a tenth on, the promise need not hold for everybody."""
    header = finished_board(a_market(), [], SHARE).header
    budget = Budget.split(epsilon, delta / header.market.agents, truncated=False)
    html = billboard_page.public_page(Billboard(replace(header, budget=budget, private=True)))
    fine = delta < 0.1 and epsilon < 4.0
    assert ("barely changes this page" in html) == fine
    assert ("Little: this page may reveal a lot" in html) == (not fine)
    assert ("records on average would keep this promise" in html) == (delta > 0.1)
    told = public_report.public_report(Billboard(replace(header, budget=budget, private=True)))
    assert ("barely changes this page" in told) == fine


def test_neighbours_who_take_part_or_not():
    """Replacing a record is then two steps, and the page does not promise it for one."""
    n = 300
    board = solve(
        a_market(agents=n, neighbours="add-remove"), values=np.ones(n), demands=np.ones((n, 2)),
        ids=np.arange(n),
        epsilon=1.0, delta=1e-6,
    ).billboard  # fmt: skip
    words = text_of(billboard_page.public_page(board))
    assert "at most 2.719 times as likely with you as without you" in words
    assert (
        "with your record as" not in words
        and "so replacing your record takes two such steps" in words
    )
    assert "among at most 300 people" in words


@pytest.mark.parametrize(
    ("running", "pill", "sentence"),
    [
        (True, "Running", "Reload this page"),
        (False, "Interrupted", "it can be resumed"),
        (None, "Not finished", "still working, or it was interrupted"),
    ],
)
@pytest.mark.parametrize("lines", [1, 2, 50])
def test_a_run_that_is_not_finished(running, pill, sentence, lines):
    html = billboard_page.public_page(boards.unfinished(boards.charging(), lines), running=running)
    words = text_of(html)
    assert pill in words and sentence in words and "Not certified yet." in words
    assert "<form" not in html and "<script" not in html and "Finished" not in words


def test_a_run_with_a_certificate_and_no_seed_yet_is_not_finished():
    board = boards.charging()
    html = billboard_page.public_page(boards.unfinished(board, len(list(board.lines())) - 1))
    assert "<form" not in html and "Not finished" in html and "Supply is not exceeded." in html
    assert "seed of the coins." not in text_of(html).partition("Public Everything")[2]
    assert "Each id" not in html and "Each id" in billboard_page.public_page(board)


def test_a_run_in_which_no_round_counts_gives_nothing():
    board = finished_board(a_market(), [], SHARE)
    html = billboard_page.public_page(board)
    assert "gives nothing to anybody" in html and "<form" not in html


def test_a_run_in_turns_has_no_bound_on_the_optimum():
    n = 500
    board = solve(
        a_market(agents=n), values=np.ones(n), demands=np.ones((n, 2)), policy=MwuOnline(batch=10),
        epsilon=1.0, delta=1e-6,
    ).billboard  # fmt: skip
    words = text_of(billboard_page.public_page(board))
    assert (
        "Worth at least" in words
        and "nothing is certified about the best possible total value" in words
    )
    assert "those whose turn it was asked for" in words and "verybody asked" not in words
    assert "Those whose turn it is ask for" in words and "Everybody asks" not in words
    assert billboard_page.data(board)["batches"] == 50


def test_without_noise_there_is_no_band_and_no_privacy():
    rng = np.random.default_rng(1)
    board = solve(
        a_market(), values=rng.uniform(0, 10, 1000), demands=rng.uniform(0, 2, (1000, 2)),
        epsilon=math.inf, delta=1e-6,
    ).billboard  # fmt: skip
    html = billboard_page.public_page(board)
    assert "Not private: this run was made without noise" in html
    assert "All of it: the answers are exact." in html
    assert "here without noise" in html and "noise that hides" not in html
    assert "with noise" not in public_report.public_report(board).split("<main")[0]
    assert 'class="band' not in re.sub(r'<ul class="key">.*?</ul>', "", html, flags=re.DOTALL)
    assert 'class="band' in billboard_page.public_page(boards.charging())


def test_what_was_spent():
    words = text_of(billboard_page.public_page(boards.charging()))
    board = boards.charging()
    assert re.search(r"(99\.\d|100\.0)% of what was allowed", words)
    assert f"in {len(board.releases)} answers" in words
    early = text_of(billboard_page.public_page(boards.unfinished(board, 10)))
    assert 0 < float(re.search(r"([\d.]+)% of what was allowed", early)[1]) < 20
    over = open_board(a_market(), [((1, 1), 1)] * 3)  # noise of scale 1 hides nobody
    assert "does not add up" in billboard_page.public_page(over)
    claims = Billboard(replace(over.header, private=True))
    for release in over.releases:
        claims.post(release)
    for html in (billboard_page.public_page(claims), public_report.public_report(claims)):
        assert "does not add up" in html and "None that you can rely on." in html
        assert "barely changes this page" not in html, "and then nothing is promised"


def test_a_market_of_very_many_goods_has_a_page_of_bounded_size():
    m = 3000
    board = finished_board(a_market(m, bundle_size=2), [([7] * m, 1)] * 5, SHARE)
    html = billboard_page.public_page(board)
    assert html.count("<figure>") == billboard_page.DRAWN
    assert f"Charts are shown for {billboard_page.DRAWN} of {m:,} goods" in html
    assert "The first 1,000 of 3,000" in html
    assert len(html) < 1_500_000


@pytest.mark.parametrize("noise", [NoNoise(), Gaussian((1e300,)), TruncatedLaplace(1e9, 3)])
def test_numbers_that_no_run_comes_to_are_drawn_all_the_same(noise):
    market = a_market()
    rounds = [((0, 2**52), 1), ((2**52, 0), 1), ((5, 5), 1)]
    board = open_board(market, rounds)
    answers = [(2**64, -(2**64)), (0, 0), (-1, 1)]
    board.releases[:] = [
        Release(Step("demand", prices, noise, weight), answer)
        for (prices, weight), answer in zip(rounds, answers, strict=True)
    ]
    for svg in [svg for f in billboard_page.figures(board) for svg in (f.price, f.load)]:
        for x, y in points_of(svg, "line"):
            assert 0 <= x <= 1000 and 0 <= y <= 400


# --- charts -------------------------------------------------------------------------------


def points_of(svg, kind):
    """The points of a path, followed step by step."""
    d = re.search(rf'class="{kind} ?\w*" d="([^"]*)"', svg)[1]
    start, _, steps = d.rstrip("z").partition("l")
    numbers = [int(n) for n in re.findall(r"-?\d+", steps)]
    x, y = (int(n) for n in re.findall(r"-?\d+", start))
    found = [(x, y)]
    for dx, dy in zip(numbers[::2], numbers[1::2], strict=True):
        x, y = x + dx, y + dy
        found.append((x, y))
    return found


@given(st.lists(st.floats(-3, 3), min_size=2, max_size=40))
def test_a_line_goes_through_its_points(ys):
    axis = chart.Axis(-1.0, 2.0, ((0.0, "0"),))
    xs = list(range(5, 5 + len(ys)))
    svg = chart.line_chart("words", "load", xs, ys, axis, band=chart.Band(ys, ys), mark=1.0)
    points = points_of(svg, "line")
    assert len(points) == len(ys)
    for i, ((x, y), value) in enumerate(zip(points, ys, strict=True)):
        assert abs(x - 1000 * i / (len(ys) - 1)) <= 0.5
        assert abs(y - 400 * (2.0 - min(max(value, -1.0), 2.0)) / 3.0) <= 0.5
    assert points_of(svg, "band") == points + points[::-1]


def test_a_chart_says_in_words_what_it_shows():
    axis = chart.Axis(0.0, 1.0, ((0.0, "<0>"),))
    svg = chart.line_chart('a "quote" <b>', "price", [1], [0.5], axis, since=1)
    assert 'aria-label="a &#34;quote&#34; &lt;b&gt;"' in svg and "&lt;0&gt;" in svg
    assert points_of(svg, "line") == [(0, 200), (1000, 200)]


@given(st.floats(1e-300, 1e300))
def test_ticks_are_few_and_round(high):
    ticks = chart.round_ticks(high)
    assert 2 <= len(ticks) <= 4 and ticks[0] == 0.0 and ticks[-1] <= high * (1 + 1e-6)
    assert ticks[-1] > 0.45 * high


@given(st.integers(1, 5000), st.integers(2, 200))
def test_few_points_of_many(count, most):
    picked = chart.thinned(count, most)
    assert picked[0] == 0 and picked[-1] == count - 1 and len(picked) <= most + 1
    assert picked == sorted(set(picked))
    if count <= most:
        assert picked == list(range(count))


def test_the_noise_of_a_batch_and_of_agents_who_add_it_themselves():
    market = a_market(agents=1000)
    batched = boards.random_board(5)
    (release, *_) = batched.releases
    scale = deviation(release.step.noise)[0] / batched.header.market.supply_codes[0]
    assert billboard_page._deviation(batched, release, 0) == pytest.approx(17 * scale)
    policy = MwuOnline(batch=10, local=True).to_dict()
    local = open_board(market, [((1, 1), 1)])
    object.__setattr__(local.header, "policy", policy)
    one = local.releases[0]
    expected = math.sqrt(1000) / market.supply_codes[0]  # each of 1,000 adds noise of scale 1
    assert billboard_page._deviation(local, one, 0) == pytest.approx(expected)


# --- words --------------------------------------------------------------------------------


@given(st.floats(1e-11, 0.49))
def test_a_probability_in_words_is_never_too_small(probability):
    words = number_text.one_in(probability)
    number, _, name = words.removeprefix("1 in ").partition(" ")
    size = {"": 1, "million": 10**6, "billion": 10**9, "trillion": 10**12}[name]
    shown = Fraction(1, int(number.replace(",", "")) * size)
    assert Fraction(probability) * Fraction(999_999, 1_000_000) <= shown <= 2 * probability


def test_words():
    assert (
        number_text.one_in(0.01) == "1 in 100"
        and number_text.one_in(1.0757e-9) == "1 in 920 million"
    )
    assert number_text.one_in(0.0) == "0" and number_text.one_in(1e-30) == "1.0e-30"
    assert (
        number_text.one_in(1e-9) == "1 in 1 billion" and number_text.one_in(3.34e-16) == "3.4e-16"
    )
    assert [number_text.exactly(x) for x in (1.0, 1e-8, 1.04e-8)] == ["1", "1e-08", "1.04e-08"]
    assert [number_text.short(x) for x in (0.0, 0.64421, 1234.5, 150000.0, 9.6e-8, 1e20)] == [
        "0", "0.6442", "1,235", "150,000", "9.6e-08", "1e+20",
    ]  # fmt: skip
    assert (
        number_text.percent_down(0.96199) == "96.1%" and number_text.percent_up(0.96101) == "96.2%"
    )
    assert (
        number_text.factor_text(1.0) == "1"
        and number_text.factor_text(0.99999999) == "just under 1"
    )
    assert number_text.factor_text(0.9) == "0.9000"
    market = a_market()
    assert number_text.price_text(market, 0, 1e-9) == "nearly 0"
    assert (
        number_text.price_text(market, 0, 0.0) == "0"
        and number_text.price_text(market, 0, 2.5) == "2.5"
    )


# --- what people see first ----------------------------------------------------------------


def test_goods_that_bind_come_first():
    """Eight charts are shown at once; the two goods with a price are among the last of twelve."""
    market = a_market(12)
    unit = market.value_cap_code * 2**20 // 65535 // 20
    prices = [0] * 12
    prices[10], prices[4] = 3 * unit, unit
    board = finished_board(market, [(prices, 1)] * 5, SHARE)
    names = [figure.name for figure in billboard_page.figures(board)]
    expected = [10, 4, 0, 1, 2, 3, 5, 6, 7, 8, 9, 11]
    assert names == [market.resources[j].name for j in expected]
    flat = finished_board(market, [([0] * 12, 1)] * 5, SHARE)
    assert [f.name for f in billboard_page.figures(flat)] == [r.name for r in market.resources]


def test_the_search_does_not_flatten_the_prices_that_count():
    """After prices of 100 in the search, 5 and 6 still differ by much of the chart."""
    market = a_market(1)
    unit = market.value_cap_code * 2**20 // 65535 // 1000

    def drawn(first):
        rows = [([first * unit], 0)] * 3 + [([(5 + i % 2) * unit], 1) for i in range(9)]
        (figure,) = billboard_page.figures(finished_board(market, rows, SHARE))
        return figure.price, [y for _, y in points_of(figure.price, "line")]

    chart_of, heights = drawn(100)
    assert heights[0] == 0 and abs(heights[-1] - heights[-2]) > 30, "of 400"
    assert "Higher prices of the first rounds are cut off" in chart_of
    chart_of, heights = drawn(8)
    assert heights[0] > 0 and "cut off" not in chart_of


def test_templates_have_no_words_of_their_own():
    """What is not in a language's file would stay English on every page."""
    folder = resources.files("jdpack.pages").joinpath("web")
    for name in ("billboard.html", "course.html", "promises.html", "letter.html"):
        text = folder.joinpath(name).read_text()
        bare = re.sub(r"\{[{%#].*?[}%#]\}|<code>.*?</code>|<[^>]*>|&\w+;", " ", text, flags=re.S)
        assert re.findall("[A-Za-z]{2,}", bare) == [], name
    assert "Nothing is posted yet" in folder.joinpath("waiting.html").read_text(), "the control"
