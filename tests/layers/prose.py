"""Counts what makes readers stop: idioms in documents, and fragments as docstrings in ``src``.

Usage: ``python tests/layers/prose.py [--list]``. Prints file and line of each idiom in a document
above its limit, and of each fragment if there are too many, and fails. ``--list`` prints them all.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = ("*.md", "docs/**/*.md", "benchmarks/**/*.md", "examples/**/*.md", "apps/**/*.md")
IDIOMS_PER_1000_WORDS = 5.0  # in each document
FRAGMENTS_PERCENT = 2.0  # of all docstrings

# Translated phrases, each with plain English for it.
IDIOMS = {
    r"stands?(?!-alone)|stood": "is, exists, must be",
    r"lies?|lay": "is in, is at",
    r"tells?|told": "says, reports, returns, logs",
    r"anew": "again, from the beginning",
    r"beside": "next to, in addition to",
    r"(?<!there )(?:is|are) no(?! longer| one)": "is not a, is invalid",
    r"whoever|whatever": "anyone who, everything that",
    r"(?:go|goes|going|went|gone) on|trains? on(?=[.,;:)])": "continue",
    r"of (?:its|their|one's|your|his) own|an own": "its own, separate",
    r"(?:why|whether|that|if) it is so": "the reason; whether that happened",
    r"but for|save for": "except for",
    r"in place of": "instead of",
    r"for ever|shall": "forever; must, will",
    r"awaits?": "waits for",
    r"becomes? of": "happens to",
    r"somebody|nobody": "name the one who acts",
    r"(?:knows?|hears?|speaks?|asks?) of": "name the fact",
    r"as (?:do|does|did|are|is) (?:all|those|that|the)": "a sentence for it",
    r"equally (?:often|many|few|long)": "the same number of",
    r"takes? (?:(?:it|them)sel(?:f|ves) for|the place)": "reports; replaces",
    r"goes? (?:together )?with": "can be combined with, applies to",
    r"so (?:do|does|did|is|are|has|have) (?:a|the|those|its|it|they|all)|will do": "also; works",
    r"follows? the pace|there twice": "adapts to; duplicated",
    r"(?<=[.;:] )Of (?!course)[^.]*?,|(?<=[.;:] )Such(?= as)": "begin with the subject",
    r"what(?! to\b)(?=\s)(?![^.;:]*\?)": "a noun",
    r"(?:how|where|which|who|whether) (?:that|this|it|they) (?:is|are)": "a noun",
}
_IDIOM = re.compile(
    rf"\b(?:{'|'.join(f'(?:{pattern})' for pattern in IDIOMS)})(?!\w)", re.IGNORECASE
)
_NOT_PROSE = re.compile(
    r"^```.*?^```|^\|.*?$|^#.*?$|<!--.*?-->|`[^`]*`|(?<=\])\([^)]*\)|https?://\S+",
    re.MULTILINE | re.DOTALL,
)
_FRAGMENT = re.compile(r"(?:What|How|Where|Why|Who|Whose|Whom|As|Of|Such|The same)\b(?!.*\?)")


def prose_of(document: str) -> str:
    """Return the sentences of a document, each on its line; all else becomes blanks."""
    return _NOT_PROSE.sub(lambda other: re.sub(r"[^\n]", " ", other[0]), document)


def idioms_in(document: str) -> list[tuple[int, str]]:
    """Return line and text of each idiom in the sentences of a document."""
    prose = prose_of(document)
    found = _IDIOM.finditer(prose.replace("\n", " "))
    return [(prose.count("\n", 0, idiom.start()) + 1, idiom[0]) for idiom in found]


def rate_of(document: str) -> float:
    """Return the idioms of a document per 1,000 words."""
    words = len(re.findall(r"[\w'-]*\w", prose_of(document)))
    return 1000 * len(idioms_in(document)) / max(words, 1)


def docstrings_in(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of each docstring of a module."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield node.body[0].lineno, text


def is_fragment(docstring: str) -> bool:
    """Whether a docstring begins with a clause that has no subject and verb."""
    return bool(_FRAGMENT.match(docstring))


def report(title: str, value: float, limit: float, finds: list[str], everything: bool) -> bool:
    """Print a value with its finds if it is above its limit, and return whether it is."""
    if everything or value > limit:
        print(*finds, f"{title}: {value:.1f}, at most {limit:g}", sep="\n")
    return value > limit


def main() -> int:
    everything, failed = "--list" in sys.argv[1:], False
    for path in sorted(path for pattern in DOCUMENTS for path in ROOT.glob(pattern)):
        name, text = path.relative_to(ROOT), path.read_text()
        finds = [f"{name}:{line}: {idiom}" for line, idiom in idioms_in(text)]
        title = f"{name}, idioms per 1,000 words"
        failed |= report(title, rate_of(text), IDIOMS_PER_1000_WORDS, finds, everything)
    total, fragments = 0, []
    for path in sorted((ROOT / "src").rglob("*.py")):
        for line, text in docstrings_in(path.read_text()):
            total += 1
            if is_fragment(text):
                fragments.append(f"{path.relative_to(ROOT)}:{line}: {text.splitlines()[0]}")
    percent = 100 * len(fragments) / total
    title = "src, percentage of docstrings that are fragments"
    return int(report(title, percent, FRAGMENTS_PERCENT, fragments, everything) or failed)


if __name__ == "__main__":
    sys.exit(main())
