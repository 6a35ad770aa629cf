"""Does `jdpack audit` notice a broken pipeline? This plants faults one at a time, and counts.

Each fault is a mistake or a shortcut that a good engineer might make, as text edits of the source.
Each one breaks privacy, the supply guarantee, the certificate or the accounting in some realistic
market, and leaves ordinary runs working. Their author knew the pipeline but had not read the
audit's checks. Do not tune one to the other: if the source changes, move the edit along; if the
audit misses a fault, improve the check for the whole kind.

The script copies `src` to a temporary folder, plants one fault, and runs the default audit there:

* caught: the audit gave the verdict "failed";
* missed: it gave the verdict "passed";
* crashed: it gave no verdict. That is not counted as caught.

One failed check makes an audit fail, so an audit stops here as soon as a check has failed. That
changes no verdict: an audit that passes has run to its end.

It also runs the honest pipeline several times, which must pass. `--smoke` runs small seeded markets
instead of the audit, to show that a fault leaves ordinary runs working.

The order of the audits, faulty and honest, is shuffled with a fixed seed, so what has run so far is
a fair sample. Every verdict is written to the folder of results at once. Started again, the script
skips what it has a verdict for, as long as the source and the faults are the same; `--again` starts
over.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"

_ORDER = 20261118  # the seed of the order; chosen before any audit ran in it


@dataclass(frozen=True)
class Edit:
    """A change to one file of the package."""

    file: str
    """Under src/jdpack."""
    old: str
    """What it says now, exactly once."""
    new: str
    """What it says with the fault."""

    def apply(self, text: str) -> str:
        """The text of the file with the fault."""
        count = text.count(self.old)
        if count != 1:
            raise ValueError(f"{self.file} has the text to edit {count} times: {self.old!r}")
        return text.replace(self.old, self.new)


@dataclass(frozen=True)
class Fault:
    """Something wrong with the pipeline."""

    name: str
    breaks: str
    """What it breaks, and why."""
    edits: tuple[Edit, ...]
    hard: bool = False
    """Whether its author expected the default audit to miss it."""


_DRAW = "    noise = randomness.draw(step.noise, len(exact), len(board.releases))\n"
_SYSTEM = "                return _gaussians(noise.of(count))\n"
_ANSWER = "    return Release(step, tuple(e + z for e, z in zip(exact, noise, strict=True)))\n"

FAULTS = [
    # --- the noise ------------------------------------------------------------------------
    Fault(
        "chance-noise-halved",
        "Privacy: the chance release gets half the noise that it is charged for, so it costs "
        "four times its rho.",
        (
            Edit(
                "door.py",
                _DRAW,
                _DRAW
                + '    if step.query == "chance":  # it is only about coins, and asked only once\n'
                + "        noise = [z // 2 for z in noise]\n",
            ),
        ),
    ),
    Fault(
        "scale-rounded-down",
        "Privacy: the sampler rounds scales down to powers of two, to build fewer samplers, so "
        "a release has as little as half of the noise that it is charged for.",
        (
            Edit(
                "door.py",
                _SYSTEM,
                "                return _gaussians(tuple(map(_near, noise.of(count))))\n",
            ),
            Edit(
                "door.py",
                "def _gaussians(",
                "def _near(scale: float) -> float:\n"
                '    """The largest power of two up to the scale: few samplers serve all."""\n'
                "    return float(2.0 ** (int(np.frexp(scale)[1]) - 1))\n\n\n"
                "def _gaussians(",
            ),
        ),
    ),
    Fault(
        "noise-from-the-clock",
        "Privacy: the generator is seeded with the time in seconds and the number of the "
        "release, so anyone who knows when the run took place can subtract the noise.",
        (
            Edit(
                "door.py",
                _SYSTEM,
                "                rng = np.random.default_rng([int(time.time()), index])\n"
                "                drawn = rng.normal(0.0, noise.of(count)).tolist()\n"
                "                return [round(z) for z in drawn]\n",
            ),
            Edit("door.py", "import functools\n", "import functools\nimport time\n"),
        ),
        hard=True,
    ),
    Fault(
        "antithetic-noise",
        "Privacy: the second half of the coordinates gets the noise of the first half with the "
        "sign turned, so sums of two coordinates are released exactly.",
        (
            Edit(
                "door.py",
                _SYSTEM,
                "                scales, some = noise.of(count), (count + 1) // 2\n"
                "                half = _gaussians(scales[:some])\n"
                "                pairs = zip(half, scales, scales[some:], strict=False)\n"
                "                return half + [-round(z * b / a) for z, a, b in pairs]\n",
            ),
        ),
    ),
    Fault(
        "half-of-the-curvature-bare",
        "Privacy: noise is drawn for one half of the curvature, which is symmetric, and the other "
        "half is posted as it is.",
        (
            Edit(
                "door.py",
                _DRAW,
                _DRAW
                + '    if step.query == "curvature":  # a matrix of second derivatives\n'
                + "        m = len(step.prices)\n"
                + "        noise = [noise[j * m + k] if j <= k else 0 "
                + "for j in range(m) for k in range(m)]\n",
            ),
        ),
    ),
    Fault(
        "outliers-redrawn",
        "Privacy: noise beyond 4 deviations is drawn again, so its support moves with the data: "
        "that costs a delta of about 1e-5 for each number, and none of it is counted.",
        (
            Edit(
                "door.py",
                _SYSTEM,
                "                scales = noise.of(count)\n"
                "                drawn = _gaussians(scales)\n"
                "                while any(abs(z) > 4.0 * s for z, s in zip(drawn, scales)):\n"
                "                    drawn = _gaussians(scales)  # wild prices\n"
                "                return drawn\n",
            ),
        ),
        hard=True,
    ),
    Fault(
        "chance-noise-one-sided",
        "Privacy: the noise of the chance release is made positive so that what coins decide is "
        "never understated, so the answer is a certain upper bound on a private number.",
        (
            Edit(
                "door.py",
                _DRAW,
                _DRAW
                + '    if step.query == "chance":  # the certificate must not be too low\n'
                + "        noise = [abs(z) for z in noise]\n",
            ),
        ),
    ),
    Fault(
        "batch-noise-shrunk",
        "Privacy: the noise of a batch is divided by the root of the number of batches because "
        "a batch has fewer agents, but one agent moves its batch as far as it moves the whole.",
        (
            Edit(
                "door.py",
                _DRAW,
                _DRAW
                + "    if step.batch is not None:  # noise in proportion to who is asked\n"
                + "        noise = [round(z / step.batch.count**0.5) for z in noise]\n",
            ),
        ),
    ),
    # --- answers that are processed with exact numbers ------------------------------------
    Fault(
        "zero-stays-zero",
        "Privacy: a resource that nobody takes is released as an exact 0, so one agent who takes "
        "it shows.",
        (
            Edit(
                "door.py",
                _ANSWER,
                "    answer = (e + z if e else 0 for e, z in zip(exact, noise, strict=True))\n"
                "    return Release(step, tuple(answer))  # no demand out of nothing\n",
            ),
        ),
    ),
    Fault(
        "negative-answers-redrawn",
        "Privacy: noise is drawn again until no demand is negative, so the odds of an answer "
        "depend on how far the exact sum is from 0, which nothing pays for.",
        (
            Edit(
                "door.py",
                _ANSWER,
                "    draws = len(board.releases)\n"
                '    while step.query == "demand" and min(map(int.__add__, exact, noise)) < 0:\n'
                "        draws += 10**6  # a stream of its own, also where noise is seeded\n"
                "        more = randomness.draw(step.noise, len(exact), draws)\n"
                "        noise = [z if e + z >= 0 else y "
                "for e, z, y in zip(exact, noise, more, strict=True)]\n" + _ANSWER,
            ),
        ),
    ),
    Fault(
        "answer-capped-at-exact-total",
        "Privacy: a noisy demand is cut to what all agents would take for free, an exact private "
        "sum that then appears on the billboard.",
        (
            Edit(
                "door.py",
                _ANSWER,
                '    if step.query == "demand" and step.batch is None:\n'
                "        most = engine.demand((0,) * len(exact))  # nobody can take more\n"
                "        noise = [min(z, top - e) "
                "for e, z, top in zip(exact, noise, most, strict=True)]\n" + _ANSWER,
            ),
        ),
    ),
    Fault(
        "free-resource-unnoised",
        "Privacy: a resource with price 0 is taken as not scarce and released without noise, "
        "which shows its exact demand (in the first round of dual-gd, every resource's).",
        (
            Edit(
                "door.py",
                _ANSWER,
                '    if step.query == "demand":\n'
                "        noise = [z if price else 0 "
                "for z, price in zip(noise, step.prices, strict=True)]\n" + _ANSWER,
            ),
        ),
        hard=True,
    ),
    Fault(
        "steering-noise-smaller-of-two",
        "Privacy: in rounds that do not count, noise is drawn twice and the smaller draw is kept "
        "so that prices settle sooner, but only one draw of full scale is charged.",
        (
            Edit(
                "door.py",
                _ANSWER,
                '    if step.query == "demand" and not step.weight:  # it only steers\n'
                "        more = randomness.draw(step.noise, len(exact), "
                "len(board.releases) + 10**6)\n"
                "        noise = [min(pair, key=abs) for pair in zip(noise, more, strict=True)]\n"
                + _ANSWER,
            ),
        ),
    ),
    # --- sensitivities --------------------------------------------------------------------
    Fault(
        "scale-moved-as-by-largest-supply",
        "Privacy: the sensitivity of the scale query is a cap of the resource with the largest "
        "supply, which is too small wherever supplies differ (mwu-adaptive).",
        (
            Edit(
                "privacy/queries.py",
                "return Change(max(-(-cap * least // supply) for cap, supply in pairs))",
                "return Change(min(-(-cap * least // supply) for cap, supply in pairs))",
            ),
        ),
    ),
    Fault(
        "replaced-agent-moves-one-bundle",
        "Privacy: under replace-one the demand is taken to move in one bundle of resources "
        "instead of two, so markets with small bundles get up to 30% too little noise.",
        (
            Edit(
                "privacy/queries.py",
                "        count = min(k * (1 + both), m)\n        return DemandChange",
                "        count = min(k, m)\n        return DemandChange",
            ),
        ),
    ),
    Fault(
        "curvature-of-two-agents-as-of-one",
        "Privacy: the sensitivity of the curvature with add-remove is used with replace-one too, "
        "where two agents move it, so the noise is too small by a factor of root 2.",
        (
            Edit(
                "privacy/queries.py",
                "return Change(_root(squared * (1 + both)))",
                'return Change(_root(squared * (1 + (both and query == "gauge"))))',
            ),
        ),
    ),
    Fault(
        "curvature-by-the-dearer-choice",
        "Privacy: the close calls of an agent are divided by the larger cost of its two choices, "
        "which are about alike, but the claim needs the sum of both, so an agent with two options "
        "moves the curvature and the gauge by up to twice as much.",
        (
            Edit(
                "engines/curvature.py",
                "                costs += cost[second]\n            trace",
                "                costs = max(costs, cost[second])\n            trace",
            ),
            Edit(
                "engines/curvature.py",
                "                costs += cost[second]\n                size",
                "                costs = max(costs, cost[second])\n                size",
            ),
        ),
    ),
    Fault(
        "luck-of-two-agents-as-of-one",
        "Privacy: the sensitivity of luck with add-remove is used with replace-one too, where "
        "luck may move from one end of its range to the other, so by twice as much.",
        (
            Edit(
                "privacy/queries.py",
                "    most = highest - lowest if both else max(-lowest, highest)\n",
                "    most = max(-lowest, highest)\n",
            ),
        ),
    ),
    Fault(
        "luck-not-cut",
        "Privacy: an agent's luck is not cut to the range that its sensitivity rests on, so "
        "where rounding takes more than the range allows for, one agent moves the sum further.",
        (
            Edit(
                "engines/giving.py",
                "                total += min(max(own, lowest), highest)\n",
                "                total += own\n",
            ),
            Edit(
                "engines/giving.py",
                "    return total + min(max(own, lowest), highest)\n",
                "    return total + own\n",
            ),
        ),
        hard=True,
    ),
    Fault(
        "welfare-moved-by-dearest-cost",
        "Privacy: the welfare release takes the dearest cost as its sensitivity, as chance does, "
        "but an agent who values an option far above its cost adds the whole value.",
        (
            Edit(
                "protocol/closing.py",
                '    if query != "luck":\n',
                '    if query == "welfare" and any(board.rounds):\n'
                "        return Change(bounds.dearest(board))\n"
                '    if query != "luck":\n',
            ),
        ),
    ),
    Fault(
        "cost-of-the-largest-move",
        "Privacy: noise and cost go by the largest move of any coordinate instead of the root of "
        "the sum of squares, so the noise is too small for every vector.",
        (
            Edit(
                "privacy/queries.py",
                "        return _largest(self.most, scales, self.count) * _UP\n",
                "        return _largest(self.most, scales, 1) * _UP\n",
            ),
        ),
    ),
    # --- accounting -----------------------------------------------------------------------
    Fault(
        "closing-not-charged",
        "Accounting: the rounds may spend the whole budget and the closing releases are not "
        "charged, so a run costs more than its rho.",
        (
            Edit(
                "protocol/charge.py",
                "    filter.charge(cost, step.batch, step.span)\n",
                "    if step.prices:  # others come from the closing shares\n"
                "        filter.charge(cost, step.batch, step.span)\n",
            ),
            Edit(
                "privacy/tail_bounds.py",
                "    return budget.rho * (1.0 - math.fsum(shares.values()))\n",
                "    return budget.rho\n",
            ),
        ),
    ),
    Fault(
        "truncation-free-of-delta",
        "Accounting: truncated Laplace noise is charged no delta although its support moves with "
        "the data, as in the paper's lemma.",
        (
            Edit(
                "privacy/noise.py",
                "        return Cost(rho=Fraction(change.worst((self.scale,))) / 2, delta=delta)\n",
                "        return Cost(rho=Fraction(change.worst((self.scale,))) / 2)\n",
            ),
        ),
    ),
    Fault(
        "repair-without-a-cap",
        "Accounting: the repair is charged beta, but the certificate leaves no cap free for the "
        "neighbour, whose allocation then overflows more often than beta.",
        (
            Edit(
                "protocol/bounds.py",
                "    return [cap * repaired / (supply * DOWN) for cap, supply in caps]\n",
                "    return [0 * cap / (supply * DOWN) for cap, supply in caps]\n",
            ),
        ),
        hard=True,
    ),
    Fault(
        "delta-spent-twice",
        "Accounting: the share of delta for the repair is not taken off before delta is turned "
        "into rho, so the whole promise is delta times 1.4.",
        (
            Edit(
                "privacy/accounting.py",
                "            rest = whole - Fraction(beta) if repaired else whole\n",
                "            rest = whole\n",
            ),
            Edit(
                "privacy/accounting.py",
                "Fraction(budget.truncation) - Fraction(budget.repair)\n",
                "Fraction(budget.truncation)\n",
            ),
        ),
        hard=True,
    ),
    Fault(
        "batches-beside-everybody",
        "Accounting: releases about a batch and releases about all agents are composed in "
        "parallel, and mwu-online spends the whole budget on its batches, so a run "
        "costs an agent more than its rho.",
        (
            Edit(
                "privacy/accounting.py",
                "        spent, asked = self._of_all.plus(self._most), of_all.plus(most)\n",
                "        spent = self._of_all.plus(self._most)\n"
                "        asked = of_all.or_more(most)\n",
            ),
            Edit(
                "policies/mwu_online.py",
                "rho = tail_bounds.rounds_rho(market, budget, batches=True)\n",
                "rho = budget.rho\n",
            ),
        ),
    ),
    Fault(
        "refund-on-interrupt",
        "Accounting: a run that fails after its first rounds gives its reservation back to the "
        "ledger although those rounds are posted, and the ledger has no rule against it.",
        (
            Edit(
                "run/lifecycle.py",
                "                undo.pop_all()\n"
                "            held.callback(board.close)\n"
                "            result = self._play(engine, board)\n",
                "                held.callback(board.close)\n"
                "                result = self._play(engine, board)\n"
                "                undo.pop_all()\n",
            ),
            Edit(
                "ledger/entries.py",
                "                if known.begun or known.times > 1:\n",
                "                if known.times > 1:\n",
            ),
        ),
        hard=True,
    ),
    Fault(
        "local-agent-forgets",
        "Local privacy: an agent who adds its own noise starts each answer with a full budget, "
        "so a curator who asks again and again averages the noise away.",
        (
            Edit(
                "run/local.py",
                "        answered = release(step, engine, self._filter, SystemRandomness(), "
                "self._board, None)\n",
                "        fresh = Filter(self._filter.budget)\n"
                "        answered = release(step, engine, fresh, SystemRandomness(), "
                "self._board, None)\n",
            ),
        ),
        hard=True,
    ),
    Fault(
        "resume-draws-again",
        "Privacy: a resumed run drops a line that was being posted when it was killed and draws "
        "new noise for it, so whoever read the first line averages two draws paid for once.",
        (
            Edit(
                "billboard/file.py",
                '                missing = written + "\\n"\n',
                '                missing = ""  # it is not whole: the round is asked again\n',
            ),
        ),
        hard=True,
    ),
    Fault(
        "seeded-run-called-private",
        "Privacy: a run with seeded noise says in its header that it is private, so people trust "
        "noise that anybody with the seed can subtract.",
        (
            Edit(
                "run/solve.py",
                "    private = seed is None and budget.epsilon != math.inf\n",
                "    private = budget.epsilon != math.inf\n",
            ),
            Edit(
                "run/run_file.py",
                "        seeded = self.seed is not None or first.budget.epsilon == math.inf\n",
                "        seeded = first.budget.epsilon == math.inf\n",
            ),
        ),
    ),
    # --- coins ----------------------------------------------------------------------------
    Fault(
        "coin-seed-from-records",
        "Privacy: the seed of the coins is a hash of the records so that a run can be repeated, "
        "and the billboard posts it: anyone can test guesses of the records against it.",
        (
            Edit(
                "run/solve.py",
                "    coin_seed = Seed.draw() if seed is None else _seeded_coins(seed)\n",
                "    import numpy as np\n"
                "    given = repr(agents).encode() if values is None else "
                "np.asarray(values).tobytes()\n"
                "    own = Seed(hashlib.sha256(given).digest()[:16])\n"
                "    coin_seed = own if seed is None else _seeded_coins(seed)\n",
            ),
        ),
    ),
    Fault(
        "commitment-of-four-bytes",
        "Joint privacy: the header commits to four bytes of the seed only, so a curator who has "
        "seen the rounds can still choose the coins that it likes.",
        (
            Edit(
                "billboard/lines.py",
                'hashlib.sha256(b"jdpack seed " + self.seed).hexdigest()',
                'hashlib.sha256(b"jdpack seed " + self.seed[:4]).hexdigest()',
            ),
        ),
        hard=True,
    ),
    Fault(
        "coins-by-rank",
        "Joint privacy: numbered agents get coins by their rank among those whose share is open, "
        "so an agent's coin depends on the records of the agents before it.",
        (
            Edit(
                "engines/shard.py",
                "        found = bulk_coins.coins_of_numbers(key, part.first + which, hash)\n",
                "        found = bulk_coins.coins_of_numbers(key, part.first + "
                "np.arange(len(which)))\n",
            ),
        ),
    ),
    Fault(
        "coin-of-id-prefix",
        "Certificate: a coin hashes the first 8 bytes of the id only, so ids with a common "
        "beginning share one coin, and the bound for thinning by independent coins is false.",
        (
            Edit(
                "common/coins.py",
                "siphash(seed, str(agent).encode())",
                "siphash(seed, str(agent).encode()[:8])",
            ),
            Edit(
                "records/bulk_coins.py",
                "    length = stop - start\n",
                "    length = min(stop - start, 8)\n",
            ),
        ),
        hard=True,
    ),
    Fault(
        "chance-without-switchers",
        "Certificate: the chance release counts agents whose coin may give them nothing, and "
        "leaves out those whose coin chooses between options, so the bounds on loads are too low.",
        (
            Edit(
                "engines/giving.py",
                "    tossed = False\n"
                "    for k in range(n):\n"
                "        tossed |= shares[row + k] != 0 and shares[row + k] != SHARE\n"
                "    return tossed\n",
                "    total = np.int64(0)\n"
                "    for k in range(n):\n"
                "        total += shares[row + k]\n"
                "    return 0 < total < SHARE - n\n",
            ),
        ),
    ),
    # --- engines --------------------------------------------------------------------------
    Fault(
        "numbers-start-again",
        "Joint privacy: numbered agents are numbered from 0 again in every piece of a large "
        "table, so several agents share a coin and none can check what it gets.",
        (
            Edit(
                "records/encode.py",
                "            part.first += row\n        row += tally.rows\n",
                "            part.first += 0\n        row += tally.rows\n",
            ),
        ),
        hard=True,
    ),
    Fault(
        "box-open-below",
        "Privacy: in large markets screened agents are kept when prices fall below the box, so "
        "the demand jumps with whether a box was made, which depends on a private count.",
        (
            Edit(
                "engines/screening.py",
                "np.all((self.low <= prices) & (prices <= self.high))",
                "np.all(prices <= self.high)",
            ),
        ),
        hard=True,
    ),
    Fault(
        "sums-in-single-precision",
        "Privacy: sums over parts are added as 32-bit floats, so in large markets one agent "
        "moves a rounded sum by more than its sensitivity, and threads change the answer.",
        (
            Edit(
                "engines/shard.py",
                "self.threads.sum(lambda part: query(part, prices), parts, start=nothing)\n"
                "        return tuple(answer.ravel().tolist())\n",
                "self.threads.sum(\n"
                "            lambda part: query(part, prices).astype(np.float32), parts, "
                "start=nothing\n"
                "        )\n"
                "        return tuple(answer.ravel().astype(np.int64).tolist())\n",
            ),
        ),
    ),
    Fault(
        "batches-overlap",
        "Privacy: a batch also asks the first agent of the next one, so an agent is in two "
        "batches, and they do not compose in parallel.",
        (
            Edit(
                "engines/batched.py",
                "        rows = slice(*np.searchsorted("
                "self._turn, [first, first + len(prices)]).tolist())\n",
                "        begin, end = np.searchsorted("
                "self._turn, [first, first + len(prices)]).tolist()\n"
                "        rows = slice(begin, end + 1)\n",
            ),
            Edit(
                "engines/batched.py",
                "self._turn[rows] - np.int32(first)\n",
                "self._turn[rows] - np.int32(first)\n"
                "        at = np.minimum(at, np.int32(len(prices) - 1))\n",
            ),
        ),
    ),
    Fault(
        "dense-clamp-dropped",
        "Supply: with clamp, dense amounts above the bound keep the code that they had, which "
        "does not fit in 16 bits, so large demands count as small ones.",
        (Edit("records/encode_kernels.py", "    if odd:\n", "    if odd and not clamp:\n"),),
    ),
    Fault(
        "sparse-one-cap-for-all",
        "Supply: sparse amounts are held to the largest cap of all resources, so an amount of a "
        "resource with a smaller cap gets a code beyond 16 bits, and counts as a small one.",
        (
            Edit(
                "records/encode_kernels.py",
                "_admit(amounts[i], caps[resources[i]], clamp)",
                "_admit(amounts[i], caps.max(), clamp)",
            ),
        ),
    ),
    Fault(
        "dense-bundles-unchecked",
        "Privacy: the bundle size is checked in sparse tables only, so a dense record may touch "
        "every resource while the noise is for a small bundle.",
        (
            Edit(
                "records/encode.py",
                "        limited = self.market.bundle_size < len(self.market.declared)\n",
                "        limited = is_sparse(self.market)  # dense rows have space for all\n",
            ),
        ),
    ),
    Fault(
        "mapped-ids-unchecked",
        "Privacy: the mapped engine skips the slow check for repeated ids, so one agent may be "
        "in the table many times and move every sum as often.",
        (
            Edit(
                "records/encode.py",
                "    if parts[0].ids is not None:\n        check_unique",
                "    if parts[0].ids is not None and limit_bytes is None:\n        check_unique",
            ),
        ),
    ),
    Fault(
        "store-forgets-the-bounds",
        "Privacy: kept codes are found again whatever the market's bounds are, so a run with "
        "tighter caps uses codes beyond them.",
        (
            Edit(
                "engines/mapped.py",
                '    return json.dumps([data | {"name": ""}, clamp], sort_keys=True)\n',
                '    return json.dumps([data["agents"], clamp], sort_keys=True)\n',
            ),
        ),
        hard=True,
    ),
    Fault(
        "add-remove-without-ids",
        "Joint privacy: numbered agents are accepted where agents may leave, so when one leaves, "
        "the coins of all agents after it change.",
        (
            Edit(
                "records/encode.py",
                "Neighbours.ADD_REMOVE and not market.divisible:",
                "Neighbours.ADD_REMOVE and market.options > 1:",
            ),
        ),
    ),
    Fault(
        "codes-rounded-down",
        "Supply: demand codes are rounded down, so small amounts count as nothing, are free, and "
        "exceed the supply in truth while they fit in codes.",
        (
            Edit(
                "market/market.py",
                "        return code + 1 if code * size < amount else code\n",
                "        return code\n",
            ),
            Edit(
                "records/encode_kernels.py",
                "np.uint16(np.int32(code + 1.0 if code * size < amount else code))",
                "np.uint16(np.int32(code))",
            ),
        ),
    ),
    # --- the certificate and what is given ------------------------------------------------
    Fault(
        "no-thinning-if-it-fits",
        "Privacy: where the exact demand of the last round fits, the noise of the chance release "
        "is cut so that grants are not thinned for it, so answers and factors show whether an "
        "exact private load fits.",
        (
            Edit(
                "door.py",
                _ANSWER,
                '    if step.query == "chance":  # never thin what is known to fit\n'
                "        loads = engine.demand([s.prices for s in board.rounds][-1])\n"
                "        pairs = zip(loads, engine.market.supply_codes, strict=True)\n"
                "        if all(load <= supply for load, supply in pairs):\n"
                "            noise = [min(z, 0) for z in noise]\n" + _ANSWER,
            ),
        ),
    ),
    Fault(
        "repair-by-mean-load",
        "Supply: winners are dropped only if the mean load of the resources exceeds the supply, "
        "so one resource may be given out beyond its own.",
        (
            Edit(
                "engines/sharded.py",
                "        return all(load <= s * SHARE "
                "for load, s in zip(allocation.loads, supplies, strict=True))\n",
                "        pairs = zip(allocation.loads, supplies, strict=True)\n"
                "        return sum(load / s for load, s in pairs) <= SHARE * len(supplies)\n",
            ),
        ),
    ),
    Fault(
        "no-union-bound",
        "Certificate: the tail is not divided among the resources, so bounds fail m times as "
        "often as beta says, and the repair costs more delta than is set aside.",
        (
            Edit(
                "privacy/tail_bounds.py",
                "    m, beta = len(market.resources), beta or budget.beta\n",
                "    m, beta = 1, beta or budget.beta\n",
            ),
        ),
        hard=True,
    ),
    Fault(
        "averaged-load-without-radius",
        "Certificate: the bound on the load of divisible goods leaves out the noise of the "
        "rounds, so it fails often, and agents are dropped far more often than beta.",
        (
            Edit(
                "protocol/bounds.py",
                "            (total + noise.radius(tail, truncated=policy.truncated))\n",
                "            total\n",
            ),
        ),
    ),
    Fault(
        "page-says-winners",
        "Privacy: the public page carries the exact number of winners for monitoring, a private "
        "count without noise.",
        (
            Edit(
                "run/folder.py",
                "            pages = billboard_page.public_pages(result.billboard)\n",
                "            pages = billboard_page.public_pages(result.billboard)\n"
                '            note = f"<!-- winners: {result.private.winners} --></body>"\n'
                '            pages = {n: p.replace("</body>", note) for n, p in pages.items()}\n',
            ),
        ),
        hard=True,
    ),
    # --- noise shaped by the market -------------------------------------------------------
    Fault(
        "shape-costs-its-average",
        "Privacy: the cost of noise with a scale per resource is that of its average scale, but "
        "the worst agent moves the resources with the smallest scales.",
        (
            Edit(
                "privacy/queries.py",
                "    return math.fsum((most / s) ** 2 for s in sorted(scales)[:count])\n",
                "    return count / len(scales) * math.fsum((most / s) ** 2 for s in scales)\n",
            ),
        ),
    ),
    Fault(
        "shape-from-exact-loads",
        "Privacy: the shape of the noise follows the exact loads of the bridge, because a better "
        "shape saves noise, so the scales on the billboard depend on exact private sums.",
        (
            Edit(
                "run/loop.py",
                "        state.observe(answered)\n",
                '        if step.query == "demand" and getattr(state._state, "seen", None) is not '
                "None:\n"
                "            exact = statistic(step, engine, board, coin_seed)\n"
                "            loads = np.array(exact) / np.array(board.header.market.supply_codes)\n"
                "            bridge = state._state.rounds - state._policy._approach\n"
                "            state._state = replace(state._state, seen=loads * bridge)\n"
                "        state.observe(answered)\n",
            ),
            Edit(
                "run/loop.py",
                "from jdpack.door import Randomness, release\n",
                "from jdpack.door import Randomness, release, statistic\n",
            ),
            Edit(
                "run/loop.py",
                "from typing import Any\n",
                "from dataclasses import replace\nfrom typing import Any\n\nimport numpy as np\n",
            ),
        ),
    ),
    Fault(
        "shaped-noise-out-of-place",
        "Privacy: draws of equal scale are made together and handed out in the order in which "
        "they were made, so a resource may get the smaller noise of another one.",
        (
            Edit(
                "door.py",
                "    drawn = [0] * len(scales)\n"
                "    for scale, where in places.items():\n"
                "        for place, z in zip(where, _gaussian(scale)([0] * len(where)), "
                "strict=True):\n"
                "            drawn[place] = z\n"
                "    return drawn\n",
                "    drawn: list[int] = []\n"
                "    for scale, where in places.items():\n"
                "        drawn += _gaussian(scale)([0] * len(where))\n"
                "    return drawn\n",
            ),
        ),
    ),
    Fault(
        "one-radius-for-all",
        "Certificate: every load gets the radius of the first resource, so where the noise has a "
        "shape, the bounds of resources with more noise are too low.",
        (
            Edit(
                "protocol/bounds.py",
                "    return totals, sums * m if alike else sums\n",
                "    return totals, sums[:1] * m\n",
            ),
        ),
    ),
    # --- chance, and thinning -------------------------------------------------------------
    Fault(
        "chance-taken-as-exact",
        "Certificate: the noise of the chance release is left out of the radius of the loads, so "
        "the bounds are too low whenever that noise happens to be negative.",
        (
            Edit(
                "privacy/tail_bounds.py",
                "    variance += added\n",
                "",
            ),
        ),
        hard=True,
    ),
    Fault(
        "grants-taken-as-exact",
        "Certificate: the noise of the release of what coins grant is left out of the radius of "
        "the loads, so the bounds are too low whenever that noise happens to be negative.",
        (
            Edit(
                "privacy/tail_bounds.py",
                "        variance = rest * rest * self.variance + (part * weight * scale) ** 2\n",
                "        variance = rest * rest * self.variance\n",
            ),
        ),
    ),
    Fault(
        "grants-of-one-agent",
        "Privacy: what coins grant is taken to move by the grant of one agent, but under "
        "replace-one another agent is granted something else.",
        (
            Edit(
                "privacy/queries.py",
                '    if query in ("demand", "granted"):\n',
                '    if query == "granted":\n'
                "        return DemandChange(max(caps), min(k, m), caps, k, 1, _totals(market))\n"
                '    if query == "demand":\n',
            ),
        ),
    ),
    Fault(
        "chance-of-options-as-of-one",
        "Privacy: an agent with several options is taken to move the chance of as many resources "
        "as one option touches, but its coin chooses between options that touch others.",
        (
            Edit(
                "privacy/queries.py",
                "        count = -(-5 * k // 2) if several else k\n",
                "        count = k\n",
            ),
        ),
    ),
    Fault(
        "thinned-to-fit-on-average",
        "Supply: grants are thinned to a load that fits on average, without room for the coins "
        "that thin them, so a run that thins exceeds its supply, and is repaired, too often.",
        (
            Edit(
                "protocol/bounds.py",
                "max(fit.factor(room / load if load > room else 1.0) for load, fit in pairs)\n",
                "max(room / load if load > room else 1.0 for load, _ in pairs)\n",
            ),
        ),
    ),
    # --- totals ---------------------------------------------------------------------------
    Fault(
        "totals-without-rounding",
        "Privacy: the bound on a total is taken to hold for codes, but codes are rounded up, so "
        "an agent with small amounts of many resources moves demand by a little more.",
        (
            Edit(
                "privacy/queries.py",
                "(total.amount + rounding) * _UP",
                "total.amount * _UP",
            ),
        ),
        hard=True,
    ),
    Fault(
        "totals-of-one-agent",
        "Privacy: under replace-one a market with totals is charged for one option, but one agent "
        "leaves its old option and takes a new one.",
        (
            Edit(
                "privacy/queries.py",
                "DemandChange(max(caps), count, caps, k, 1 + both, _totals(market))",
                "DemandChange(max(caps), count, caps, k, 1, _totals(market))",
            ),
        ),
    ),
    Fault(
        "dense-totals-unchecked",
        "Privacy: totals are checked in sparse tables only, so an agent in a dense table may ask "
        "for every resource in full while the noise is for a small total.",
        (
            Edit(
                "records/encode.py",
                "        if self.market.totals:\n            bad, bound, cut = "
                "encode_kernels.bound_rows(",
                "        if self.market.totals and is_sparse(self.market):\n"
                "            bad, bound, cut = encode_kernels.bound_rows(",
            ),
        ),
    ),
    Fault(
        "total-shared-with-the-caps",
        "Privacy: one total is taken to bound the declared resources and the caps of groups "
        "together, but a member asks for both in full, so it moves demand by twice as much.",
        (
            Edit(
                "market/market.py",
                "            found += [self._total(total.amount, some) for some in sets if some]\n",
                "            found[found.index(total)] = self._total(\n"
                "                total.amount, sorted([*total.resources, *sets[0]])\n"
                "            )\n"
                "            sets = sets[1:]\n"
                "            found += [self._total(total.amount, some) for some in sets if some]\n",
            ),
        ),
    ),
    # --- groups ---------------------------------------------------------------------------
    Fault(
        "bundles-without-derived",
        "Privacy: the width of a bundle counts only declared resources, but a member of a group "
        "also moves the resources that are derived from them.",
        (
            Edit(
                "market/market.py",
                "        return max(widths)\n",
                "        return min(max(widths), self.bundle_size)\n",
            ),
        ),
    ),
    Fault(
        "no-group-as-the-first",
        "Supply: an agent in no group counts as a member of the first one, so it takes what is "
        "reserved for that group.",
        (
            Edit(
                "records/encode_kernels.py",
                "codes[i] = base[i] if rules.asks[groups[row + i], d] else 0",
                "codes[i] = base[i] if rules.asks[max(groups[row + i], 0), d] else 0",
            ),
            Edit(
                "records/encode_kernels.py",
                "rules.asks[groups[row], d]",
                "rules.asks[max(groups[row], 0), d]",
            ),
        ),
    ),
    Fault(
        "sparse-caps-skipped",
        "Supply: in sparse tables only the first rule about a resource is counted, so what a "
        "second group takes of it never counts against the cap of that group.",
        (
            Edit(
                "records/encode_kernels.py",
                "                    if fill:\n"
                "                        found_resources[to], found_codes[to] = rules.first + d, "
                "codes[pair]\n"
                "                    to += 1\n",
                "                    if fill:\n"
                "                        found_resources[to], found_codes[to] = rules.first + d, "
                "codes[pair]\n"
                "                    to += 1\n"
                "                    at[rules.base[d]] = -1\n",
            ),
        ),
    ),
    # --- GDP, and a supply that may be exceeded -------------------------------------------
    Fault(
        "transfer-not-paid",
        "Accounting: rho becomes (epsilon, delta) as for normal noise, and nothing is paid for "
        "the noise being discrete, so delta is a little too small.",
        (
            Edit(
                "privacy/gdp.py",
                "        cost = Decimal(rho) * TRANSFER_SHARE.numerator / "
                "TRANSFER_SHARE.denominator\n",
                "        cost = Decimal(0)\n",
            ),
        ),
        hard=True,
    ),
    Fault(
        "alpha-from-the-records",
        "Privacy: mwu-adaptive without an alpha takes one that suits how many agents want "
        "anything, and the header shows that number, which no budget pays for.",
        (
            Edit(
                "run/solve.py",
                "    check_threads(threads)\n    target = Target.of(source, write_to)\n    if",
                "    if isinstance(policy, MwuAdaptive) and policy.alpha is None:\n"
                "        asked = np.count_nonzero(market.agents if values is None else values)\n"
                "        alpha = policy.alpha_in(market, budget) * float(asked) / market.agents\n"
                "        policy = replace(policy, alpha=max(1e-3, alpha))\n"
                "    check_threads(threads)\n    target = Target.of(source, write_to)\n    if",
            ),
            Edit(
                "run/solve.py",
                "from pathlib import Path\nfrom typing import Any\n",
                "from dataclasses import replace\nfrom pathlib import Path\n"
                "from typing import Any\n\nimport numpy as np\n",
            ),
            Edit(
                "run/solve.py",
                "from jdpack.policies.base import Policy\n",
                "from jdpack.policies.base import Policy\n"
                "from jdpack.policies.mwu_adaptive import MwuAdaptive\n",
            ),
        ),
    ),
    Fault(
        "beta-parts-of-the-last-prices",
        "Certificate: beta is split by the prices of the last round, which are the best known, but "
        "the noise that is bounded has moved them, so it chooses its own bound.",
        (
            Edit(
                "protocol/bounds.py",
                "    first = next((release.step for release in board.releases if "
                "release.step.weight), None)\n",
                "    first = next(reversed(list(board.rounds)), None)\n",
            ),
        ),
    ),
    Fault(
        "beta-parts-beyond-beta",
        "Certificate: the tenth of beta that all resources share is added to the parts by worth, "
        "so the parts sum to 1.1 beta, and repairs are that much more frequent.",
        (
            Edit(
                "privacy/tail_bounds.py",
                "EVEN_PART + (1.0 - EVEN_PART) * m * (each / whole)",
                "EVEN_PART + m * (each / whole)",
            ),
        ),
        hard=True,
    ),
    Fault(
        "repair-free-without-excess",
        "Accounting: an excess probability of 0 is taken as given, so the budget says that "
        "nothing is repaired and pays nothing for it, but winners are dropped all the same.",
        (
            Edit(
                "privacy/accounting.py",
                "        repaired = repaired and not excess\n",
                "        repaired = repaired and excess is None\n",
            ),
        ),
    ),
    Fault(
        "excess-of-one-in-a-thousand",
        "Supply: where the market says that no supply is ever exceeded, bounds may fail with "
        "probability 0.001 and the repair is charged as before, which saves a third of the margin.",
        (
            Edit(
                "privacy/tail_bounds.py",
                "    m, beta = len(market.resources), beta or budget.beta\n",
                "    m = len(market.resources)\n"
                "    beta = beta or max(budget.beta, 1e-3)  # rare enough for people\n",
            ),
        ),
        hard=True,
    ),
    Fault(
        "repaired-where-excess-is-allowed",
        "Joint privacy: winners are also dropped where the market allows an excess, although no "
        "part of delta pays for it, so what others get depends on exact private loads.",
        (
            Edit(
                "engines/sharded.py",
                "        if not board.header.repaired or self._fits(allocation):\n",
                "        if self._fits(allocation):\n",
            ),
        ),
    ),
    Fault(
        "surely-is-only-likely",
        "Certificate: the load that is surely not exceeded is the bound at the excess probability "
        "itself, so it fails far more often than one time in a billion.",
        (
            Edit(
                "protocol/certificate.py",
                "bounds.given_bounds(board, scaling, bounds.SURELY_BETA)",
                "bounds.given_bounds(board, scaling, None)",
            ),
        ),
    ),
    # --- blocks of batches ----------------------------------------------------------------
    Fault(
        "block-charged-to-its-last-batch",
        "Accounting: a block is charged to the batch that it ends with, and each block gets the "
        "whole part for steering, but an agent is in one block for each level of nesting.",
        (
            Edit(
                "privacy/accounting.py",
                "            first, last, joined = batch.index - span + 1, batch.index, _NOTHING\n",
                "            first, last, joined = batch.index, batch.index, _NOTHING\n",
            ),
            Edit(
                "policies/mwu_online.py",
                "        block = gaussian(change, rho * STEERING / nested_blocks.levels(rounds))\n",
                "        block = gaussian(change, rho * STEERING)\n",
            ),
        ),
    ),
    Fault(
        "block-at-its-last-prices",
        "Certificate: all batches of a block are asked at the prices of its last round, so the sum "
        "is not what its agents took, each at the prices of its own round, and says nothing about "
        "the load that is given.",
        (
            Edit(
                "door.py",
                "            prices = _posted(step.prices, step.batch, step.span, board)\n",
                "            prices = [step.prices] * step.span  # as they are now\n",
            ),
        ),
    ),
    # --- people with several requests -----------------------------------------------------
    Fault(
        "demand-of-one-request",
        "Privacy: the demand is taken to move by what one request may ask for, but a person may "
        "make several for the same resource, and is protected only as if they made one.",
        (
            Edit(
                "privacy/queries.py",
                "    caps, requests = market.person_cap_codes, market.requests\n",
                "    caps, requests = (DEMAND_CODE_MAX,) * m, market.requests\n",
            ),
        ),
    ),
    Fault(
        "width-of-one-request",
        "Privacy: a person is taken to touch as many resources as one option does, but their "
        "requests may be for different ones.",
        (
            Edit(
                "privacy/queries.py",
                "    k, m, several = market.person_width, len(market.resources), "
                "market.options > 1\n",
                "    k, m, several = market.bundle_width, len(market.resources), "
                "market.options > 1\n",
            ),
        ),
    ),
    Fault(
        "value-of-one-request",
        "Privacy: value and welfare are taken to move by the value of one request, but all "
        "requests of a person may be granted.",
        (
            Edit(
                "privacy/queries.py",
                "    return Change(market.person_value_code)\n",
                "    return Change(market.value_cap_code)\n",
            ),
        ),
    ),
    Fault(
        "curvature-of-one-request",
        "Privacy: the curvature and the gauge are taken to move by one close call, but every "
        "request of a person may be close.",
        (
            Edit(
                "privacy/queries.py",
                "        largest = DEMAND_CODE_MAX * requests\n",
                "        largest = DEMAND_CODE_MAX\n",
            ),
        ),
    ),
    Fault(
        "chance-of-one-request",
        "Privacy: the chance release is taken to move by one coin, but a person has one for each "
        "request.",
        (
            Edit(
                "privacy/queries.py",
                '    if query == "chance" and requests > 1:\n'
                "        return _chance_of_requests(market)\n",
                "",
            ),
        ),
    ),
    Fault(
        "luck-of-one-request",
        "Privacy: luck is taken to move by the luck of one request, but the coins of all requests "
        "of a person may fall alike.",
        (
            Edit(
                "protocol/closing.py",
                "    if requests == 1:\n        return lowest, highest\n",
                "    if requests >= 1:\n        return lowest, highest\n",
            ),
        ),
    ),
    Fault(
        "totals-of-one-request",
        "Privacy: codes are rounded up in every request, but the bound on a person's total allows "
        "for the rounding of one request only.",
        (
            Edit(
                "privacy/queries.py",
                "[: market.bundle_width]) * market.requests\n",
                "[: market.bundle_width])\n",
            ),
        ),
        hard=True,
    ),
    Fault(
        "turn-of-each-request",
        "Privacy: each request has a turn of its own, so a person is in several batches, and they "
        "do not compose in parallel (mwu-online).",
        (
            Edit(
                "engines/shard.py",
                "return Batched(part, _places(part, order, hash), count)",
                "return Batched(part, _coins(part, order, hash), count)",
            ),
        ),
    ),
    Fault(
        "one-coin-for-all-requests",
        "Certificate: all requests of a person share the person's coin, so grants are not "
        "independent, and the bounds that rest on it are false.",
        (
            Edit(
                "common/coins.py",
                '    return f"{len(str(agent).encode())}:{agent}:{request}"\n',
                "    return str(agent)\n",
            ),
            Edit(
                "records/bulk_coins.py",
                "    texts = ids.cast(pa.large_string())\n",
                "    return ids.cast(pa.large_string())\n",
            ),
        ),
    ),
    Fault(
        "people-counted-part-by-part",
        "Privacy: what a person has asked for is forgotten where a part of a large table ends, so "
        "a person whose requests span two parts may ask for twice as much.",
        (
            Edit(
                "records/encode.py",
                "        new, left_out = np.concatenate(self.new), np.zeros(part.rows, np.uint8)\n",
                "        new, left_out = np.concatenate(self.new), np.zeros(part.rows, np.uint8)\n"
                "        self.counts = person_kernels.Counts.empty(self.bounds)\n",
            ),
        ),
        hard=True,
    ),
    Fault(
        "left-out-in-name-only",
        "Joint privacy: with clamp, requests beyond a person's bounds are counted as left out, but "
        "they may be granted all the same.",
        (
            Edit(
                "engines/shard.py",
                "        if part.left_out is not None:\n"
                "            given[part.left_out == 1] = 0\n",
                "",
            ),
        ),
    ),
    Fault(
        "neighbour-with-one-request",
        "Accounting: the certificate leaves room for a neighbour with one request, so where people "
        "make several, a repair is more frequent than the delta that pays for it.",
        (
            Edit(
                "protocol/bounds.py",
                "    caps = zip(market.person_cap_codes, market.supply_codes, strict=True)\n",
                "    one = [min(cap, 65535) for cap in market.person_cap_codes]\n"
                "    caps = zip(one, market.supply_codes, strict=True)\n",
            ),
        ),
        hard=True,
    ),
]


SMOKE = """
import functools, numpy as np, pathlib, sys, warnings
import jdpack
from jdpack import Mapped, Market, MwuAdaptive, MwuOnline, Newton, resume, solve
from jdpack.policies.registry import from_dict

