"""Public: a ledger in words, and as JSON, for `jdpack ledger`."""

from __future__ import annotations

from typing import Any

from jdpack.ledger.balance import Balance
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
    lines = [
        balance.dataset,
        f"  total     ({balance.epsilon:g}, {balance.delta:g})-joint differential privacy over "
        f"all runs, {balance.neighbours.value} neighbours",
        f"  spent     ({epsilon:.4g}, {delta:.4g}) by {_many(balance.runs, 'run')}",
        f"  rho       {float(balance.rho_spent):.6g} of {float(balance.rho_limit):.6g}; "
        f"left {float(balance.rho_left):.6g}",
        f"  delta     {float(balance.delta_spent):.4g} of {float(balance.delta_limit):.4g} "
        f"for the runs themselves; left {float(balance.delta_left):.4g}",
    ]
    if balance.runs == 0:
        lines.append("  first     the first run may take the whole total; then nothing is left")
    lines += _fits(balance, budget)
    lines += [f"  open      {run}" for run in balance.open]
    return "\n".join(lines)


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
    )
