"""Public: zero-concentrated differential privacy, (epsilon, delta) <-> rho.

Releases that are together rho-zCDP (Bun & Steinke 2016) are (epsilon, delta)-DP for every epsilon,
with delta = `delta_of(rho, epsilon)`. This holds for any noise whose cost in zCDP is known. For
Gaussian noise of large scale `jdpack.privacy.gdp` proves more from the same rho.
"""

from __future__ import annotations

import functools
import math
from typing import Any


def delta_of(rho: float, epsilon: float) -> float:
    """The smallest delta for which rho-zCDP implies (epsilon, delta)-DP, rounded up.

    Canonne, Kamath & Steinke 2020, Proposition 12: the minimum over a > 1 of
    exp((a - 1)(a rho - epsilon)) (1 - 1/a)^a / (a - 1), as computed by OpenDP.
    """
    if not 0.0 <= rho < 1e3:
        return 1.0
    # A Gaussian of scale 1 at sensitivity s is (s^2 / 2)-zCDP; one step up keeps it above rho.
    sensitivity = math.nextafter(math.sqrt(2.0 * rho), math.inf)
    try:
        return float(_conversion().map(sensitivity).delta(epsilon))
    except _refusal():
        return 1.0


def epsilon_of(rho: float, delta: float) -> float:
    """The smallest epsilon for which rho-zCDP implies (epsilon, delta)-DP, rounded up."""
    sensitivity = math.nextafter(math.sqrt(2.0 * rho), math.inf)
    try:
        return float(_conversion().map(sensitivity).epsilon(delta))
    except _refusal():
        return math.inf


@functools.lru_cache(maxsize=64)
def rho_of(epsilon: float, delta: float) -> float:
    """The largest rho (to one part in 10^12, from below) that implies (epsilon, delta)-DP."""
    # Start from the classical conversion, sqrt(rho) < sqrt(l + epsilon) - sqrt(l), l = ln(1/delta),
    # which is weaker. Doubling finds an upper end; bisection returns the private side.
    tail = math.log(1.0 / delta)
    low = (math.sqrt(tail + epsilon) - math.sqrt(tail)) ** 2 / 2.0
    high = 2.0 * low
    while delta_of(high, epsilon) <= delta:
        low, high = high, 2.0 * high
    while high - low > 1e-12 * low:
        middle = (low + high) / 2.0
        low, high = (middle, high) if delta_of(middle, epsilon) <= delta else (low, middle)
    return low


def _refusal() -> type[Exception]:
    """What OpenDP raises if it gives up on numbers beyond any budget."""
    from opendp.mod import OpenDPException

    return OpenDPException  # type: ignore[no-any-return]


@functools.cache
def _conversion() -> Any:
    # Imported at first use: reading a billboard converts nothing and need not wait for OpenDP.
    from opendp.combinators import make_zCDP_to_approxDP
    from opendp.domains import atom_domain, vector_domain
    from opendp.measurements import make_gaussian
    from opendp.metrics import l2_distance
    from opendp.mod import enable_features

    enable_features("contrib")
    space = vector_domain(atom_domain(T="i64")), l2_distance(T="f64")
    return make_zCDP_to_approxDP(make_gaussian(*space, scale=1.0))
