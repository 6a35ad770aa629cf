"""Languages: every file says the same things, numbers look right, and a fifth file is picked up."""

import re
import shutil

import pytest
from markupsafe import Markup

from jdpack import Market, MarketError, plan
from jdpack.common import language as module
from jdpack.common.language import english, known, language

FOUR = ["de", "en", "es", "fr"]
PLACEHOLDER = re.compile(r"\{\w+\}")


def texts(code):
    """Every text of a language by its key, with one key per plural form."""
    found = {}
    for section, own in language(code).data.items():
        for key, text in own.items() if isinstance(own, dict) else []:
            forms = text if isinstance(text, dict) else {"": text}
            found |= {(section, key, form): said for form, said in forms.items()}
    return found


def test_the_four_languages_are_there():
    assert known() == FOUR
    assert [language(code).name for code in FOUR] == ["Deutsch", "English", "Español", "Français"]


def faults(code):
    """What a file lacks or has too much, compared with English."""
    own, model = texts(code), texts("en")
    wrong = []
    for section, key, form in own.keys() ^ model.keys():
        if section != "plural":
            wrong.append(f"{section}.{key} {form}")
    for place, text in own.items():
        if place[0] == "plural" or place not in model:
            continue
        if set(PLACEHOLDER.findall(str(text))) != set(PLACEHOLDER.findall(str(model[place]))):
            wrong.append(f"{place}: placeholders")
        for mark in ("**", "`"):
            if str(text).count(mark) != str(model[place]).count(mark):
                wrong.append(f"{place}: {mark}")
    return wrong


@pytest.mark.parametrize("code", FOUR)
def test_every_language_has_the_same_keys_placeholders_and_marks(code):
    assert faults(code) == []


def test_a_text_that_is_missing_or_lacks_a_placeholder_is_noticed(tmp_path, monkeypatch):
    """The control of the test above."""
    shutil.copytree(module.FOLDER, tmp_path / "languages")
    path = tmp_path / "languages" / "de.toml"
    text = path.read_text()
    monkeypatch.setattr(module, "FOLDER", tmp_path / "languages")
    for old, new in [
        ('skip = "Zum Inhalt springen"\n', ""),
        ("von {good}: {first}", "von: {first}"),
        ("**{needed}**", "{needed}"),
    ]:
        assert old in text
        path.write_text(text.replace(old, new, 1))
        module._read.cache_clear()
        assert faults("de") != []
    module._read.cache_clear()


def test_no_text_is_left_in_english():
    """Texts that are the same as in English are names, numbers and words that both have."""
    same = {
        code: {
            key
            for key, text in texts(code).items()
            if text == texts("en")[key] and re.search(r"[a-z]{3}", PLACEHOLDER.sub("", str(text)))
            and key[0] != "plural"
        }
        for code in ("de", "es", "fr")
    }  # fmt: skip
    option = ("form", "option", "")
    assert same == {
        "de": {option, ("outcome", "head_option", ""), ("outcome", "head_chance", "")},
        "es": set(),
        "fr": {
            option,
            ("outcome", "option", ""),
            ("outcome", "head_option", ""),
            ("safe", "public", ""),
            ("letter", "contact", ""),
        },
    }


def test_numbers_are_written_as_in_the_language():
    given = ["1,234.5", "12,345.6", "0.5", "1e-09", "12.5%", "-1,234,567", "7"]
    assert [english().number(text) for text in given] == given
    expected = {
        "de": ["1.234,5", "12.345,6", "0,5", "1e-09", "12,5\u00a0%", "-1.234.567", "7"],
        "es": ["1234,5", "12.345,6", "0,5", "1e-09", "12,5\u00a0%", "-1.234.567", "7"],
        "fr": [
            *("1\u202f234,5", "12\u202f345,6", "0,5", "1e-09", "12,5\u202f%"),
            *("-1\u202f234\u202f567", "7"),
        ],
    }
    for code, texts in expected.items():
        assert [language(code).number(text) for text in given] == texts


