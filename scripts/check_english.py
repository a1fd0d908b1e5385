# SPDX-License-Identifier: BSD-3-Clause
"""Checks the length of sentences in the documents and how comments of headers begin.

    python scripts/check_english.py             # fails where a page has become harder to read
    python scripts/check_english.py docs/a.md   # lists the long sentences of pages

Words are counted in running text: not in tables, headings and blocks of code. A short sentence may
still be hard to read, so this finds the worst only.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MOST_WORDS = 30  # of a sentence
# Lower these numbers, never raise them.
MOST_LONG_SENTENCES = 0
MOST_MEAN = 14.0
MOST_HARD_COMMENTS = 0

WORD = re.compile(r"[A-Za-z0-9']+(?:[-./][A-Za-z0-9']+)*")
HARD_START = re.compile(r"^\s*///? (What|Whether|Of|That|Where|Which) ", re.M)


def sentences(text: str) -> list[str]:
    """The sentences of a page in Markdown."""
    text = re.sub(r"```.*?```|<!--.*?-->", "", text, flags=re.S)
    found = []
    for block in re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.)\s)|\n(?=[#|])", text):
        if block.lstrip().startswith(("|", "#")):
            continue
        flat = re.sub(r"^(?:[-*]|\d+\.)\s+", "", " ".join(block.split()))
        flat = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", flat)
        flat = re.sub(r"`[^`]*`", "Code", flat)
        found += re.split(r"(?<=[.!?])[\"”)]*\s+(?=[A-Z0-9*\"(])", flat)
    return [sentence for sentence in found if words(sentence) > 2]


def words(sentence: str) -> int:
    return len(WORD.findall(sentence))


def pages() -> list[Path]:
    top = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]
    return [*top, *sorted((ROOT / "docs").rglob("*.md"))]


def main() -> int:
    given = [Path(name) for name in sys.argv[1:]]
    counts = []
    for page in given or pages():
        own = sentences(page.read_text())
        counts += [words(sentence) for sentence in own]
        for sentence in own if given else []:
            if words(sentence) > MOST_WORDS:
                print(f"{page}: {words(sentence)} words: {sentence}")
    mean = sum(counts) / max(len(counts), 1)
    long = sum(count > MOST_WORDS for count in counts)
    print(f"{len(counts)} sentences, mean {mean:.1f} words, {long} above {MOST_WORDS}")
    if given:
        return 0
    headers = [*(ROOT / "csrc").rglob("*.h")]
    hard = sum(len(HARD_START.findall(header.read_text())) for header in headers)
    print(f"{hard} comments of headers begin with What, Whether, Of, That, Where or Which")
    is_worse = mean > MOST_MEAN or long > MOST_LONG_SENTENCES or hard > MOST_HARD_COMMENTS
    if is_worse:
        print(
            f"check_english: expected a mean of at most {MOST_MEAN} words, at most"
            f" {MOST_LONG_SENTENCES} long sentences and {MOST_HARD_COMMENTS} such comments: write"
            " shorter sentences, and begin a comment with what the function does",
            file=sys.stderr,
        )
    return int(is_worse)


if __name__ == "__main__":
    sys.exit(main())