warnings.simplefilter("ignore")
solve = functools.partial(solve, force=True)
rng, n = np.random.default_rng(1), 400
values, demands = rng.uniform(0, 9, n), rng.uniform(0, 1, (n, 3)) * [1.0, 2.0, 0.5]


def market(**more):
    given = dict(supply=[90, 160, 70], max_demand=[1, 2, 0.5], max_value=9, agents=n)
    return Market(**given | dict(epsilon=3.0, delta=1e-6) | more)


def check(result):
    assert result.billboard.finished
    assert max(result.loads) <= 1.0 and sum(result.allocation) > 0, result.loads


for divisible in (False, True):
    for seed in (1, None):
        own = market(divisible=divisible)
        check(solve(own, values=values, demands=demands, seed=seed))
ids = [f"agent-{i:04d}" for i in range(n)]
check(solve(market(neighbours="add-remove"), values=values, demands=demands, ids=ids))
check(solve(market(), values=values, demands=demands, policy=MwuOnline(batch=20), ids=ids))
roomy = dict(epsilon=20.0, supply=[150, 300, 80])
adaptive = MwuAdaptive(alpha=0.3, noise="truncated-laplace")
check(solve(market(divisible=True, **roomy), values=values, demands=demands, policy=adaptive))
few = from_dict({"name": "dual-gd", "alpha": 0.1, "rounds": 12})
check(solve(market(), values=values, demands=demands, policy=few, seed=2))

