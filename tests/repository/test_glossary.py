"""The glossary: its words are used, and the pages use no other word for the same thing."""

import re

import pytest

from .test_docs import PAGES, ROOT, rows

GLOSSARY = ROOT / "docs" / "glossary.md"
OTHERS = {page.name: page.read_text(encoding="utf-8") for page in PAGES if page != GLOSSARY}
TEMPLATES = {
    path.name: path.read_text(encoding="utf-8")
    for path in (ROOT / "src/jdpack/pages/web").iterdir()
}

INSTEAD = {
    "participant": "agent",  # on pages, "people"
    "bidder": "agent",
    "bid": "option",
    "bulletin board": "billboard",
    "iteration": "round",
    "privacy loss": "budget",
    "allotment": "allocation",
}
"""Words for which the glossary has another."""


def words() -> list[tuple[str, str]]:
    found = rows(GLOSSARY.read_text(encoding="utf-8"))
    return [(word.strip("*"), meaning) for word, meaning in found]


def synonyms(text: str) -> list[str]:
    """The words in a text that the glossary replaces; links and code may keep them."""
    prose = re.sub(r"^```.*?^```$|`[^`\n]*`|\]\([^)]*\)", "", text, flags=re.M | re.S)
    return [word for word in INSTEAD if re.search(rf"\b{word}s?\b", prose, re.IGNORECASE)]


def test_every_word_is_defined_once_in_one_sentence():
    names = [word for word, _ in words()]
    assert len(names) > 30 and len(set(names)) == len(names)
    for word, meaning in words():
        assert re.fullmatch(r"[A-Z].*\.", meaning) and ". " not in meaning, word


@pytest.mark.parametrize("word", [word for word, _ in words()])
def test_a_word_is_used_on_another_page_or_in_two_modules(word):
    stem = word.removesuffix("e").replace(" ", "[ _]")
    pattern = re.compile(rf"\b{stem}(e|s|es|ed|d|ing)?\b", re.IGNORECASE)
    modules = (path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    assert any(pattern.search(text) for text in OTHERS.values()) or (
        sum(1 for text in modules if pattern.search(text)) >= 2
    )


def test_what_replaces_a_synonym_is_in_the_glossary():
    assert set(INSTEAD.values()) <= {word for word, _ in words()}


@pytest.mark.parametrize("name", [*OTHERS, *TEMPLATES])
def test_no_page_uses_a_synonym(name):
    assert synonyms({**OTHERS, **TEMPLATES}[name]) == []


def test_a_synonym_is_seen():
    text = "Each participant\nhas bids, `iteration` and [a page](bulletin board).\n"
    assert synonyms(text) == ["participant", "bid"]
    assert synonyms("A forbidden reparticipant, forbid.") == []
