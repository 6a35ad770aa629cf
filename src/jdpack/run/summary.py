"""Private: the closing summary of a run: what was guaranteed and spent. For the curator."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

from jdpack.ledger.text import ledger_words
from jdpack.market.grid import SHARE
from jdpack.market.market import Market
from jdpack.pages.billboard_page import resource_rows
from jdpack.pages.number_text import (
    factor_text,
    percent,
    percent_up,
    price_text,
    short,
    short_down,
    short_up,
)
from jdpack.protocol.verify import excess_words
from jdpack.run import granted
from jdpack.run.result import ExactNumbers, Result

_LINES = 12  # the most of one kind


def as_dict(result: Result) -> dict[str, Any]:
    """Everything that the text says, for programs. Do not publish `curator`."""
    header, certificate = result.billboard.header, result.certificate
    return {
        "private": header.private,
        "market": header.market.name,
        "policy": dict(header.policy),
        "epsilon": header.budget.epsilon if header.budget.epsilon != math.inf else None,
        "delta": header.budget.delta,
        "neighbours": header.market.neighbours.value,
        "rho": header.budget.rho if header.budget.rho != math.inf else None,
        "rho_spent": float(result.spent.rho) if result.spent.rho != math.inf else None,
        "rounds": sum(1 for _ in result.billboard.rounds),
        "releases": len(result.billboard.releases),
        "factor": min(certificate.factors) / SHARE,
        "beta": certificate.beta,
        "excess_at_most": certificate.excess_at_most,
        "welfare_at_least": certificate.welfare_at_least,
        "optimum_at_most": certificate.optimum_at_most,
        "ratio_at_least": certificate.ratio_at_least,
        "value_beta": certificate.value_beta,
        "ledger": None if result.balance is None else result.balance.to_dict(),
        "weakness": header.weakness,
        "warning": None if result.warning is None else str(result.warning),
        "resources": resource_rows(result.billboard),
        "curator": asdict(result.curator),
    }


def as_text(result: Result, output: Path | None = None) -> str:
    """The summary for people."""
    s, market = as_dict(result), result.billboard.header.market
    curator = result.curator
    bounds = "at most " if s["neighbours"] == "add-remove" else ""
    lines = [
        f"{market.name}: {len(market.resources)} resources, {bounds}{market.agents:,} agents"
        + (f" with up to {market.requests:,} requests each" if market.requests > 1 else ""),
        "",
        "guaranteed (public)",
    ]
    if s["private"]:
        lines.append(
            f"  privacy   ({s['epsilon']:g}, {s['delta']:g})-joint differential privacy, "
            f"{s['neighbours']} neighbours"
        )
        if market.requests > 1:
            lines.append(
                "            for everything that one person asked for, however many requests"
            )
        for entry in market.provenance:
            cost = f"({entry.epsilon:g}, {entry.delta:g})"
            lines.append(f"            its bounds were chosen privately, for {cost} more")
        if s["weakness"] is not None:
            lines.append(f"  warning   {s['weakness']}")
    else:
        lines.append(f"  privacy   NONE: {result.billboard.header.why_not_private}")
    may_exceed = excess_words(result.billboard)
    if may_exceed is None:
        lines.append(f"  supply    never exceeded; certified with probability 1 - {s['beta']:.1g}")
    else:
        lines += [f"  supply    {may_exceed}", "            nothing is repaired"]
    lines += [
        *_value(s),
        *_scale(market, s),
        "final prices, medians of the rounds that count (public)",
    ]
    lines += _each("price", market, [_price(market, j, r) for j, r in enumerate(s["resources"])])
    lines.append("spent (public)")
    if s["rho"] is not None:
        lines.append(
            f"  rho       {s['rho_spent']:.6g} of {s['rho']:.6g} in {s['releases']} releases, "
            f"{s['rounds']} rounds that count"
        )
    else:
        lines.append(f"  rho       all privacy, in {s['releases']} exact answers")
    lines += [
        f"  ledger    {ledger_words(result.balance)}",
        "curator only (exact, do not publish)",
        f"  winners   {curator.winners:,} of {_all(market, curator)}{_shares(market, curator)}",
        f"  value     {short(curator.welfare)} in total",
        f"  clamped   {curator.clamped:,} numbers beyond the public bounds",
    ]
    loads = [
        f"{percent(load):>6}  (certified at most {percent_up(row['load_at_most']):>6})"
        for row, load in zip(s["resources"], curator.loads, strict=True)
    ]
    lines += _each("load", market, loads)
    if curator.dropped:
        who = "agents" if market.requests == 1 else "requests"
        lines.append(f"  repair    the certified bound failed: {curator.dropped:,} {who} dropped")
    if output is not None:
        lines += [
            "",
            f"public    {output / 'public' / 'index.html'}",
            f"          {output / 'public' / 'billboard.jsonl'}",
            *_private(output / "private"),
        ]
    return "\n".join(lines)


def _value(s: dict[str, Any]) -> list[str]:
    """What is certified about value, line by line; totals are rounded to the safe side."""
    ratio, optimum = s["ratio_at_least"], s["optimum_at_most"]
    total = f"a total of at least {short_down(s['welfare_at_least'])}"
    if optimum is not None:
        total += f"; the optimum at most {short_up(optimum)}"
    lines = [total, f"with probability {1 - s['value_beta']:g}"]
    if ratio is not None:
        share = f"at least {math.floor(1e4 * ratio) / 100:.2f}% of the optimum"
        lines = [f"{share} (proved directly: sharper than the quotient of the totals)", *lines]
    return [f"  {'' if i else 'value':<8}  {line}" for i, line in enumerate(lines)]


def _scale(market: Market, s: dict[str, Any]) -> list[str]:
    """The factors by which shares are scaled, or the probability with which grants are kept.

    One line per resource if they differ.
    """
    if not market.divisible:
        return [f"  scale     grants are kept with probability {s['factor']:.4f} or more"]
    factors = [row["factor"] for row in s["resources"]]
    if min(factors) == max(factors):
        return [f"  scale     shares times {s['factor']:.4f}"]
    texts = [f"shares times {factor_text(factor)}" for factor in factors]
    return [
        *_each("scale", market, texts),
        "            the smallest factor of what an option asks for counts",
    ]


def _price(market: Market, resource: int, row: dict[str, Any]) -> str:
    """The final price of a unit, and the supply."""
    supply = f"{short(row['supply'])} {row['unit']}".strip()
    return f"{price_text(market, resource, row['price'])} a unit, of {supply}"


def _all(market: Market, curator: ExactNumbers) -> str:
    """Those who could have won: agents, or requests of agents."""
    if market.requests == 1:
        return f"{curator.agents:,} agents"
    return f"{curator.requests:,} requests of {curator.agents:,} agents"


def _shares(market: Market, curator: ExactNumbers) -> str:
    """The mean share of divisible goods: many get some, few get all."""
    if curator.mean_share is None:
        return ""
    who = "agents" if market.requests == 1 else "requests"
    return f"; the mean share, over all {who}, is {percent(curator.mean_share)}"


def _each(label: str, market: Market, texts: list[str]) -> list[str]:
    """One line for each of the first resources."""
    width = max(len(r.name) for r in market.resources)
    lines = [
        f"  {label:<8}  {r.name:<{width}}  {text}"
        for r, text in zip(market.resources[:_LINES], texts, strict=False)
    ]
    if len(texts) > _LINES:
        lines.append(f"  {label:<8}  ... and {len(texts) - _LINES} more in the report")
    return lines


def _private(private: Path) -> list[str]:
    """The private files. A cluster's workers write their allocations to a folder."""
    folder = private / "allocation"
    files = [private / granted.FILE, folder if folder.is_dir() else folder.with_suffix(".parquet")]
    found = [*(file for file in files if file.exists()), private / "report.html"]
    return [f"{'' if i else 'private':<8}  {file}" for i, file in enumerate(found)]
