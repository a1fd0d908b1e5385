# SPDX-License-Identifier: BSD-3-Clause
"""The hooks of mkdocs.yml: they make pages while the site is built, and mend its search."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

sys.path.insert(0, str(Path(__file__).resolve().parent))
import site_pages

# The theme's search (lunr) keeps all words in an automaton, and merges two nodes if their keys are
# equal. A key lists the edges: a character and the number of the next node. Nothing parts edges,
# so "1" to node 42 and "3" to node 5 have the key of the edge "1" to node 4235. Then the automaton
# has words that no page has, and a search for a beginning of them fails. A comma makes keys unique.
KEY, UNIQUE_KEY = "e=e+s+o.id}", 'e=e+s+o.id+","}'


def on_config(config: Any) -> Any:
    """Names headings as the links in the repository do."""
    config.mdx_configs.setdefault("toc", {})["slugify"] = site_pages.anchor
    return config


def on_files(files: Any, config: Any) -> Any:
    """Adds the pages that have no file of their own in docs."""
    for name, text in site_pages.made_pages().items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Fills in the parts of a page that are made from other sources."""
    if page.parent is None:  # a tab of its own has no list of pages
        page.meta["hide"] = ["navigation"]
    if page.file.src_uri.startswith(site_pages.RECORDS):  # they come last in a search
        page.meta["search"] = {"boost": 0.2}
    return site_pages.complete(page.file.src_uri, markdown)


def on_post_build(config: Any) -> None:
    """Mends the search of the theme."""
    (worker,) = Path(config.site_dir).glob("assets/javascripts/workers/search.*.min.js")
    text = worker.read_text()
    assert text.count(KEY) == 1, "the theme's search has changed: look whether KEY is still needed"
    worker.write_text(text.replace(KEY, UNIQUE_KEY))
