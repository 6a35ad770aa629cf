"""Public: the entries of a ledger, and the rules for which may follow which.

Reading and writing use the same rules: `LedgerState.add` accepts a sealed line as the next entry,
or refuses it. `docs/ledger.md` is the reference for schema 3. Schema 2 had no `accounting`:
everything was in zCDP. Schema 1 also had a `token` in its `reserve` entries, had `resume` entries,
and had no `begin`. All of it is still read. Entries in zCDP are still written as schema 2 wrote
them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from fractions import Fraction
from types import MappingProxyType
from typing import Any, Literal, get_args

from jdpack.errors import BudgetError, JdpackError, LedgerError
from jdpack.ledger.balance import Balance
from jdpack.market.market import Neighbours
from jdpack.privacy.accounting import Budget, proved
from jdpack.storage.hash_chain import hash_of, open_line, seal

Kind = Literal["dataset", "reserve", "begin", "again", "cancel", "finish", "resume"]

SCHEMA = 3
"""Versions up to this one are read."""

NAME_MAX = 100
LINE_MAX = 4096

_TOTAL: dict[str, type] = {
    "neighbours": str,
    **dict.fromkeys(("epsilon", "delta", "rho_limit", "delta_limit"), float),
}
_AMOUNTS: dict[str, type] = {
    "run": str,
    **dict.fromkeys(("epsilon", "delta", "rho", "truncation", "beta"), float),
}
_GDP: dict[str, type] = {"accounting": str}
_LOOSE: dict[str, type] = {"repaired": bool}
_BUDGETS = [{**_AMOUNTS, **gdp, **loose} for gdp in ({}, _GDP) for loose in ({}, _LOOSE)]
_FIELDS: dict[str, list[dict[str, type]]] = {
    "dataset": [_TOTAL, {**_TOTAL, **_GDP}],
    "reserve": [*_BUDGETS, {"token": str, **_AMOUNTS}],
    "begin": [{"run": str}],
    "again": _BUDGETS,
    "cancel": [{"run": str}],
    "finish": [{"run": str, "billboard": str}],
    "resume": [{"run": str, "token": str}],
}
"""The fields that a line may have besides its type, its time and its data set."""


@dataclass(frozen=True)
class Entry:
    """One line of the ledger."""

    number: int
    """Its place, from 1."""
    kind: Kind
    """The kind of event that it records."""
    time: str
    """When it was written, in UTC."""
    dataset: str
    """Whose budget it is about."""
    data: Mapping[str, Any]
    """The fields of its kind."""
    hash: str
    """The hash of its text and of the hash of the line before."""


@dataclass
class Run:
    """What a run reserved, and what became of it."""

    dataset: str
    """Whose records it reads."""
    budget: Budget
    """What it reserved each time."""
    times: int = 1
    """How often it reserved that: more than once only if a ledger forgot how far it had come."""
    begun: bool = False
    """Whether a line with noise may be public. From then on, nothing is given back."""
    followed: bool = True
    """Whether the ledger knows how far it has come; False if schema 1 reserved it."""
    state: Literal["open", "cancelled", "finished"] = "open"
    """What became of it; "open" if it is under way or crashed."""
    billboard: str = ""
    """The hash of its billboard's last line, once it is finished."""


