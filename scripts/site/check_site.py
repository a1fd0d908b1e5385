# SPDX-License-Identifier: BSD-3-Clause
"""Checks the built site: links lead somewhere, and no page loads anything from elsewhere.

python scripts/site/check_site.py build/site
"""

from __future__ import annotations

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# Attributes with addresses that a browser loads by itself. An <a> is only followed by a reader.
LOADED = {
    "script": ("src",), "img": ("src", "srcset"), "iframe": ("src",), "source": ("src", "srcset"),
    "video": ("src", "poster"), "audio": ("src",), "object": ("data",), "embed": ("src",),
    "use": ("href", "xlink:href"), "image": ("href", "xlink:href"), "link": ("href",),
}  # fmt: skip
STYLE_URL = re.compile(r"(?:url\(|@import\s)\s*['\"]?((?:https?:)?//[^'\")\s]+)")


class Page(HTMLParser):
    """The names of a page's headings, its links, and what it loads."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = STYLE_URL.findall(text)
        self.feed(text)

    def has(self, fragment: str) -> bool:
        return unquote(fragment) in self.names

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.names.update(values[name] for name in ("id", "name") if name in values)
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if tag == "link" and values.get("rel") in ("canonical", "prev", "next"):
            return
        self.loaded += [values[name] for name in LOADED.get(tag, ()) if name in values]


def target_of(address: str, page: Path, folder: Path) -> Path:
    """Returns the file that an address on a page names. A leading / is the site's folder."""
    start = folder if address.startswith("/") else page.parent
    target = (start / unquote(address).lstrip("/")).resolve() if address else page
    return target / "index.html" if target.is_dir() else target


def problems(folder: Path) -> list[str]:
    """Returns one line for each broken link and for each file that is loaded from elsewhere."""
    pages = {path.resolve(): Page(path.read_text()) for path in sorted(folder.rglob("*.html"))}
    found = []
    for path, page in pages.items():
        name = path.relative_to(folder.resolve())
        for address in page.loaded:
            parts = urlsplit(address)
            if parts.netloc or parts.scheme not in ("", "data"):
                found.append(f"{name}: loads {address}")
            elif not parts.scheme and not target_of(parts.path, path, folder).exists():
                found.append(f"{name}: loads {address}, which does not exist")
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = target_of(parts.path, path, folder)
            if not target.exists():
                found.append(f"{name}: the link {link} leads nowhere")
            elif parts.fragment and target in pages and not pages[target].has(parts.fragment):
                found.append(f"{name}: the link {link} names no heading")
    for path in sorted(folder.rglob("*.css")):
        loaded = STYLE_URL.findall(path.read_text())
        found += [f"{path.relative_to(folder)}: loads {address}" for address in loaded]
    return found


def main() -> int:
    """Prints the problems; the exit status is 1 if there are any."""
    folder = Path(sys.argv[1])
    count = len(list(folder.rglob("*.html")))
    found = problems(folder)
    print(
        "\n".join(found)
        if found
        else f"{folder}: ok, {count} pages, nothing is loaded from elsewhere"
    )
    return 1 if found or not count else 0


if __name__ == "__main__":
    sys.exit(main())
