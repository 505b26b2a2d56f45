"""The fenced blocks of README and the documents, and what the comment above each says of it.

    <!-- file: train.py -->      the block is that file; commands of the page find it
    <!-- run -->                 its lines run as printed
    <!-- run with jax -->        the same in the environment jax
    <!-- not run: REASON -->     they do not; what they name must exist nevertheless
    <!-- output of: COMMAND -->  the block is printed by that command

Commands stand in blocks of the language ``sh``. A page without a ``train.py`` has that of README.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# tests/site runs their commands, as it takes turns in .ci/run, and tests/jax those with JAX.
PAGES_OF_SITE = ("docs/failures.md", "docs/guide.md", "docs/index.md", "docs/migration.md")
PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    "benchmarks/README.md",
    *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("*.md")),
)
_BLOCK = re.compile(
    r"^(?:<!-- (?P<mark>[^\n]*?) -->\n)?```(?P<language>[^\n]*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Attributes:
        page: path of the document below the root.
        line: number of the line with the opening fence.
        mark: the comment above, or nothing.
        language: what follows the opening fence.
        text: what is inside.
    """

    page: str
    line: int
    mark: str
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def runs(self) -> bool:
        """Whether its lines run, in any environment."""
        return self.mark in ("run", "run with jax")

    def after(self, word: str) -> str:
        """What follows a word of the mark; nothing if the mark is another one."""
        return self.mark.removeprefix(word).strip() if self.mark.startswith(word) else ""


def blocks_in(text: str, page: str) -> list[Block]:
    """The fenced blocks of a document."""
    return [
        Block(
            page,
            text.count("\n", 0, found.start("language")) + 1,
            found["mark"] or "",
            found["language"],
            found["text"],
        )
        for found in _BLOCK.finditer(text)
    ]


def blocks_of(page: str) -> list[Block]:
    return blocks_in((ROOT / page).read_text(), page)


def all_blocks() -> list[Block]:
    return [block for page in PAGES for block in blocks_of(page)]


def files_of(page: str) -> dict[str, str]:
    """The files that the commands of a page find, by name."""
    blocks = [*blocks_of("README.md"), *blocks_of(page)]
    return {block.after("file:"): block.text for block in blocks if block.after("file:")}
