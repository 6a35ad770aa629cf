"""Public: a ledger in words, and as JSON, for `jdpack ledger`."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

from jdpack.ledger.balance import Balance, cost
from jdpack.ledger.entries import Entry
from jdpack.ledger.ledger import Ledger, Verified
from jdpack.privacy.accounting import Budget


def show(ledger: Ledger, dataset: str | None = None, budget: Budget | None = None) -> str:
    """For every data set, or one: its total, what is spent, what is left, and its runs.

    It also says how many more runs of a budget fit; without one, runs like the last.
    """
    return "\n\n".join(_block(balance, budget) for balance in _balances(ledger, dataset))


def show_dict(
    ledger: Ledger, dataset: str | None = None, budget: Budget | None = None
) -> dict[str, Any]:
    """Everything that `show` says, for programs."""
    balances = _balances(ledger, dataset)
    return {
        "head": ledger.head,
        "datasets": [{**b.to_dict(), "fits": _fits_dict(b, budget or b.last)} for b in balances],
    }


def history(ledger: Ledger, dataset: str | None = None) -> str:
    """One line per entry, oldest first."""
    entries = ledger.entries(dataset)
    width = max(len(entry.dataset) for entry in entries)
    return "\n".join(
        f"{e.number:>5}  {e.time}  {e.kind:<7}  {e.dataset:<{width}}  {_what(e)}" for e in entries
    )


def history_dict(ledger: Ledger, dataset: str | None = None) -> list[dict[str, Any]]:
    """The entries, for programs."""
    return [
        {
            "number": entry.number,
            "time": entry.time,
            "type": entry.kind,
            "dataset": entry.dataset,
            **entry.data,
            "hash": entry.hash,
        }
        for entry in ledger.entries(dataset)
    ]


def verified(found: Verified) -> str:
    """What a verification found, and the head to keep."""
    since = "" if found.since is None else f", {found.since} of them after the given head"
    return (
        f"in order: {_many(found.entries, 'entry', 'entries')}{since}; "
        f"{_many(found.runs, 'run')} on {_many(found.datasets, 'data set')}, {found.open} open\n"
        f"head {found.head}"
    )


def _balances(ledger: Ledger, dataset: str | None) -> list[Balance]:
    return [ledger.balance(name) for name in ([dataset] if dataset else ledger.datasets)]


def _fits_dict(balance: Balance, budget: Budget | None) -> dict[str, Any] | None:
    if budget is None:
        return None
    of = {"epsilon": budget.epsilon, "delta": budget.delta, "truncation": budget.truncation}
    return {**of, "runs": balance.how_many(budget)}


def _fits(balance: Balance, budget: Budget | None) -> list[str]:
    """How many more runs of a budget fit; without one, runs like the last."""
    what, budget = ("like the last", balance.last) if budget is None else ("of", budget)
    if budget is None:
        return []
    count = balance.how_many(budget)
    runs = f"{count} more run{'' if count == 1 else 's'}" if count else "no more runs"
    line = f"  fits      {runs} {what} ({budget.epsilon:g}, {budget.delta:g})"
    would = None if count else balance.would_fit(budget)
    return [line + (f"; one of ({would[0]:g}, {would[1]:g}) would" if would else "")]


def _block(balance: Balance, budget: Budget | None) -> str:
    epsilon, delta = balance.spent
    runs = "repairs" if balance.accounting == "gdp" else "the runs' deltas"
    lines = [
        balance.dataset,
        f"  total     epsilon {balance.epsilon:g}, delta {balance.delta:g}: what all runs together "
        "may reveal about anyone",
        f"            (joint differential privacy, {balance.neighbours.value} neighbours)",
        f"  spent     epsilon {epsilon:.4g}, delta {delta:.4g}, by {_many(balance.runs, 'run')}",
        *_why(balance),
        f"  left      {_percent(balance.rho_left, balance.rho_limit)} for noise (rho "
        f"{float(balance.rho_left):.6g} of {float(balance.rho_limit):.6g}), "
        f"{_percent(balance.delta_left, balance.delta_limit)} for {runs} (delta "
        f"{float(balance.delta_left):.4g} of {float(balance.delta_limit):.4g})",
    ]
    if balance.runs == 0:
        lines.append("  first     the first run may take the whole total; then nothing is left")
    lines += _fits(balance, budget)
    if balance.accounting == "zcdp":
        lines.append("  note      its runs are added up in zCDP, which takes any kind of noise")
    lines += [f"  open      {run}" for run in balance.open]
    return "\n".join(lines)


def _why(balance: Balance) -> list[str]:
    """Why a run of epsilon 1 shows as less, unless the total is a single run's own."""
    if balance.last is None or balance.spent == balance.alone:
        return []
    noise = float(Fraction(balance.delta) - balance.delta_limit)
    return [
        f"            Epsilon is counted at delta {noise:.4g}, the part of the total that is for "
        "noise. At a",
        "            larger delta the same noise counts for a smaller epsilon, so a run of "
        f"epsilon {balance.last.epsilon:g} at",
        f"            delta {balance.last.delta:g} shows as {_alone(balance):.3g}. Epsilons do not "
        "add up; what noise costs (rho) does.",
    ]


def _alone(balance: Balance) -> float:
    """The epsilon that the latest run would show if it were the only one."""
    assert balance.last is not None
    taken, _ = cost(balance.last)
    return replace(balance, rho_spent=taken, delta_spent=Fraction(0), runs=1, alone=None).spent[0]


def _percent(part: Fraction, whole: Fraction) -> str:
    return f"{math.floor(1000 * part / whole) / 10:g}%"


def _what(entry: Entry) -> str:
    data = entry.data
    match entry.kind:
        case "dataset":
            return f"total ({data['epsilon']:g}, {data['delta']:g}), {data['neighbours']}"
        case "reserve":
            return f"{data['run']}  ({data['epsilon']:g}, {data['delta']:g}), rho {data['rho']:.6g}"
        case "begin":
            return f"{data['run']}  its first line is posted"
        case "again":
            return f"{data['run']}  ({data['epsilon']:g}, {data['delta']:g}) a second time"
        case "resume":
            return f"{data['run']}  resumed"
        case "cancel":
            return f"{data['run']}  nothing was posted"
        case "finish":
            return f"{data['run']}  billboard {data['billboard']}"


def _many(count: int, one: str, more: str = "") -> str:
    return f"{count} {one if count == 1 else more or one + 's'}"


def ledger_words(balance: Balance | None) -> str:
    """What a ledger says about a data set."""
    if balance is None:
        return "none: nothing tracks what other runs spend on the same people"
    epsilon, delta = balance.spent
    return (
        f"({epsilon:.4g}, {delta:.4g}) of ({balance.epsilon:g}, {balance.delta:g}) is spent on "
        f"{balance.dataset!r}, in {balance.runs} run{'s' if balance.runs > 1 else ''}"
        + ("; at the total's delta the same noise is a smaller epsilon" if _why(balance) else "")
    )
