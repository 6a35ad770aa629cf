"""Checks that a page shows what others wrote as plain text."""

from __future__ import annotations

import re
from html.parser import HTMLParser

from jdpack.pages.billboard_page import script
from watch import ForbiddenError

_TAGS = re.compile(
    "html|head|meta|title|link|style|body|header|nav|main|section|footer|script"
    "|p|h1|h2|h3|a|code|span|strong|ul|li|dl|dt|dd|div|pre|details|summary|figure|figcaption"
    "|table|thead|tbody|tr|th|td|form|label|input|button|svg|path|text"
)
_ATTRIBUTES = re.compile(
    "lang|charset|name|content|http-equiv|rel|href|class|id|role|scope|tabindex|hidden|type|for"
    "|aria-(label|labelledby|describedby|hidden|live)|data-label|accept|novalidate|spellcheck"
    "|auto(complete|capitalize)|viewbox|preserveaspectratio|x|y|width|height|d|text-anchor"
)
_LINKS = re.compile('billboard[.]jsonl|#[a-z]+|data:image/svg[+]xml,[^<>"]+')


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.inside = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            wrong_link = name == "href" and not _LINKS.fullmatch(value or "")
            if not _ATTRIBUTES.fullmatch(name) or wrong_link:
                raise ForbiddenError(f"the page has <{tag} {name}={value!r}>")
        if not _TAGS.fullmatch(tag):
            raise ForbiddenError(f"the page has <{tag}>")
        self.inside = "data" if ("type", "application/json") in attrs else tag

    def handle_data(self, data: str) -> None:
        if self.inside == "script" and data.strip() and data != script():
            raise ForbiddenError("the page has a script that is not its own")

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""

    def handle_comment(self, data: str) -> None:
        raise ForbiddenError("the page has a comment")


def check_page(page: str) -> None:
    """Raise if a page has any markup that its template does not have."""
    reader = _Reader()
    reader.feed(page)
    reader.close()
