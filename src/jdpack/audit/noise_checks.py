"""Private: tests the noise that real runs added, and its source.

The curator knows the exact answers, so the noise is the answer minus the exact answer. Every draw z
becomes a normal score, exactly: with F the law's distribution function and U uniform, the number
F(z - 1) + U (F(z) - F(z - 1)) is uniform, whatever the scale and the lattice (Brockwell 2007). If
the noise is what was charged for, the scores of all runs are independent and standard normal, and
so are the scores of their sizes. The tests cover, for each query, the law, mean and variance, and
the correlation between rounds, coordinates and runs. They use disjoint pairs, where Student's law
is exact. Further tests look for whole draws that repeat, for low bits that are not uniform (a sign
of single precision), and at the source's shape at scales so small that the lattice shows.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jdpack import door
from jdpack.audit.epsilon_bounds import scipy
from jdpack.audit.findings import Finding, differ, fact, statistical
from jdpack.audit.recording import Tape, alike
from jdpack.privacy.noise import Gaussian, Noise, TruncatedLaplace, deviation

Floats = NDArray[np.float64]

LAGS = (1, 2, 3, 5, 8)
SMALL = (0.4, 0.7, 2.5, 40.5)
LARGE = (2.0**20, 2.0**30, 2.0**40, 2.0**50)
FEW = 25
"""The smallest expected count of a cell in a chi-square test."""


@dataclass(frozen=True)
class Draw:
    """The noise of one release, and its normal scores."""

    run: int
    index: int
    query: str
    noise: Noise
    values: tuple[int, ...]
    scores: Floats


# --- facts --------------------------------------------------------------------------------


def of_vetted_source(tapes: Iterable[Tape]) -> list[Finding]:
    """Every answer is the exact one plus one draw of the vetted sampler at the posted scale.

    The exact answer comes from the reference and the scale from the sampler, so nothing here relies
    on what the pipeline says about itself. Draws match lines in order, so each draw is used once.
    """
    types, sums, sources, lines = [], [], [], 0
    for tape in tapes:
        for at, line in enumerate(tape.lines):
            lines, query = lines + 1, line.step.query
            numbers = [*line.answer, *(line.draw or [])]
            if not all(type(number) is int for number in numbers):
                kinds = sorted({type(number).__name__ for number in numbers})
                types.append(f"release {at} ({query}) has numbers of type {kinds}")
            if line.draw is None:
                scales = ", ".join(f"{s:.6g}" for s in dict.fromkeys(deviation(line.step.noise)))
                sources.append(
                    f"the noise of release {at} ({query}) is not one draw of the vetted sampler "
                    f"at scale {scales}"
                )
            elif line.exact != line.true:
                differs = differ(line.exact, line.true)
                sums.append(f"answer {at} ({query}) minus its noise {differs} by the reference")
        if tape.unused:
            sources.append(f"{tape.unused} draws of the sampler are in no answer")
    seen = f"{lines} releases"
    return [
        fact(
            "noise: whole numbers", "answers and noise are integers", types, seen, tested=lines > 0
        ),
        fact(
            "noise: added once",
            "a posted answer is the exact answer plus its own draw",
            sums,
            seen,
            tested=lines > 0,
        ),
        fact(
            "noise: source",
            "each release has its own draw, from the vetted sampler at the posted scale",
            sources,
            seen,
            tested=lines > 0,
        ),
    ]


# --- scores -------------------------------------------------------------------------------


def draws_of(tapes: Iterable[Tape]) -> list[Draw]:
    """The noise of real runs: posted answers minus the reference's exact ones."""
    rng, found = np.random.default_rng(), []
    for run, tape in enumerate(tapes):
        for index, line in enumerate(tape.lines):
            values = tuple(a - e for a, e in zip(line.answer, line.true, strict=True))
            scores = normal_scores(line.step.noise, values, rng)
            found.append(Draw(run, index, line.step.query, line.step.noise, values, scores))
    return found


def normal_scores(noise: Noise, values: Iterable[int], rng: np.random.Generator) -> Floats:
    """Independent standard normals if the values are independent draws of the noise."""
    z = np.floor(np.array(list(values), dtype=np.float64))  # a double is precise enough
    uniform = rng.random(len(z))
    for scale, places in alike(noise, len(z)):
        own = noise if isinstance(noise, TruncatedLaplace) else Gaussian((scale,))
        below, upto = _distribution(own, z[places] - 1.0), _distribution(own, z[places])
        uniform[places] = below + uniform[places] * (upto - below)
    scores: Floats = scipy("special").ndtri(np.clip(uniform, 1e-16, 1.0 - 1e-16))
    return scores


