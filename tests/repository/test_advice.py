"""No advice that leaks: hints, warnings, help and pages never say to fit public numbers to records.

This only keeps known phrasings out. The author of a hint must still think.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "jdpack"

_PUBLIC = (
    r"(bounds?|caps?|max_demand|max_value|value\.max|bundle_size|bundle size|\[agents\] options|"
    r"\[agents\] count|number of agents)\b"
)
FORBIDDEN = {
    "fits a public number to the records": (
        r"\b(raise|increase|widen|enlarge|extend|lift|lower(?! bound)|reduce|adjust|change)\b"
        rf"[^.;]{{0,40}}{_PUBLIC}"
    ),
    "has the reader look at the records": (
        r"\b(where nobody (needs|asks|wants)|if (options|agents|records) (touch|need|ask|have))\b"
    ),
    "hides a run from the ledger": r"\b(leave|take) (the |--)?ledger out\b|\bwithout --ledger\b",
    "spends again and does not say so": r"\bbegin another\b|\banother seed\b",
}

HAD_ONCE = [
    "raise the bound in the market, or choose to clamp",
    "raise [agents] options, or drop some of its rows",
    "raise [agents] bundle_size, at the price of more noise",
    "ids must be unique; if an agent has several options, raise [agents] options",
    "1.933 times smaller max_demand, where nobody needs more",
    "bundle_size 1 in place of 2, if options touch no more",
    "leave --ledger out, or set --epsilon",
    "a run ends with the records it began with; with others, begin another",
]

ADMITTED = {
    # Two public numbers contradict each other, before any record is read.
    "no option may ask for more than the supply; lower max_demand",
    "one option may ask for that much; lower max_demand, or change the 7",
}


def texts(path: Path) -> Iterator[str]:
    """The texts of a module except its docstrings; the whole text of other files."""
    source = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        yield re.sub(r"\s+", " ", source)
        return
    tree = ast.parse(source)
    inside = {id(part) for n in ast.walk(tree) if isinstance(n, ast.JoinedStr) for part in n.values}
    inside |= {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}  # docstrings
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = (p.value if isinstance(p, ast.Constant) else "7" for p in node.values)
            yield "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and id(node) not in inside:
            yield str(node.value)


def leaks(text: str) -> list[str]:
    return [why for why, found in FORBIDDEN.items() if re.search(found, text, re.IGNORECASE)]


def test_nothing_advises_what_leaks():
    files = [p for p in sorted(SOURCE.rglob("*")) if p.suffix in (".py", ".html", ".js")]
    found = [(path, text) for path in files for text in texts(path) if text not in ADMITTED]
    assert len(found) > 2000
    assert any("set it by the rules of your market" in text for _, text in found), "hints are read"
    bad = [f"{path.name}: {text!r} {why}" for path, text in found for why in leaks(text)]
    assert bad == []


@pytest.mark.parametrize("text", HAD_ONCE)
def test_what_hints_said_once_is_caught(text):
    assert leaks(text)