def test_plural_forms():
    forms = {"en": "0 1 2 1.5", "de": "0 1 2 1.5", "es": "0 1 2 1.5", "fr": "0 1 2 1.5"}
    found = {c: [language(c).plural(float(n)) for n in forms[c].split()] for c in forms}
    others = ["other", "one", "other", "other"]
    assert found == {"en": others, "de": others, "es": others, "fr": ["one", "one", "other", "one"]}
    assert english().text("text.rounds", count=1) == "1 round"
    assert language("fr").text("text.rounds", count=0) == "0 tour"
    assert language("de").text("text.people", count=60_000) == "60.000 Personen"


def test_what_is_given_is_escaped_and_marks_in_it_are_no_marks():
    said = english().html("outcome.enough", prices="**x**", word="<b>", needed="1", own="2")
    assert said == (
        "**x**: &lt;b&gt; needed <strong>1</strong>, yours <strong>2</strong>. That is enough."
    )
    plain = english().text("outcome.enough", prices="**x**", word="`y`", needed="1", own="2")
    assert plain == "**x**: `y` needed 1, yours 2. That is enough."
    link = Markup("<a>the record</a>")
    assert "<a>the record</a>" in english().html("check.whole", link=link)


def test_a_fifth_language_is_one_more_file(tmp_path, monkeypatch):
    """Polish plurals need no code: the file has their rules."""
    shutil.copytree(module.FOLDER, tmp_path / "languages")
    monkeypatch.setattr(module, "FOLDER", tmp_path / "languages")
    rules = (
        'few = "i % 10 = 2..4 and i % 100 != 12..14"\n'
        'many = "i != 1 and i % 10 = 0..1 or i % 10 = 5..9 or i % 100 = 12..14"\n'
    )
    text = (tmp_path / "languages" / "en.toml").read_text()
    text = text.replace('name = "English"', 'name = "Polski"').replace(
        'one = "i = 1 and v = 0"\n', f'one = "i = 1 and v = 0"\n{rules}'
    )
    text = re.sub(
        "^rounds = .*$",
        'rounds = { one = "{count} runda", few = "{count} rundy", many = "{count} rund", '
        'other = "{count} rundy" }',
        text,
        count=1,
        flags=re.M,
    )
    (tmp_path / "languages" / "pl.toml").write_text(text)
    assert known() == [*FOUR, "pl"]
    found = [language("pl").text("text.rounds", count=n) for n in (1, 2, 5, 12, 22, 25, 100)]
    assert [text.split()[1] for text in found] == [
        *("runda", "rundy", "rund", "rund", "rundy", "rund", "rund"),
    ]
    market = Market(supply=[500.0], max_demand=1.0, max_value=1.0, agents=9, languages=["pl", "de"])
    plan(market, epsilon=1.0, delta=1e-6)


def test_unknown_languages_are_refused_before_anything_is_spent(tmp_path):
    def made(**more):
        return Market(supply=[500.0], max_demand=1.0, max_value=1.0, agents=9, **more)

    with pytest.raises(MarketError, match="language 'xx' is not known\nhint: one of: de, en, es"):
        plan(made(languages=["en", "xx"]), epsilon=1.0, delta=1e-6)
    for wrong in ([], ["de", "de"], ["DE"], [3], ["../de"]):
        with pytest.raises(MarketError, match="languages"):
            made(languages=wrong)
    with pytest.raises(MarketError, match="translation to 'fr', which is not in languages"):
        made(languages=["en", "de"], translations={"fr": {"a": "b"}})
    own = made(languages=["en", "de"], translations={"de": {"market": "Markt"}})
    again = Market.from_dict(own.to_dict())
    assert again == own and again.said("market", "de") == "Markt" and again.said("x", "de") == "x"
    assert "languages" not in made().to_dict() and made(languages="en") == made()
