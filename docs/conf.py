"""The site of the docs: the pages of this repository as they stand, and what docstrings say.

Built by `make docs`, from the root of the repository, so that links between README.md, docs/ and
examples/ are the same on the site as where the files are. Nothing is fetched while it is built, and
the pages load nothing from other hosts.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.ext.napoleon import Config, GoogleDocstring

import jdpack

project = "jdpack"
version = release = jdpack.__version__
html_title = f"jdpack {version}"

root_doc = "docs/index"
include_patterns = [
    "*.md", "docs/*.md", "docs/*.ipynb", "examples/README.md", "examples/*/README.md",
]  # fmt: skip
exclude_patterns = [".*", "build", "demo", "dist", "results", "site"]  # not even looked into
extensions = ["myst_nb", "sphinx.ext.autodoc"]
nitpicky = True
# Types of other packages have no page here.
nitpick_ignore_regex = [
    (r"py:.*", r"(collections|contextlib|fractions|numpy|pathlib|typing|np)\..*")
]

# --- pages --------------------------------------------------------------------------------

myst_heading_anchors = 4
# The notebook runs in the build, elsewhere than in docs/; an error in it is a warning of the build.
nb_execution_mode = "force"
nb_execution_in_temp = True
nb_execution_show_tb = True
nb_execution_timeout = 120
nb_merge_streams = True

# --- the reference ------------------------------------------------------------------------

autodoc_member_order = "bysource"
autodoc_default_options = {"undoc-members": True}
python_maximum_signature_line_length = 88
python_use_unqualified_type_names = True
add_module_names = False

# --- looks --------------------------------------------------------------------------------

html_theme = "furo"
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
html_show_copyright = False
html_static_path = ["site.css"]
html_css_files = ["site.css"]

MADE = [
    *("Market", "Resource", "Columns", "Newton", "MwuAdaptive", "MwuFixed", "MwuOnline", "DualGd"),
    *("MirrorDescent", "Memory", "Mapped", "Ray", "Sql", "LocalRun", "LocalAgent"),
]
"""Classes that people make themselves."""

HOME = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>jdpack</title>
<meta http-equiv="refresh" content="0; url=docs/index.html">
<p><a href="docs/index.html">The documentation of jdpack</a></p>
</html>
"""


def contents(app: Sphinx, name: str, source: list[str]) -> None:
    """The menu is what docs/index.md lists: a part for each of its headings, in its words."""
    if name != root_doc:
        return
    tree = []
    for part in re.split(r"^## ", source[0], flags=re.M)[1:]:
        caption, _, text = part.partition("\n")
        links = re.findall(r"^- \[([^\]]+)\]\(([^)#]+)\.(?:md|ipynb)\)", text, flags=re.M)
        pages = [f"{title} <{page}>" for title, page in links]
        options = f":hidden:\n:caption: {caption}"
        tree.append("\n".join(["```{toctree}", options, "", *pages, "```"]))
    source[0] += "\n\n" + "\n\n".join(tree) + "\n"


def docstring(app: Sphinx, what: str, name: str, it: Any, options: Any, lines: list[str]) -> None:
    """Google's sections; and what stands in backquotes is code, or a link if it is promised."""

    def marked(found: re.Match[str]) -> str:
        code = found[1].removeprefix("jdpack.")
        if code.split(".")[0] in jdpack.__all__ and re.fullmatch(r"[\w.]+", code):
            return f":py:obj:`~jdpack.{code}`"
        return f"``{found[1]}``"

    for i, line in enumerate(lines):
        line = re.sub(r"\|(?=[^`]*(?:`[^`]*`[^`]*)*$)", r"\\|", line)  # |x| is no substitution
        lines[i] = re.sub(r"(?<![`:\w])`([^`]+)`(?!`)", marked, line)
    if what not in ("attribute", "property"):  # of which it takes words before a colon for a type
        lines[:] = GoogleDocstring(lines, Config(napoleon_use_param=False)).lines()


def signature(
    app: Sphinx, what: str, name: str, it: Any, options: Any, arguments: str, returns: str
) -> tuple[str, str] | None:
    """Of classes that only come back from functions, no signature: nobody makes them."""
    made = what != "class" or name.removeprefix("jdpack.") in MADE
    return None if made else ("", "")


def finish(app: Sphinx, error: Exception | None) -> None:
    """Mend what the theme leaves undone, and bring whoever opens the folder to the first page."""
    if error is not None:
        return
    for page in Path(app.outdir).rglob("*.html"):
        page.write_text(for_everybody(page.read_text(encoding="utf-8")), encoding="utf-8")
    Path(app.outdir, "index.html").write_text(HOME, encoding="utf-8")


def for_everybody(html: str) -> str:
    """Names, levels and focus for readers who do not see the page or have no mouse.

    Code and tables that are wider than the screen can be scrolled by keyboard, captions in the
    menu are no headings without a level, no head of a column is empty, both menus have a name, and
    parameters of a signature are a list.
    """
    html = html.replace('<p class="caption" role="heading">', '<p class="caption">')
    html = html.replace(
        '<aside class="sidebar-drawer">', '<aside class="sidebar-drawer" aria-label="Pages">'
    )
    html = html.replace(
        '<aside class="toc-drawer', '<aside aria-label="On this page" class="toc-drawer'
    )
    html = html.replace("<pre>", '<pre tabindex="0">')
    html = html.replace('<div class="table-wrapper', '<div tabindex="0" class="table-wrapper')
    html = html.replace('<th class="head"><p></p></th>', "<td></td>")

    def listed(signature: re.Match[str]) -> str:
        items = signature[1].replace("<dd>", "<li>").replace("</dd>", "</li>")
        return f'<ul class="sig-params">{items}</ul>'

    return re.sub(r"<dl>\s*((?:<dd>(?:(?!<dl|<dt).)*?</dd>\s*)+)</dl>", listed, html, flags=re.S)


def setup(app: Sphinx) -> dict[str, bool]:
    """Called by Sphinx."""
    app.connect("source-read", contents)
    app.connect("autodoc-process-docstring", docstring)
    app.connect("autodoc-process-signature", signature)
    app.connect("build-finished", finish)
    return {"parallel_read_safe": True}
