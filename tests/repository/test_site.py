"""The docs site builds without warnings, its links work, and it loads nothing from other hosts."""

import ast
import html.parser
import inspect
import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
import zlib
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest

import jdpack

from .test_docs import ROOT, blocks

pytestmark = pytest.mark.long

DOCS = ROOT / "docs"
NOTEBOOK = DOCS / "tutorial-python.ipynb"


def build(source: Path, target: Path) -> subprocess.CompletedProcess[str]:
    """Run what `make docs` runs, on our own tree, into our own folder."""
    recipe = re.search(r"^docs:.*\n\t(.+)$", (ROOT / "Makefile").read_text(), re.M)
    places = {"site": str(target), "build/doctrees": str(target.parent / "doctrees")}
    command, *words = [places.get(word, word) for word in shlex.split(recipe[1])]
    assert words[-2:] == [".", str(target)]
    return subprocess.run(
        [Path(sys.executable).parent / Path(command).name, *words],
        cwd=source,
        capture_output=True,
        text=True,
        timeout=300,
        env={
            **os.environ,
            # Any request to the network fails.
            **dict.fromkeys(["http_proxy", "https_proxy"], "http://127.0.0.1:9"),
            **{name: str(target.parent / name) for name in ["IPYTHONDIR", "JUPYTER_RUNTIME_DIR"]},
        },
    )