def _distribution(noise: Noise, z: Floats) -> Floats:
    """P(draw <= z), by the law itself."""
    if isinstance(noise, TruncatedLaplace):
        tail, end = np.abs(np.where(z < 0.0, z, -z - 1.0)), noise.bound + 1.0
        s = noise.scale
        last = math.exp(-end / s)
        mass = (np.exp(-tail / s) - last) / (1.0 + math.exp(-1.0 / s) - 2.0 * last)
        mass = np.where(tail > noise.bound, 0.0, mass)
        return np.where(z < 0.0, mass, 1.0 - mass)
    (scale,) = deviation(noise)
    if scale >= 200.0:  # the midpoint rule is off by less than 1e-6
        cut: Floats = scipy("special").ndtr((z + 0.5) / scale)
        return cut
    values, mass = law(noise)
    below = np.concatenate([[0.0], np.cumsum(mass)])
    found: Floats = below[np.clip(z - values[0] + 1.0, 0, len(values)).astype(np.int64)]
    return found


def law(noise: Noise) -> tuple[NDArray[np.int64], Floats]:
    """The values that noise of a small scale can take, and their probabilities."""
    (s,) = deviation(noise)
    reach = noise.bound if isinstance(noise, TruncatedLaplace) else math.ceil(12.0 * s) + 2
    z = np.arange(-reach, reach + 1)
    mass = np.exp(-(z**2) / (2.0 * s * s) if isinstance(noise, Gaussian) else -np.abs(z) / s)
    return z, mass / mass.sum()


def size_scores(scores: Floats) -> Floats:
    """Standard normal scores of the absolute values of standard normals."""
    special = scipy("special")
    uniform = np.clip(2.0 * special.ndtr(np.abs(scores)) - 1.0, 1e-16, 1.0 - 1e-16)
    sizes: Floats = special.ndtri(uniform)
    return sizes


# --- tests --------------------------------------------------------------------------------


def of_noise(draws: list[Draw]) -> list[Finding]:
    """All tests of the draws of real runs."""
    return [*of_law(draws), *of_independence(draws), of_repeats(draws), *of_low_bits(draws)]


def of_law(draws: list[Draw]) -> Iterator[Finding]:
    """Test the law, mean and variance of each query's noise."""
    stats = scipy("stats")
    groups: dict[str, list[Floats]] = defaultdict(list)
    for draw in draws:
        groups[draw.query].append(draw.scores)
        groups["all queries"].append(draw.scores)
    for query, some in groups.items():
        scores = np.concatenate(some)
        n, squares = len(scores), float((scores**2).sum())
        ends = float(stats.chi2.cdf(squares, n)), float(stats.chi2.sf(squares, n))
        yield statistical(
            f"noise: variance of {query}",
            "the posted one",
            f"{squares / n:.3f} times the posted one in {n} draws",
            min(1.0, 2.0 * min(ends)),
        )
        shift = float(scores.mean()) * math.sqrt(n)
        yield statistical(
            f"noise: mean of {query}",
            "0",
            f"{shift:+.1f} standard errors in {n} draws",
            2.0 * float(stats.norm.sf(abs(shift))),
        )
        if n >= 10:
            result = stats.kstest(scores, "norm")
            yield statistical(
                f"noise: law of {query}",
                "the law of the posted noise",
                f"off by {result.statistic:.4f} in {n} draws",
                float(result.pvalue),
            )


