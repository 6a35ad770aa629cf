"""Public: the words of pages and letters in each language, from one file per language.

`languages/en.toml` explains the format. The page's JavaScript reads the same texts
(`pages/web/words.js`), so both say the same. To add a language, add a file.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from markupsafe import Markup, escape

from jdpack.common import checks
from jdpack.errors import MarketError

FOLDER = Path(str(resources.files("jdpack.common"))) / "languages"

_CODE = re.compile("[a-z]{2,3}")
_TOKENS = re.compile(r"(\*\*|`|\{\w+\})")
_TAGS = {"**": "strong", "`": "code"}
_RELATION = re.compile(r"([niv])(?: % (\d+))? (=|!=) ([\d.,]+)")


def known() -> list[str]:
    """The codes of all languages."""
    names = (entry.name.removesuffix(".toml") for entry in FOLDER.iterdir())
    return sorted(name for name in names if _CODE.fullmatch(name))


def language(code: str) -> Language:
    """The language with a code, such as "de"."""
    if not (_CODE.fullmatch(code) and (FOLDER / f"{code}.toml").is_file()):
        raise MarketError(
            f"language {checks.quoted(code)} is not known",
            f"one of: {', '.join(known())}; docs/languages.md says how to add one",
        )
    return _read(FOLDER, code)


def english() -> Language:
    """English, in which terminals and reports are written."""
    return language("en")


@cache
def _read(folder: Path, code: str) -> Language:
    text = (folder / f"{code}.toml").read_text(encoding="utf-8")
    return Language(code, tomllib.loads(text))


@cache
def _parts(template: str) -> list[str]:
    """A text, cut at its marks and placeholders."""
    return _TOKENS.split(template)


@dataclass(frozen=True, eq=False)
class Language:
    """The words of one language, and how it writes numbers."""

    code: str
    data: Mapping[str, Any]

    @property
    def name(self) -> str:
        """What the language calls itself."""
        return str(self.data["name"])

    def text(self, key: str, **given: object) -> str:
        """A text without its marks; `count` chooses the plural form."""
        parts = _parts(self._template(key, given))
        return "".join(
            self._value(part, given) if part.startswith("{") else part
            for part in parts
            if part not in _TAGS
        )

    def html(self, key: str, **given: object) -> Markup:
        """A text as HTML. What is given is escaped, unless it is Markup."""
        found, within = [], set[str]()
        for part in _parts(self._template(key, given)):
            if part in _TAGS:
                found.append(f"<{'/' if part in within else ''}{_TAGS[part]}>")
                within ^= {part}
            elif part.startswith("{") and isinstance(given[part[1:-1]], Markup):
                found.append(str(given[part[1:-1]]))
            else:
                found.append(escape(self._value(part, given) if part.startswith("{") else part))
        return Markup("".join(found))

    def _template(self, key: str, given: Mapping[str, object]) -> str:
        section, _, name = key.partition(".")
        found = self.data[section][name]
        if isinstance(found, str):
            return found
        count = given["count"]
        assert isinstance(count, int)
        return str(found.get(self.plural(count), found["other"]))

    def _value(self, placeholder: str, given: Mapping[str, object]) -> str:
        value = given[placeholder[1:-1]]
        return self.whole(value) if isinstance(value, int) else str(value)

    # --- numbers --------------------------------------------------------------------------

    def whole(self, number: int) -> str:
        """A whole number."""
        return self.number(f"{number:,}")

    def number(self, text: str) -> str:
        """A number from English digits: "1,234.5%" becomes "1.234,5 %" in German."""
        signs = self.data["number"]
        if text.endswith("%"):
            return str(signs["percent"]).replace("{number}", self.number(text[:-1]))
        whole, point, rest = text.partition(".")
        digits = sum(c.isdigit() for c in whole)
        whole = whole.replace(",", signs["group"] if digits >= signs["group_from"] else "")
        return f"{whole}{signs['decimal'] if point else ''}{rest}"

    def plural(self, amount: float) -> str:
        """The plural category of an amount."""
        whole = float(amount).is_integer()
        operands = {"n": float(amount), "i": float(int(amount)), "v": 0.0 if whole else 1.0}
        for category, rule in self.data["plural"].items():
            if any(
                all(_holds(part, operands) for part in parts.split(" and "))
                for parts in rule.split(" or ")
            ):
                return str(category)
        return "other"

    def joined(self, parts: list[str]) -> str:
        """Parts as in "a, b and c"."""
        if len(parts) == 1:
            return parts[0]
        return self.text("text.and", first=", ".join(parts[:-1]), last=parts[-1])


def _holds(relation: str, operands: Mapping[str, float]) -> bool:
    """Whether a relation of a plural rule holds, such as "i % 10 = 2..4"."""
    found = _RELATION.fullmatch(relation)
    if found is None:
        raise ValueError(f"{relation!r} is not a relation of a plural rule")
    value = operands[found[1]] % float(found[2]) if found[2] else operands[found[1]]
    ranges = (part.partition("..") for part in found[4].split(","))
    within = any(
        float(low) <= value <= float(high or low) and value.is_integer() for low, _, high in ranges
    )
    return within == (found[3] == "=")