class Page(html.parser.HTMLParser):
    """What a page links to, what it loads, and which anchors it has."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attributes}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag in ("a", "area"):
            self.links += [given["href"]] if "href" in given else []
        else:
            self.loads += [given[name] for name in LOADING if name in given]
            self.loads += [url.split()[0] for url in given.get("srcset", "").split(",") if url]
        self.loads += loads_of_style(given.get("style", ""))


LOADING = ["src", "href", "data", "poster", "action", "formaction", "background"]
"""Attributes, other than links, that make a browser request something."""


def loads_of_style(css: str) -> list[str]:
    found = re.findall(r"url\(\s*['\"]?([^'\")]+)", css)
    return found + re.findall(r"@import\s+['\"]([^'\"]+)", css)


def is_elsewhere(url: str) -> bool:
    return re.match(r"(?:[a-z][a-z0-9+.-]*:)?//", url, re.IGNORECASE) is not None


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    target = tmp_path_factory.mktemp("docs") / "site"
    done = build(ROOT, target)
    assert done.returncode == 0, done.stderr
    return target


@pytest.fixture(scope="module")
def pages(site) -> dict[Path, Page]:
    return {path: Page(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}


# --- the build ----------------------------------------------------------------------------


def test_what_is_wrong_with_a_page_fails_the_build(tmp_path):
    docs = tmp_path / "tree" / "docs"
    docs.mkdir(parents=True)
    for name in ["conf.py", "site.css"]:
        shutil.copy(DOCS / name, docs)
    (docs / "index.md").write_text(
        "# Index\n\n[a](no-such-page.md) [b](page.md#no-such-heading) [c](page.md#a-heading)\n\n"
        "## Part\n\n- [Page](page.md)\n- [Notebook](book.ipynb)\n"
    )
    (docs / "page.md").write_text(
        "# Page\n\n## A heading\n\n"
        "```{eval-rst}\n.. currentmodule:: jdpack\n.. autofunction:: no_such_name\n\n"
        ":py:class:`jdpack.NoSuchClass`\n```\n"
    )
    (docs / "lost.md").write_text("# Lost\n")
    book = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    code = {"cell_type": "code", "id": "a", "metadata": {}, "execution_count": None, "outputs": []}
    book["cells"] = [
        {"cell_type": "markdown", "id": "b", "metadata": {}, "source": "# Book"},
        {**code, "source": "1 / 0"},
    ]
    (docs / "book.ipynb").write_text(json.dumps(book))
    done = build(docs.parent, tmp_path / "site")
    assert done.returncode != 0
    for wrong in [
        r"index\.md:3: WARNING: .*'no-such-page\.md'",
        r"index\.md:3: WARNING: .*'no-such-heading'",
        r"WARNING: .*no_such_name",
        r"WARNING: py:class reference target not found: jdpack\.NoSuchClass",
        r"book\.ipynb: WARNING: Executing notebook failed",
        r"ZeroDivisionError",
        r"lost\.md: WARNING: document isn't included in any toctree",
    ]:
        assert re.search(wrong, done.stderr), f"{wrong}\n{done.stderr}"
    assert "a-heading" not in done.stderr


def test_the_notebook_is_kept_without_outputs_and_shown_with_them(site):
    cells = [
        c for c in json.loads(NOTEBOOK.read_text("utf-8"))["cells"] if c["cell_type"] == "code"
    ]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells)
    text = (site / "docs" / "tutorial-python.html").read_text(encoding="utf-8")
    speaking = [c for c in cells if re.search(r"^print\(|plt\.show", "".join(c["source"]), re.M)]
    assert text.count("cell_output") == len(speaking) >= 6
    assert "Traceback" not in text
    assert re.search(r"at least 9\d\.\d% of the best possible total value", text)
    assert 'alt="Noisy demand of the three pools' in text
    assert not (DOCS / "swimming.ledger").exists()  # it ran elsewhere


# --- how the pages hang together ----------------------------------------------------------


def broken(pages: dict[Path, Page]) -> list[str]:
    """Broken links within the site."""
    found = []
    for path, page in pages.items():
        for link in page.links + page.loads:
            if is_elsewhere(link) or link.startswith(("mailto:", "data:")):
                continue
            place, anchor = urldefrag(link.partition("?")[0] if "#" not in link else link)
            target = (path.parent / unquote(place)).resolve() if place else path
            there = target in pages and unquote(anchor) in {*pages[target].anchors, "", "top"}
            if not there and not (anchor == "" and target.is_file()):
                found.append(f"{path.name}: {link}")
    return found


def test_links_lead_somewhere(pages):
    assert broken({path.resolve(): page for path, page in pages.items()}) == []


def test_a_link_that_leads_nowhere_is_seen(tmp_path):
    pages = {tmp_path / "a.html": Page('<a href="b.html">b</a> <a href="#c">c</a> <p id="d">')}
    assert broken(pages) == ["a.html: b.html", "a.html: #c"]


def test_every_page_is_reached_from_the_index(site, pages):
    index = site / "docs" / "index.html"
    reached, left = set(), [index]
    while left:
        path = left.pop()
        if path in pages and path not in reached:
            reached.add(path)
            places = [
                link.partition("#")[0] for link in pages[path].links if not is_elsewhere(link)
            ]
            left += [Path(os.path.normpath(path.parent / place)) for place in places if place]
    sources = [*DOCS.glob("*.md"), *DOCS.glob("*.ipynb"), *ROOT.glob("examples/**/README.md")]
    sources += ROOT.glob("*.md")
    assert len(sources) > 30
    for source in sources:
        assert site / source.relative_to(ROOT).with_suffix(".html") in reached, source
    assert "docs/index.html" in pages[site / "index.html"].links


def test_the_menu_has_the_parts_of_the_index(site):
    text = (site / "docs" / "serve.html").read_text(encoding="utf-8")
    captions = re.findall(r'class="caption-text">([^<]+)<', text)
    assert captions == ["Tutorial", "How-to", "Reference", "Explanation", "Examples"]
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (.+)$", index, re.M) == captions
    menu = re.findall(r'<li class="toctree-l1[^>]*>\s*<a[^>]*>([^<]+)</a>', text)
    assert menu == re.findall(r"^- \[(.+?)\]", index, re.M)


def test_pages_load_nothing_from_other_hosts(site, pages):
    for path, page in pages.items():
        assert [url for url in page.loads if is_elsewhere(url)] == [], path
    styles = list(site.rglob("*.css"))
    assert len(styles) >= 4
    for style in styles:
        loads = loads_of_style(style.read_text(encoding="utf-8"))
        assert [url for url in loads if is_elsewhere(url)] == [], style
    for script in site.rglob("*.js"):
        text = re.sub(r"/\*.*?\*/|(?<!:)//[^\n]*", "", script.read_text("utf-8"), flags=re.S)
        assert "://" not in text.replace("http://www.w3.org/2000/svg", ""), script


def test_what_is_loaded_from_other_hosts_is_seen():
    page = Page(
        '<script src="https://cdn.example/x.js"></script> <link href="//cdn.example/x.css">'
        '<p style="background: url(http://cdn.example/x.png)"> <a href="https://example.org">'
        '<img srcset="x.png 1x, https://cdn.example/y.png 2x">'
    )
    assert len([url for url in page.loads if is_elsewhere(url)]) == 4
    assert loads_of_style("@import 'https://cdn.example/x.css';") == ["https://cdn.example/x.css"]


def test_the_gaps_of_the_theme_are_fixed(site):
    texts = {path.name: path.read_text(encoding="utf-8") for path in site.rglob("docs/*.html")}
    for name, text in texts.items():
        for wrong in ["<pre>", 'role="heading"', '<div class="table-wrapper']:
            assert wrong not in text, name
        assert not re.search(r"<th[^>]*>(<p></p>)?</th>|<dl>\s*<dd>", text), name
        menus = re.findall(r"<aside[^>]*>", text)
        assert len(menus) == 2 and all("aria-label=" in menu for menu in menus), name
    assert 'tabindex="0" class="table-wrapper' in texts["serve.html"]
    assert '<pre tabindex="0">' in texts["tutorial.html"]
    assert '<ul class="sig-params"><li>' in texts["api.html"]


# --- the reference ------------------------------------------------------------------------


def inventory(site: Path) -> dict[str, str]:
    """Every Python name of the site, and its kind."""
    data = (site / "objects.inv").read_bytes().split(b"\n", 4)[4]
    lines = zlib.decompress(data).decode().splitlines()
    rows = [line.split(" ") for line in lines if " py:" in line]
    return {name: kind.removeprefix("py:") for name, kind, *_ in rows}


def test_the_reference_has_every_promised_name_and_no_other(site):
    names = inventory(site)
    promised = {name.removeprefix("jdpack.") for name in names if name.count(".") == 1}
    assert promised == set(jdpack.__all__)
    text = (site / "docs" / "api.html").read_text(encoding="utf-8")
    things = [getattr(jdpack, name) for name in jdpack.__all__]
    aliases = {f"{thing.__module__}.{thing.__name__}" for thing in things}
    others = {n for n, kind in names.items() if kind == "class" and n.count(".") > 1} - aliases
    assert "jdpack.ledger.balance.Balance" in others
    for name in others:  # it exists because something refers to it
        assert f'class="reference internal" href="#{name}"' in text, name


def test_the_errors_are_drawn_as_they_are():
    tree = next(b for _, _, b in blocks((DOCS / "api.md").read_text("utf-8")) if "├──" in b)
    family = [getattr(jdpack, name) for name in re.findall(r"─ (\w+)", tree)]
    assert all(error.__base__ is jdpack.JdpackError for error in family)
    names = {n for n in jdpack.__all__ if n.endswith(("Error", "Warning"))}
    assert set(re.findall(r"\w+", tree)) == names


def undescribed(thing: object) -> list[str]:
    """The arguments of a function or class without a type or a description."""
    told, kinds = set(), thing.__mro__ if inspect.isclass(thing) else [thing]
    for kind in kinds:
        args = re.search(r"^Args:\n((?: +.*\n|\n)+)", f"{inspect.getdoc(kind)}\n", re.M)
        heads = re.findall(r"^    (\w[\w, ]*):", args[1] if args else "", re.M)
        told |= {name for head in heads for name in head.split(", ")}
        if inspect.isclass(kind) and kind.__module__ != "builtins":
            told |= set(described_fields(kind))
    signature = inspect.signature(thing)
    return [
        name
        for name, parameter in signature.parameters.items()
        if name not in told or parameter.annotation is inspect.Parameter.empty
    ]


def described_fields(kind: type) -> list[str]:
    """Fields of a class with a text below them."""
    body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0].body
    return [
        field.target.id
        for field, text in itertools.pairwise(body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    ]


@pytest.mark.parametrize("name", jdpack.__all__)
def test_every_argument_has_a_type_and_a_description(name):
    thing = getattr(jdpack, name)
    if thing is not jdpack.Neighbours:  # its members are described instead
        assert undescribed(thing) == []
        if not inspect.isclass(thing):
            assert inspect.signature(thing).return_annotation is not inspect.Signature.empty


def test_an_argument_without_type_or_description_is_seen():
    def function(a: int, b: int, c) -> None:
        """Do it.

        Args:
            a, c: both.
        """

    class Holder:
        a: int
        """Told."""
        b: int

        def __init__(self, a: int, b: int) -> None: ...

    assert undescribed(function) == ["b", "c"]
    assert undescribed(Holder) == ["b"]


def test_every_member_in_the_reference_is_described(site):
    for name, kind in inventory(site).items():
        owner, _, member = name.rpartition(".")
        if owner.count(".") == 1 and kind in ("method", "property"):
            thing = inspect.getattr_static(getattr(jdpack, owner.removeprefix("jdpack.")), member)
            assert inspect.getdoc(getattr(thing, "__func__", thing)), name


# --- the tutorial -------------------------------------------------------------------------


def test_the_tutorial_quotes_its_table_and_its_plan_as_they_are(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = blocks((DOCS / "tutorial.md").read_text(encoding="utf-8"))
    texts = [block for language, _, block in found if language == "text"]
    exec(next(block for language, _, block in found if language == "python"), {})
    table = next(text for text in texts if text.startswith("child,"))
    assert Path("children.csv").read_text(encoding="utf-8").startswith(f"{table}\n")
    Path("market.toml").write_text(next(b for language, _, b in found if language == "toml"))
    lines = str(jdpack.plan("market.toml")).split("\n")
    quoted = next(text for text in texts if "stay free" in text).split("\n")
    assert len(quoted) == 4 and quoted == lines[:4]