def of_independence(draws: list[Draw]) -> Iterator[Finding]:
    """Test correlations between rounds, coordinates and runs, of values and of sizes."""
    by_run: dict[int, dict[int, Draw]] = defaultdict(dict)
    for draw in draws:
        by_run[draw.run][draw.index] = draw
    for lag in LAGS:
        pairs = [
            _pair(lines[i], lines[i + lag])
            for lines in by_run.values()
            for i in lines
            if (i // lag) % 2 == 0 and i + lag in lines
        ]
        yield from _correlation(f"rounds {lag} apart", pairs)
    for lag in (1, 2):
        pairs = []
        for draw in draws:
            n = len(draw.scores)
            first = np.array([c for c in range(n - lag) if (c // lag) % 2 == 0], np.int64)
            if len(first):
                pairs.append((draw.scores[first], draw.scores[first + lag]))
        yield from _correlation(f"coordinates {lag} apart", pairs)
    for phase in (0, 1):
        pairs = [
            _pair(by_run[run][i], by_run[run + 1][i])
            for run in sorted(by_run)
            if run % 2 == phase and run + 1 in by_run
            for i in by_run[run]
            if i in by_run[run + 1]
        ]
        yield from _correlation(f"runs ({'odd' if phase else 'even'} and next)", pairs)


def _pair(one: Draw, two: Draw) -> tuple[Floats, Floats]:
    n = min(len(one.scores), len(two.scores))
    return one.scores[:n], two.scores[:n]


def _correlation(what: str, pairs: list[tuple[Floats, Floats]]) -> Iterator[Finding]:
    n = sum(len(one) for one, _ in pairs)
    if n < 10:
        return
    one, two = (np.concatenate(side) for side in zip(*pairs, strict=True))
    for kind, x, y in (("", one, two), ("sizes, ", size_scores(one), size_scores(two))):
        x, y = x - x.mean(), y - y.mean()
        length = math.sqrt(float(x @ x) * float(y @ y))
        r = min(1.0, max(-1.0, float(x @ y) / length)) if length > 0.0 else 1.0
        t = math.inf if abs(r) == 1.0 else abs(r) * math.sqrt((n - 2) / (1.0 - r * r))
        yield statistical(
            f"noise: independence, {kind}{what}",
            "no correlation",
            f"correlation {r:+.4f} in {n} pairs",
            2.0 * float(scipy("stats").t.sf(t, n - 2)),
        )


def of_repeats(draws: list[Draw]) -> Finding:
    """Look for two releases of a query whose draws are equal in every coordinate."""
    groups: dict[tuple[str, int], list[Draw]] = defaultdict(list)
    for draw in draws:
        groups[draw.query, len(draw.values)].append(draw)
    least, told = 1.0, "no two draws are equal"
    pairs = sum(math.comb(len(some), 2) for some in groups.values())
    for (query, width), some in groups.items():
        # Zero has the most mass, and the smaller the scale, the larger that mass.
        most = max(_mass_at_zero(draw.noise, width) for draw in some)
        expected = math.comb(len(some), 2) * most
        counts = Counter(draw.values for draw in some)
        seen = sum(math.comb(times, 2) for times in counts.values())
        p_value = float(scipy("stats").poisson.sf(seen - 1, expected)) if seen else 1.0
        if p_value < least:
            least = p_value
            told = f"{seen} pairs of equal draws of {query}, where chance gives {expected:.2g}"
    return statistical(
        "noise: repeats",
        "every draw is fresh",
        told if pairs else "no query was asked twice",
        min(1.0, least * len(groups)),
        tested=pairs > 0,
    )


def _mass_at_zero(noise: Noise, width: int) -> float:
    """The probability that all numbers of an answer get no noise."""
    if isinstance(noise, TruncatedLaplace):
        s, end = noise.scale, noise.bound + 1.0
        both = 1.0 + math.exp(-1.0 / s) - 2.0 * math.exp(-end / s)
        return float((-math.expm1(-1.0 / s) / both) ** width)
    mass = 1.0
    for s, places in alike(noise, width):
        one = law(Gaussian((s,)))[1].max() if s < 200.0 else 1.0 / (math.sqrt(2.0 * math.pi) * s)
        mass *= float(one) ** len(places)
    return mass


def of_low_bits(draws: list[Draw]) -> Iterator[Finding]:
    """Test the low bits of noise of a large scale, which are uniform to within 1e-100."""
    groups: dict[int, list[int]] = defaultdict(list)
    for draw in draws:
        for scale, places in alike(draw.noise, len(draw.values)):
            groups[int(math.log2(scale))] += [int(draw.values[j]) for j in places]
    for size, values in sorted(groups.items()):
        finding = low_bits(values, size)
        if finding is not None:
            yield finding


def low_bits(values: list[int], size: int, what: str = "noise") -> Finding | None:
    """Test the low bits of noise whose scale is at least 2^size."""
    bits = min(8, size - 3, int(math.log2(max(1.0, len(values) / FEW))))
    if bits < 1:
        return None
    seen = np.bincount([z % 2**bits for z in values], minlength=2**bits)
    return statistical(
        f"{what}: low bits at scales from 2^{size}",
        "uniform",
        f"{bits} bits of {len(values)} draws; the commonest pattern has "
        f"{seen.max() / len(values):.1%}",
        float(scipy("stats").chisquare(seen).pvalue),
    )


def of_source(count: int = 1000) -> list[Finding]:
    """Test the source itself, at scales from where the lattice shows to near 64 bits."""
    source, found = door.SystemRandomness(), []
    noises: list[Noise] = [*(Gaussian((scale,)) for scale in SMALL), TruncatedLaplace(3.0, 8)]
    for noise in noises:
        values = source.draw(noise, count, 0)
        p_value, cells = _chi_square(values, *law(noise))
        found.append(
            statistical(
                f"source: {noise}",
                "the discrete law",
                f"{count} draws, {values.count(0)} of them 0",
                p_value,
                tested=cells > 1,
            )
        )
    for scale in LARGE:
        values = [int(z) for z in source.draw(Gaussian((scale,)), count, 0)]
        bits = low_bits(values, int(math.log2(scale)), "source")
        if bits is not None:
            found.append(bits)
    return found


def _chi_square(draws: list[int], values: NDArray[np.int64], mass: Floats) -> tuple[float, int]:
    """The p-value of draws against their law, and the number of cells of neighbouring values."""
    expected, seen = [0.0], [0]
    counts = Counter(draws)
    outside = len(draws) - sum(counts[int(z)] for z in values)  # or not integers
    for z, p in zip(values.tolist(), mass.tolist(), strict=True):
        expected[-1] += p * len(draws)
        seen[-1] += counts[z]
        if expected[-1] >= FEW:
            expected.append(0.0)
            seen.append(0)
    last, rest = expected.pop(), seen.pop()
    expected[-1] += last
    seen[-1] += rest
    if outside:
        return 0.0, 2
    if len(seen) < 2:
        return 1.0, 1
    result = scipy("stats").chisquare(seen, expected, sum_check=False)
    return float(result.pvalue), len(seen)
