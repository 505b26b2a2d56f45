"""Comments by which documents mark blocks and tabs, so that every reader of Markdown shows them.

<!-- file: train.py -->      above a block: its title is the name of the file
<!-- output of: COMMAND -->  above a block: its title is the command
<!-- tabs -->                the sections until <!-- end tabs --> are tabs, by their headings
"""

from __future__ import annotations

import re
import textwrap

_TITLED = re.compile(r"^<!-- (file|output of): (.*?) -->\n```([^\n]*)$", re.MULTILINE)
_HIGHLIGHTED = re.compile(
    r"^<!-- highlight: (.*?) -->\n```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL
)
_TABS = re.compile(r"^<!-- tabs -->\n(.*?)^<!-- end tabs -->$", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^##+ (.*)\n", re.MULTILINE)


def rendered(markdown: str) -> str:
    """Return a document as the site's Markdown, with titles of blocks and with tabs."""
    markdown = _HIGHLIGHTED.sub(_with_lines, _TITLED.sub(_with_title, markdown))
    return _TABS.sub(lambda found: _tabs(found[1]), markdown)


def _with_title(found: re.Match[str]) -> str:
    kind, name, language = found.groups()
    title = name if kind == "file" else f"$ {name}"
    escaped = title.replace('"', "&quot;")
    return f'```{language or "text"} title="{escaped}"'


def _with_lines(found: re.Match[str]) -> str:
    word, language, text = found.groups()
    lines = [str(i) for i, line in enumerate(text.splitlines(), 1) if word in line]
    return f'```{language} hl_lines="{" ".join(lines)}"\n{text}```'


def _tabs(sections: str) -> str:
    """Return tabs with the text of each section, which its heading names."""
    _, *parts = _HEADING.split(sections)
    titles, texts = parts[::2], parts[1::2]
    return "\n".join(
        f'=== "{title}"\n\n{textwrap.indent(text.strip(), "    ")}\n'
        for title, text in zip(titles, texts, strict=True)
    )
