"""A page shows what others wrote as text, and nothing else."""

from __future__ import annotations

import re
from html.parser import HTMLParser

from watch import ForbiddenError

_TAGS = re.compile(
    "html|head|meta|title|style|body|main|p|h1|h2|dl|dt|dd|div|table|thead|tbody|tr|th|td|a|code"
)
_ATTRIBUTES = re.compile(
    "lang|charset|name|content|http-equiv|class|role|scope|tabindex|href|aria-label"
)


class _Reader(HTMLParser):
    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if not _ATTRIBUTES.fullmatch(name) or (name == "href" and value != "billboard.jsonl"):
                raise ForbiddenError(f"the page has <{tag} {name}={value!r}>")
        if not _TAGS.fullmatch(tag):
            raise ForbiddenError(f"the page has <{tag}>")

    def handle_comment(self, data: str) -> None:
        raise ForbiddenError("the page has a comment")


def check_page(page: str) -> None:
    """Raise if a page has any mark-up that its template has not."""
    reader = _Reader()
    reader.feed(page)
    reader.close()
