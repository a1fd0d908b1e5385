# SPDX-License-Identifier: BSD-3-Clause
"""Opens pages of the built site in a headless Chromium, and writes pictures of them.

    make docs && python scripts/site/screenshots.py          # into build/screenshots
    python scripts/site/screenshots.py faq.html pbqp.html

Each page is shown on a desktop and on a phone, in light and in dark colors. Fails if a page prints
something on the browser's console or is wider than the window, or if the search finds nothing.
Needs Chromium from the distribution; the tests do not run this.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from look_at_report import Browser, View, problems_of_console, show, take

ROOT = Path(__file__).resolve().parents[2]
SITE, PICTURES = ROOT / "build" / "site", ROOT / "build" / "screenshots"
PAGES = ("index.html", "tutorial.html", "reference/optimize-a-model.html", "migrating.html")
SIZES = {"desktop": (1280, 1600), "phone": (390, 1600)}


def look(browser: Browser, page: str) -> list[str]:
    """Writes the pictures of a page, and returns what is wrong with it."""
    found = []
    for colors in ("light", "dark"):
        for size, pixels in SIZES.items():
            name = f"{page.removesuffix('.html').replace('/', '_')}_{size}_{colors}"
            view = View(name, *pixels, is_dark=colors == "dark")
            show(browser, view)
            browser.call("Page.navigate", url=(SITE / page).as_uri())
            time.sleep(1.5)
            take(browser, PICTURES / f"{name}.png")
            wide = browser.evaluate("document.documentElement.scrollWidth - innerWidth")
            found += [f"{name} is {wide} pixels wider than the window"] if wide > 0 else []
    return found


def problems_of_search(browser: Browser) -> list[str]:
    """Returns a line if the search finds nothing."""
    browser.call("Page.navigate", url=(SITE / "index.html").as_uri() + "?q=batch")
    time.sleep(4)
    count = browser.evaluate("document.querySelectorAll('.md-search-result__item').length")
    return [] if count else ["index.html: the search finds nothing"]


def main() -> int:
    """Takes the pictures; the exit status is 1 if something is wrong."""
    parser = argparse.ArgumentParser(description="Pictures of the site, into build/screenshots.")
    parser.add_argument("pages", nargs="*", default=PAGES, help="such as faq.html")
    args = parser.parse_args()
    program = shutil.which("chromium")
    if program is None:
        raise SystemExit("screenshots: chromium is missing: apt-get install chromium")
    PICTURES.mkdir(parents=True, exist_ok=True)
    browser = Browser(program)
    # Otherwise the theme keeps the colors of the first page.
    browser.call("Page.addScriptToEvaluateOnNewDocument", source="localStorage.clear()")
    try:
        found = [problem for page in args.pages for problem in look(browser, page)]
        found += problems_of_search(browser) + problems_of_console(browser)
    finally:
        browser.close()
    print("\n".join(found) if found else "nothing is wrong; the search works")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