@dataclass
class LedgerState:
    """The state that a chain of entries leads to."""

    balances: dict[str, Balance] = field(default_factory=dict)
    runs: dict[str, Run] = field(default_factory=dict)
    entries: list[Entry] = field(default_factory=list)
    head: str = ""

    @classmethod
    def of(cls, rows: Iterable[tuple[Any, Any]], hint: str) -> LedgerState:
        """Check entries with their numbers, one after the other; `hint` is for damaged ones."""
        state = cls()
        for number, line in rows:
            place = len(state.entries) + 1
            try:
                if number != place or not isinstance(line, str):
                    raise JdpackError("its number or its type is wrong")
                state.add(line)
            except JdpackError as error:
                raise LedgerError(f"entry {place} of the ledger: {error.message}", hint) from None
        if not state.entries:
            raise LedgerError("the ledger has lost all its entries", hint)
        return state

    def balance(self, dataset: str) -> Balance:
        if dataset not in self.balances:
            names = ", ".join(map(repr, list(self.balances)[:10]))
            raise LedgerError(
                f"the ledger has no data set {dataset!r}",
                f"it has {names}; `jdpack ledger create` enters another",
            )
        runs = {
            k: v for k, v in self.runs.items() if v.dataset == dataset and v.state != "cancelled"
        }
        budgets = [run.budget for run in runs.values() for _ in range(run.times)]
        return replace(
            self.balances[dataset],
            open=tuple(k for k, v in runs.items() if v.state == "open"),
            alone=(budgets[0].epsilon, budgets[0].delta) if len(budgets) == 1 else None,
            last=budgets[-1] if budgets else None,
        )

    def run(self, run: str) -> Run:
        if run not in self.runs:
            raise LedgerError(f"the ledger has no run {run!r}", "it reserved nothing here")
        return self.runs[run]

    def append(self, kind: Kind, dataset: str, data: Mapping[str, Any]) -> str:
        """Add a new entry, if the rules allow it, and return its line."""
        time = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        line = seal({"type": kind, "time": time, "dataset": dataset, **data}, self.head)
        self.add(line)
        return line

    def add(self, line: str) -> None:
        """Accept a line as the next entry, or raise JdpackError and change nothing."""
        fields = open_line(line, self.head)
        kind, time, dataset = (fields.pop(key, None) for key in ("type", "time", "dataset"))
        if kind not in get_args(Kind):
            raise JdpackError(f"a line of type {kind!r} is not one of schema {SCHEMA}")
        if {key: type(value) for key, value in fields.items()} not in _FIELDS[kind]:
            raise JdpackError(f"its fields are not those of a {kind} line")
        if not isinstance(time, str) or not re.fullmatch(r"[0-9T:Z-]{20}", time):
            raise JdpackError(f"{time!r} is not a time")
        check_name("data set", dataset)
        again = {"type": kind, "time": time, "dataset": dataset, **fields}
        if len(line) > LINE_MAX or seal(again, self.head) != line:
            raise JdpackError(f"it is not written as schema {SCHEMA} writes it")
        self._apply(kind, dataset, fields)
        self.head = hash_of(line)
        number = len(self.entries) + 1
        data = MappingProxyType(fields)
        self.entries.append(Entry(number, kind, time, dataset, data, self.head))

    def _apply(self, kind: Kind, dataset: str, data: dict[str, Any]) -> None:
        if kind == "dataset":
            if dataset in self.balances:
                raise LedgerError(
                    f"the ledger already has a data set {dataset!r}",
                    "a total is never changed; `jdpack ledger show` shows it",
                )
            self.balances[dataset] = _balance(dataset, data)
            return
        name = data["run"]
        check_name("run", name)
        if re.fullmatch("[0-9a-f]{0,64}", data.get("token", "")) is None:
            raise LedgerError(f"token {data['token']!r} is not hexadecimal")
        known = self.runs.get(name)
        if kind == "reserve":
            self._reserve(name, known, dataset, data)
            return
        if known is None or known.dataset != dataset:
            raise JdpackError(f"data set {dataset!r} has no run {name!r}")
        if known.state == "cancelled":
            raise LedgerError(f"run {name!r} is cancelled", "reserve it again first")
        if known.state == "finished":
            raise LedgerError(
                f"run {name!r} is finished, with billboard {known.billboard}",
                "what is posted stays spent",
            )
        match kind:
            case "begin":
                if known.begun:
                    raise JdpackError(f"run {name!r} has already begun")
                known.begun = True
            case "again":
                if _budget(data) != known.budget:
                    raise JdpackError(f"run {name!r} reserves a different budget than before")
                self.balances[dataset] = self.balance(dataset).plus(known.budget)
                known.times, known.followed = known.times + 1, True
            case "cancel":
                if known.begun or known.times > 1:
                    raise LedgerError(f"run {name!r} has begun", "what is posted stays spent")
                self.balances[dataset] = self.balances[dataset].minus(known.budget)
                known.state = "cancelled"
            case "finish":
                if re.fullmatch("[0-9a-f]{64}", data["billboard"]) is None:
                    raise LedgerError(f"billboard hash {data['billboard']!r} is not a SHA-256")
                known.state, known.billboard = "finished", data["billboard"]

    def _reserve(self, name: str, known: Run | None, dataset: str, data: dict[str, Any]) -> None:
        if known is not None and known.state != "cancelled":
            raise JdpackError(f"run {name!r} is already reserved")
        budget = _budget(data)
        if not proved(budget):
            raise BudgetError(
                f"the parts of {budget} do not prove its (epsilon, delta)",
                "make it with Budget.split",
            )
        total = self.balances.get(dataset)
        if total is None or not total.fits(budget):
            total = self.balance(dataset)  # with everything that a refusal quotes
        self.balances[dataset] = total.plus(budget)
        self.runs.pop(name, None)  # a run that is reserved again becomes the latest
        self.runs[name] = Run(dataset, budget, followed="token" not in data)


def _budget(data: Mapping[str, Any]) -> Budget:
    return Budget.from_dict({k: v for k, v in data.items() if k not in ("run", "token")})


def _balance(dataset: str, data: Mapping[str, Any]) -> Balance:
    """The total in a data set line, if its limits prove it."""
    try:
        neighbours = Neighbours(data["neighbours"])
    except ValueError:
        raise JdpackError(f"{data['neighbours']!r} is not a neighbour relation") from None
    if data.get("accounting", "gdp") != "gdp":
        raise JdpackError(f"{data['accounting']!r} is not an accounting")
    balance = Balance(
        dataset,
        neighbours,
        "gdp" if "accounting" in data else "zcdp",
        data["epsilon"],
        data["delta"],
        Fraction(data["rho_limit"]),
        Fraction(data["delta_limit"]),
    )
    if not balance.sound:
        raise JdpackError("its limits are not those of its total")
    return balance


def check_name(what: str, name: object) -> None:
    """Refuse names that are too long or invisible: terminals show them, and people compare them."""
    if not (isinstance(name, str) and 0 < len(name) <= NAME_MAX and name.isprintable()):
        raise LedgerError(
            f"the name of a {what} is printable text of 1 to {NAME_MAX} characters, "
            f"not {str(name)[:NAME_MAX]!r}",
            "such as 'clinic-2024'",
        )
