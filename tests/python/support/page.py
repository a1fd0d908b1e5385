# SPDX-License-Identifier: BSD-3-Clause
"""Reads the page of a report."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = ("meta", "br", "wbr", "link", "img", "input")


@dataclass
class Element:
    tag: str
    attributes: dict[str, str]
    children: list[Element] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)  # in order; "" stands for a child
    parent: Element | None = None

    def all(self, tag: str = "", css: str = "") -> list[Element]:
        """All elements below with this tag and this class."""
        return [
            item
            for item in self._below()
            if (not tag or item.tag == tag) and (not css or css in item.classes)
        ]

    @property
    def classes(self) -> list[str]:
        return self.attributes.get("class", "").split()

    @property
    def text(self) -> str:
        """The text of the element and of those below, with single spaces."""
        return " ".join(self._raw().split())

    def _raw(self) -> str:
        children = iter(self.children)
        return "".join(text or next(children)._raw() for text in self.texts)

    def _below(self) -> Iterator[Element]:
        for child in self.children:
            yield child
            yield from child._below()


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.root = Element("", {})
        self.open = [self.root]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, {name: value or "" for name, value in attrs}, parent=self.open[-1])
        self.open[-1].children.append(element)
        self.open[-1].texts.append("")
        if tag not in VOID:
            self.open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open[-1].tag == tag, f"</{tag}> closes <{self.open[-1].tag}>"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        if data:
            self.open[-1].texts.append(data)


def read_page(text: str) -> Element:
    """Returns the page. Fails if an element is not closed."""
    reader = _Reader()
    reader.feed(text)
    reader.close()
    assert reader.open == [reader.root]
    return reader.root


def cells(row: Element) -> list[str]:
    return [cell.text for cell in row.children if cell.tag in ("td", "th")]