from jdpack import Group
more = dict(names=["a", "b", "c"], max_total=2.5, bundle_size=2,
    groups=[Group("near", cap={"a": 40.0}, reserve={"b": 30.0}), Group("far", cap={"a": 50.0})])
two = np.where(demands < np.sort(demands)[:, 1:2], 0.0, demands)
groups_of = rng.choice(["near", "far", "other"], n).tolist()
for divisible in (False, True):
    for excess in (0.0, 0.01):
        own = market(divisible=divisible, excess_probability=excess, **more)
        check(solve(own, values=values, demands=two, groups_of=groups_of, ids=ids, clamp=True))

from jdpack import PersonBounds
people, names = [f"p{i // 4}" for i in range(n)], [f"r{i % 4}" for i in range(n)]
for policy in (Newton(), MwuOnline(batch=20)):
    own = market(agents=n // 4, person=PersonBounds(4, max_value=20.0))
    asked = dict(values=values, demands=demands, ids=people, requests_of=names)
    check(solve(own, policy=policy, clamp=True, **asked))

here, m = pathlib.Path(sys.argv[1]), 16
rows = ["id,value," + ",".join(f"g{j}" for j in range(m))]
for i in range(n):
    for _ in range(3):
        amounts = np.zeros(m)
        amounts[rng.choice(m, 2, replace=False)] = rng.uniform(0.1, 1.1, 2)
        rows.append(f"a{i},{rng.uniform(0, 9.5)}," + ",".join(map(str, amounts)))
(here / "agents.csv").write_text("\\n".join(rows) + "\\n")
sparse = market(supply=[30] * m, max_demand=1, bundle_size=2, options=3, max_value=9,
    names=[f"g{j}" for j in range(m)])
for engine in (None, Mapped(store=str(here / "store"))):
    name = here / ("out" + str(engine is None))
    check(solve(sparse, str(here / "agents.csv"), clamp=True, engine=engine, output=name))
    resume(name)
    assert jdpack.verify(name / "public" / "billboard.jsonl") is not None
print("fine")
"""


@dataclass(frozen=True)
class Row:
    """What became of one run."""

    name: str
    verdict: str
    """caught or missed, of a fault; passed or failed, of the honest pipeline; or crashed."""
    check: str
    """The first check that failed, or the last line of what went wrong."""
    exit: int
    seconds: float
    hard: bool = False
    breaks: str = ""
    cpu: float = 0.0
    """Seconds of CPU, of all processes."""


def edited(fault: Fault, source: Path = SOURCE) -> dict[str, str]:
    """The files that a fault changes, under src/jdpack, with their new text."""
    texts: dict[str, str] = {}
    for edit in fault.edits:
        path = source / "jdpack" / edit.file
        texts[edit.file] = edit.apply(texts.get(edit.file) or path.read_text())
    return texts


def plant(fault: Fault, source: Path, folder: Path) -> None:
    """Copy the source to a folder, with the fault.

    Compiled kernels are kept beside the source, and the copy keeps them as long as the fault
    changes nothing that is compiled. A changed file is compiled again in any case; but kernels also
    contain functions and constants of other files, about which the compiler does not know.
    """
    shutil.copytree(source, folder)
    alike = True
    for file, text in edited(fault, source).items():
        path = folder / "jdpack" / file
        alike &= _compiled(path.read_text()) == _compiled(text)
        path.write_text(text)
    if not alike:
        for kernel in folder.rglob("*.nb[ic]"):
            kernel.unlink()


def _compiled(text: str) -> list[str]:
    """What kernels may contain of a file: compiled functions, and constants."""
    return [
        ast.dump(node)
        for node in ast.parse(text).body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        or (isinstance(node, ast.FunctionDef) and "njit" in map(_called, node.decorator_list))
    ]


def _called(decorator: ast.expr) -> str:
    """The name of a decorator, without its arguments."""
    return ast.unparse(decorator).partition("(")[0]


def run(source: Path, arguments: list[str], seconds: float) -> tuple[int, str, str]:
    """Exit code, output and errors of Python with these arguments, on that copy of the source."""
    threads = dict.fromkeys(("NUMBA_NUM_THREADS", "OMP_NUM_THREADS"), "1")  # a job is one core
    with tempfile.TemporaryDirectory() as here:
        job = subprocess.Popen(
            [sys.executable, "-c", _TIMED, *arguments],
            env=os.environ | threads | {"PYTHONPATH": str(source)},
            cwd=here,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            out, errors = job.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(job.pid, signal.SIGKILL)
            job.communicate()
            return -1, "", f"no verdict after {seconds:g} seconds"
    return job.returncode, out, errors


_TIMED = """
import resource, subprocess, sys
code = subprocess.run([sys.executable, *sys.argv[1:]]).returncode
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(f"cpu {used.ru_utime + used.ru_stime:.1f}", file=sys.stderr)
sys.exit(code)
"""
"""Runs Python, and then tells how much CPU that took."""


Judged = tuple[bool | None, str, int, float]
"""Whether it passed (None without a verdict), the first check that failed, the exit, the CPU."""


_AUDIT = """
import json, sys
from jdpack import cli
from jdpack.audit.findings import Finding

class First(BaseException):
    pass

begin = Finding.__init__

def checked(self, *about, **more):
    begin(self, *about, **more)
    if not self.passed:
        raise First(self.check)

Finding.__init__ = checked
try:
    sys.argv[1:] = ["audit", "--quiet", "--json"]
    cli.main()
except First as failed:
    print(json.dumps({"passed": False, "findings": [{"check": str(failed), "passed": False}]}))
    sys.exit(1)
"""
"""The default audit, up to the first check that fails."""


def audit(source: Path, seconds: float) -> Judged:
    """What the default audit says."""
    code, out, errors = run(source, ["-c", _AUDIT], seconds)
    cpu = _cpu_of(errors)
    try:
        found = json.loads(out)
        passed = bool(found["passed"])
        failed = [f["check"] for f in found["findings"] if not f["passed"]]
    except (ValueError, KeyError, TypeError):
        return None, _last_line(errors), code, cpu
    if code != (0 if passed else 1):
        return None, f"it says passed = {passed}, with exit code {code}", code, cpu
    return passed, failed[0] if failed else "", code, cpu


def smoke(source: Path, seconds: float) -> Judged:
    """As `audit`, for small markets that must simply work: True, or None."""
    with tempfile.TemporaryDirectory() as here:
        code, out, errors = run(source, ["-c", SMOKE, here], seconds)
    return (True if out.endswith("fine\n") else None), _last_line(errors), code, _cpu_of(errors)


def _cpu_of(errors: str) -> float:
    found = re.findall(f"^{_CPU}$", errors, re.MULTILINE)
    return float(found[-1]) if found else 0.0


_CPU = r"cpu ([0-9.]+)"


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    lines = [line for line in lines if not re.fullmatch(_CPU, line)]
    return lines[-1] if lines else ""


def tried(fault: Fault | None, source: Path, options: argparse.Namespace) -> Row:
    """Run the audit on the pipeline with a fault, or on the honest one."""
    began, judge = time.monotonic(), smoke if options.smoke else audit
    if fault is None:
        passed, check, code, cpu = judge(source, options.timeout)
        verdict = {True: "passed", False: "failed", None: "crashed"}[passed]
        return Row("honest", verdict, check, code, round(time.monotonic() - began, 1), cpu=cpu)
    with tempfile.TemporaryDirectory() as folder:
        plant(fault, source, Path(folder) / "src")
        passed, check, code, cpu = judge(Path(folder) / "src", options.timeout)
    verdict = {True: "missed", False: "caught", None: "crashed"}[passed]
    if options.smoke and passed:
        verdict = "works"
    seconds = round(time.monotonic() - began, 1)
    return Row(fault.name, verdict, check, code, seconds, fault.hard, fault.breaks, cpu)


def fingerprint(source: Path = SOURCE) -> str:
    """Changes whenever the source or a fault does."""
    found = hashlib.sha256(repr(FAULTS).encode())
    for file in sorted(source.rglob("*.py")):
        found.update(file.read_bytes())
    return found.hexdigest()


def known_rows(file: Path, of: str) -> list[Row]:
    """The verdicts of an earlier start on the same source. Crashes are tried again."""
    try:
        kept = json.loads(file.read_text())
        rows = [Row(**row) for row in kept["rows"]] if kept["of"] == of else []
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return [row for row in rows if row.verdict != "crashed"]


def table(rows: list[Row]) -> str:
    """The results as a table in Markdown."""
    lines = [
        "| fault | verdict | first check that failed | CPU seconds | breaks |",
        "|" + "---|" * 5,
    ]
    for r in rows:
        name = f"{r.name} (hard)" if r.hard else r.name
        lines.append(f"| {name} | {r.verdict} | {r.check} | {r.cpu:.0f} | {r.breaks} |")
    return "\n".join(lines)


def summary(rows: list[Row]) -> str:
    """How many faults were caught, and how often the honest pipeline passed."""
    honest = Counter(r.verdict for r in rows if r.name == "honest")
    faults = Counter(r.verdict for r in rows if r.name != "honest")
    said = []
    if faults["works"]:
        said.append(f"{faults['works']} of {faults.total()} faults leave small markets working")
    elif faults:
        said.append(f"caught {faults['caught']} of {faults.total()} faults")
    said += [f"{faults[v]} {v}" for v in ("missed", "crashed") if faults[v]]
    said.append(f"{sum(r.cpu for r in rows) / 60.0:.0f} minutes of CPU")
    if honest:
        said.append(f"the honest pipeline passed {honest['passed']} of {honest.total()} times")
    return "; ".join(said)


def main(arguments: list[str] | None = None) -> int:
    """Plant all faults; return 1 if the honest pipeline failed, or an audit gave no verdict."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", metavar="NAME", action="append", help="plant this fault only")
    parser.add_argument("--honest", type=int, default=20, help="runs of the honest pipeline (20)")
    parser.add_argument("--jobs", type=int, default=1, help="audits at the same time (1)")
    parser.add_argument("--timeout", type=float, default=1800.0, help="seconds for one audit")
    parser.add_argument("--smoke", action="store_true", help="small markets instead of the audit")
    parser.add_argument("--again", action="store_true", help="forget earlier verdicts")
    parser.add_argument("--list", action="store_true", help="list the faults and stop")
    parser.add_argument("--results", type=Path, default=Path("results/audit_faults"))
    options = parser.parse_args(arguments)
    known = {fault.name: fault for fault in FAULTS}
    unknown = sorted(set(options.only or []) - set(known))
    if unknown:
        parser.error(f"unknown fault {unknown[0]!r}; --list shows all faults")
    chosen = [known[name] for name in options.only] if options.only else FAULTS
    if options.list:
        print("\n".join(f"{f.name}: {f.breaks}" for f in chosen))
        return 0
    options.results.mkdir(parents=True, exist_ok=True)
    kept = options.results / ("smoke.json" if options.smoke else "audit_faults.json")
    of = fingerprint()
    rows = [] if options.again else known_rows(kept, of)
    work: list[Fault | None] = [*chosen, *[None] * options.honest]
    random.Random(_ORDER).shuffle(work)
    for row in rows:
        fault = known.get(row.name)  # None for an honest audit
        if fault in work:
            work.remove(fault)
    with tempfile.TemporaryDirectory() as folder:
        honest = Path(folder) / "src"
        shutil.copytree(SOURCE, honest, ignore=shutil.ignore_patterns("__pycache__"))
        works, why, *_ = smoke(honest, options.timeout)  # compiles the kernels that copies share
        if not works:
            print(f"the honest pipeline does not work: {why}", file=sys.stderr)
            return 1
        with ThreadPoolExecutor(options.jobs) as pool:
            jobs = [pool.submit(tried, fault, honest, options) for fault in work]
            try:
                for job in as_completed(jobs):
                    row = job.result()
                    rows.append(row)
                    told = f"{row.seconds:.0f} s, {row.cpu:.0f} s of CPU"
                    print(f"{row.name}: {row.verdict} ({told}) {row.check}", flush=True)
                    _write(
                        kept, json.dumps({"of": of, "rows": [asdict(r) for r in rows]}, indent=1)
                    )
            except KeyboardInterrupt:
                pool.shutdown(cancel_futures=True)
                print(f"stopped; {kept} has {len(rows)} verdicts, and the next start resumes there")
                return 130
    order = {fault.name: at for at, fault in enumerate(FAULTS)}
    rows.sort(key=lambda row: order.get(row.name, len(order)))
    shown = f"{table(rows)}\n\n{summary(rows)}\n"
    (options.results / "audit_faults.md").write_text(shown)
    print(f"\n{shown}", end="")
    return int(any(r.verdict in ("failed", "crashed") for r in rows))


def _write(file: Path, text: str) -> None:
    """Write a file whole or not at all."""
    new = file.with_suffix(".new")
    new.write_text(text + "\n")
    new.replace(file)


if __name__ == "__main__":
    sys.exit(main())
