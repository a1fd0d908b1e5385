# SPDX-License-Identifier: BSD-3-Clause
"""The hooks of mkdocs.yml: pages that are made while the site is built."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

sys.path.insert(0, str(Path(__file__).resolve().parent))
import site_pages


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
    if page.file.src_uri in site_pages.RECORDS:  # long tables come last in a search
        page.meta["search"] = {"boost": 0.2}
    return site_pages.complete(page.file.src_uri, markdown)
