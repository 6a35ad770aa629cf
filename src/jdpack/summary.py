"""Private: the closing summary of a run, what was guaranteed and spent. For the curator."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

from jdpack.billboard import SHARE
from jdpack.ledger.balance import Balance
from jdpack.report import resource_rows
from jdpack.solve import Result


def as_dict(result: Result) -> dict[str, Any]:
    """Everything that the text says, for programs; `curator` is not to be published."""
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
        "welfare_at_least": certificate.welfare_at_least,
        "optimum_at_most": certificate.optimum_at_most,
        "ratio_at_least": certificate.ratio_at_least,
        "value_beta": certificate.value_beta,
        "ledger": None if result.balance is None else result.balance.to_dict(),
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
        f"{market.name}: {len(market.resources)} resources, {bounds}{market.agents:,} agents",
        "",
        "guaranteed (public)",
    ]
    if s["private"]:
        lines.append(
            f"  privacy   ({s['epsilon']:g}, {s['delta']:g})-joint differential privacy, "
            f"{s['neighbours']} neighbours"
        )
    else:
        lines.append(f"  privacy   NONE: {result.billboard.header.why_not_private}")
    lines.append(f"  supply    never exceeded; certified with probability 1 - {s['beta']:.1g}")
    ratio = s["ratio_at_least"]
    value = (
        "" if ratio is None else f"at least {math.floor(1e4 * ratio) / 100:.2f}% of the optimum; "
    )
    value += f"a total of at least {s['welfare_at_least']:,.6g}"
    if s["optimum_at_most"] is not None:
        value += f", the optimum at most {s['optimum_at_most']:,.6g}"
    scale = f"shares times {s['factor']:.4f}"
    if not market.divisible:
        scale = f"what coins grant is kept at odds of {s['factor']:.4f} or more"
    lines += [
        f"  value     {value}",
        f"            with probability {1 - s['value_beta']:g}",
        f"  scale     {scale}",
        "spent (public)",
    ]
    if s["rho"] is not None:
        lines.append(
            f"  rho       {s['rho_spent']:.6g} of {s['rho']:.6g} in {s['releases']} releases, "
            f"{s['rounds']} rounds that count"
        )
    else:
        lines.append(f"  rho       all privacy, in {s['releases']} exact answers")
    lines += [
        f"  ledger    {_ledger(result.balance)}",
        "curator only (exact, do not publish)",
        f"  winners   {curator.winners:,} of {curator.agents:,} agents, "
        f"total value {curator.welfare:,.6g}",
        f"  clamped   {curator.clamped:,} numbers beyond the public bounds",
    ]
    width = max(len(r.name) for r in market.resources)
    rows = list(zip(s["resources"], curator.loads, strict=True))
    for row, load in rows[:12]:
        lines.append(
            f"  load      {row['name']:<{width}}  {100 * load:5.1f}%  "
            f"(certified at most {100 * row['load_at_most']:5.1f}%)"
        )
    if len(rows) > 12:
        lines.append(f"  load      ... and {len(rows) - 12} more in the report")
    if curator.dropped:
        lines.append(f"  repair    the certified bound failed: {curator.dropped:,} agents dropped")
    if output is not None:
        lines += [
            "",
            f"public    {output / 'public' / 'index.html'}",
            f"          {output / 'public' / 'billboard.jsonl'}",
            f"private   {_allocation(output / 'private')}",
            f"          {output / 'private' / 'report.html'}",
        ]
    return "\n".join(lines)


def _ledger(balance: Balance | None) -> str:
    if balance is None:
        return "none: nothing tracks what other runs spend on the same people"
    epsilon, delta = balance.spent
    return (
        f"({epsilon:.4g}, {delta:.4g}) of ({balance.epsilon:g}, {balance.delta:g}) is spent on "
        f"{balance.dataset!r}, in {balance.runs} run{'s' if balance.runs > 1 else ''}"
    )


def _allocation(private: Path) -> Path:
    """One file, or the folder to which the workers of a cluster write theirs."""
    folder = private / "allocation"
    return folder if folder.is_dir() else private / "allocation.parquet"
