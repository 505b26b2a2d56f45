"""README.md for the page of a package index, which has none of the files that it links to.

scikit-build-core calls ``dynamic_metadata`` when it builds; see pyproject.toml.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

README = Path(__file__).resolve().parent.parent / "README.md"
# An image or a link to a file of the repository, not one to an address or inside the page.
IMAGE = re.compile(r"!\[(?P<text>[^]]*)\]\((?P<path>(?![a-z]+:|#)[^)]+)\)")
LINK = re.compile(r"(?<!!)\[(?P<text>[^]]*)\]\((?P<path>(?![a-z]+:|#)[^)]+)\)")


def dynamic_metadata(
    settings: Mapping[str, object], project: Mapping[str, object]
) -> dict[str, object]:
    """Returns the field ``readme``: the README with absolute links.

    They begin with the address ``Source`` of ``[project.urls]``. Without one, links become their
    text, and pictures the sentence that describes them.

    Raises:
        ValueError: if a setting is given; there are none.
    """
    if settings:
        raise ValueError(f"index_readme has no settings, but pyproject.toml has {dict(settings)}.")
    urls = project.get("urls")
    source = urls.get("Source") if isinstance(urls, Mapping) else None
    text = for_index(README.read_text(encoding="utf-8"), source)
    return {"readme": {"content-type": "text/markdown", "text": text}}


def for_index(text: str, source: str | None) -> str:
    """Returns ``text`` with links that work outside the repository at the address ``source``."""
    if source is None:
        return LINK.sub(r"\g<text>", IMAGE.sub(r"*\g<text>*", text))
    source = source.rstrip("/")
    text = IMAGE.sub(rf"![\g<text>]({source}/raw/main/\g<path>)", text)
    return LINK.sub(rf"[\g<text>]({source}/blob/main/\g<path>)", text)
