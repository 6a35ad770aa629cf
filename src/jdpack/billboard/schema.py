"""Public: the lines of a billboard, to JSON and back."""

from __future__ import annotations

import math
import re
from dataclasses import asdict, replace
from typing import Any, get_args

from jdpack.billboard.lines import WEIGHT_SUM_MAX, Certificate, Header, Release, Seed, Step
from jdpack.common.batches import BATCHES_MAX, Batch
from jdpack.common.coins import SHA256, SIPHASH, CoinHash
from jdpack.errors import BillboardError, BudgetError
from jdpack.market.grid import PRICE_CODE_MAX, SHARE
from jdpack.market.market import Market
from jdpack.privacy import noise as noises
from jdpack.privacy.accounting import Budget
from jdpack.privacy.queries import CLOSING, Query, width

SCHEMA = 2

BY_GRANTS = "by grants"
"""What headers say whose certified ratio rests on measured grants."""

ANSWER_MAX = 2**64
"""Sums and noise are both below 2^63 in absolute value."""


def header_to_dict(header: Header) -> dict[str, Any]:
    """The header as JSON. It names the hash of the coins only if that is not the first one, and
    what the ratio rests on only if grants are measured.
    """
    data = {
        "type": "header",
        "schema": SCHEMA,
        "private": header.private,
        "market": header.market.to_dict(),
        "policy": dict(header.policy),
        "budget": {k: None if v == math.inf else v for k, v in header.budget.to_dict().items()},
        "seed_commitment": header.commitment,
    }
    if header.ratio_by_grants:
        data["ratio"] = BY_GRANTS
    return data if header.coin_hash == SIPHASH else data | {"coin_hash": header.coin_hash}


def header_from_dict(data: dict[str, Any]) -> Header:
    """The header from JSON; refuses everything that `header_to_dict` would not write."""
    match data:
        case {
            "type": "header",
            "schema": int(schema),
            "private": bool(private),
            "market": dict(market),
            "policy": dict(policy),
            "budget": dict(budget),
            "seed_commitment": str(commitment),
        } if schema == SCHEMA:
            budget = {k: math.inf if v is None else v for k, v in budget.items()}
            try:
                parts = Budget.from_dict(budget)
            except BudgetError:
                raise BillboardError("its budget is not one of schema 2") from None
            endless = [k for k, v in budget.items() if v == math.inf]
            if endless and (endless != ["epsilon", "rho"] or private):
                raise BillboardError("its budget is infinite where it cannot be")
            if re.fullmatch("[0-9a-f]{64}", commitment) is None:
                raise BillboardError(f"seed commitment {commitment!r} is not a SHA-256")
            hash: CoinHash = data.get("coin_hash", SIPHASH)
            if "coin_hash" in data and hash != SHA256:
                raise BillboardError(f"coin hash {hash!r} is not one that this version knows")
            header = Header(Market.from_dict(market), policy, parts, commitment, private, hash)
            if "ratio" in data and (data["ratio"] != BY_GRANTS or not header.measured):
                raise BillboardError(f"ratio {data['ratio']!r} is not one that this version knows")
            return replace(header, earlier=header.measured and "ratio" not in data)
        case {"type": "header", "schema": schema} if schema != SCHEMA:
            raise BillboardError(
                f"schema {schema!r} is not {SCHEMA}, which this version reads; "
                "use the version of jdpack that wrote it"
            )
    raise BillboardError("it is not a header of schema 2")


def line_to_dict(posted: Release | Certificate | Seed) -> dict[str, Any]:
    """A line as JSON."""
    match posted:
        case Release(step, answer):
            return {
                "type": "release",
                "query": step.query,
                "prices": list(step.prices),
                "noise": step.noise.to_dict(),
                "weight": step.weight,
                **({"batch": [step.batch.index, step.batch.count]} if step.batch else {}),
                **({"span": step.span} if step.span != 1 else {}),
                "answer": list(answer),
            }
        case Certificate():
            surely = posted.load_surely
            return {
                "type": "certificate",
                **asdict(posted),
                "factors": list(posted.factors),
                "load_at_most": list(posted.load_at_most),
                "load_surely": None if surely is None else list(surely),
            }
        case Seed(seed):
            return {"type": "seed", "seed": seed.hex()}


def line_from_dict(data: dict[str, Any], market: Market) -> Release | Certificate | Seed:
    """A line from JSON; refuses everything that `line_to_dict` would not write."""
    m = len(market.resources)
    match data:
        case {
            "type": "release",
            "query": query,
            "prices": list(prices),
            "noise": dict(noise),
            "weight": int(weight),
            "answer": list(answer),
        }:
            if query not in get_args(Query):
                raise BillboardError(f"query {query!r} is not known")
            posted = 0 if query in CLOSING else m
            if not _whole(prices, posted) or not all(0 <= p <= PRICE_CODE_MAX for p in prices):
                raise BillboardError(f"its prices are not {posted} price codes")
            count = width(market, query)
            if not _whole(answer, count) or max(map(abs, answer)) > ANSWER_MAX:
                raise BillboardError(f"its answer is not {count} whole numbers")
            fits = _whole([weight], 1) and 0 <= weight <= WEIGHT_SUM_MAX
            if not fits or (weight and query != "demand"):
                raise BillboardError(f"weight {weight} is out of range")
            added = noises.from_dict(noise)
            if len(noises.deviation(added)) not in (1, count):
                raise BillboardError(f"its noise has other than 1 or {count} scales")
            batch = _batch(data["batch"]) if "batch" in data else None
            span = data.get("span", 1)
            if not _whole([span], 1):
                raise BillboardError(f"span {span!r} is not a whole number")
            step = Step(query, tuple(prices), added, weight, batch, span)
            return Release(step, tuple(answer))
        case {
            "type": "certificate",
            "factors": list(factors),
            "load_at_most": list(loads),
            "beta": float(beta),
            "welfare_at_least": float(welfare),
            "optimum_at_most": float() | None as optimum,
            "ratio_at_least": float() | None as ratio,
            "value_beta": float(value_beta),
            "load_surely": list() | None as surely,
        }:
            if not _whole(factors, m) or not all(0 <= f <= SHARE for f in factors):
                raise BillboardError(f"its scale factors are not {m} numbers from 0 to {SHARE}")
            for bounds in (loads, surely):
                if bounds is not None and not _floats(bounds, m):
                    raise BillboardError(f"its load bounds are not {m} numbers")
            return Certificate(
                factors=tuple(factors),
                load_at_most=tuple(loads),
                beta=beta,
                welfare_at_least=welfare,
                optimum_at_most=optimum,
                ratio_at_least=ratio,
                value_beta=value_beta,
                load_surely=None if surely is None else tuple(surely),
            )
        case {"type": "seed", "seed": str(text)}:
            try:
                seed = bytes.fromhex(text)
            except ValueError:
                raise BillboardError(f"seed {text!r} is not hexadecimal") from None
            if len(seed) != 16:
                raise BillboardError(f"the seed has {len(seed)} bytes, not 16")
            return Seed(seed)
    raise BillboardError(f"a line of type {data.get('type')!r} is not one of schema 2")


def _batch(data: object) -> Batch:
    if not (isinstance(data, list) and _whole(data, 2) and 0 <= data[0] < data[1] <= BATCHES_MAX):
        raise BillboardError(f"batch {data!r} is not one of at most {BATCHES_MAX}")
    return Batch(*data)


def _floats(values: list[Any], count: int) -> bool:
    return len(values) == count and all(isinstance(v, float) for v in values)


def _whole(values: list[Any], count: int) -> bool:
    return len(values) == count and all(type(v) is int for v in values)
