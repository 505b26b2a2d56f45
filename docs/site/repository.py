"""Files of the repository that documents link to: the site has a page for each.

So the site needs no server that shows the repository, and a link never leads out of it.
"""

from __future__ import annotations

import ast
import json
import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
_CODE_OR_LINK = re.compile(
    r"(^```.*?^```$|`[^`\n]*`)|(?<=\]\()(?!https?:|mailto:|#)([^)#\s]+)", re.MULTILINE | re.DOTALL
)
_COLOR = re.compile(r"\x1b\[[0-9;]*m")
_IMAGES = {".jpg", ".png", ".svg", ".json"}
_LISTED = {".py", ".yml"}


def page_of(path: str) -> str:
    """Return where the site has a file or folder of the repository, from the root of its pages."""
    if path == "README.md":
        return "index.md"
    is_folder = (ROOT / path).is_dir()
    page = path.removeprefix("docs/") if path.startswith("docs/") else f"repository/{path}"
    if is_folder:
        return f"{page}/index.md"
    return page if Path(page).suffix in {".md", *_IMAGES} else f"{page}.md"


def with_links_of_site(markdown: str, path: str) -> str:
    """Return a document of the repository whose links lead to pages of the site.

    Args:
        markdown: the document.
        path: its file, from the root of the repository.
    """
    here = posixpath.dirname(page_of(path))

    def replaced(found: re.Match[str]) -> str:
        if found[1]:
            return found[1]
        target = posixpath.normpath(posixpath.join(posixpath.dirname(path), found[2]))
        return posixpath.relpath(page_of(target), here or ".")

    return _CODE_OR_LINK.sub(replaced, markdown)


def linked_files(markdown: str, path: str) -> set[str]:
    """Return the files and folders of the repository that a document links to, also images."""
    return {
        posixpath.normpath(posixpath.join(posixpath.dirname(path), found[2]))
        for found in _CODE_OR_LINK.finditer(markdown)
        if found[2]
    }


def pages_outside_docs(seeds: set[str]) -> dict[str, str]:
    """Return the files and folders that pages of the site need, by the page that shows each.

    Args:
        seeds: files of the repository that are pages in any case. Files that these and the
            documents link to, and so on, are the others.
    """
    documents = {path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")}
    pending, seen = sorted(seeds | documents), set(seeds | documents)
    while pending:
        path = pending.pop()
        if (ROOT / path).is_dir():
            found = set(_files_in(path))
        elif path.endswith(".md"):
            found = linked_files((ROOT / path).read_text(), path)
        else:
            continue
        pending += sorted(found - seen)
        seen |= found
    return {
        page_of(path): path
        for path in sorted(seen)
        if path != "README.md" and (not _is_document(path) or (ROOT / path).is_dir())
    }


def _is_document(path: str) -> bool:
    """Return whether MkDocs reads or copies a file by itself."""
    return path.startswith("docs/") and not path.endswith(".ipynb")


def text_of(path: str) -> str | None:
    """Return the page of a file or folder as Markdown, or None for an image, which is copied."""
    file = ROOT / path
    if file.is_dir():
        return _list_of(path)
    if file.suffix == ".md":
        return with_links_of_site(file.read_text(), path)
    if file.suffix in _IMAGES:
        return None
    if file.suffix == ".ipynb":
        return with_links_of_site(_notebook(json.loads(file.read_text())), path)
    return f"# {path}\n\n````{{ .{file.suffix[1:] or 'text'} }}\n{file.read_text()}````\n"


def _notebook(notebook: dict[str, Any]) -> str:
    """Return the cells of an executed notebook, with their outputs as text."""
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"````python\n{source}\n````")
        text = "".join(_text_of_output(output) for output in cell["outputs"])
        if text.strip():
            parts.append(f"````text\n{text.rstrip()}\n````")
    return "\n\n".join(parts) + "\n"


def _text_of_output(output: dict[str, Any]) -> str:
    """Return what a cell has printed, returned or raised, without colors."""
    if output["output_type"] == "error":
        return _COLOR.sub("", "\n".join(output["traceback"]))
    text = output["text"] if "text" in output else output["data"].get("text/plain", "")
    return _COLOR.sub("", "".join(text))


def _files_in(folder: str) -> list[str]:
    kinds = {".md"} if folder.startswith("docs/") else _LISTED
    found = sorted(path for path in (ROOT / folder).rglob("*") if path.suffix in kinds)
    return [path.relative_to(ROOT).as_posix() for path in found]


def _list_of(folder: str) -> str:
    """Return a page with the first sentence, or the title, of each file of a folder."""
    title = folder.rpartition("/")[2].capitalize()
    lines = [f"# {title}", ""]
    for path in _files_in(folder):
        name = posixpath.relpath(page_of(path), posixpath.dirname(page_of(folder)))
        lines.append(f"- [{_title_of(path, folder)}]({name}){_sentence_of(path)}")
    return "\n".join(lines) + "\n"


def _title_of(path: str, folder: str) -> str:
    if not path.endswith(".md"):
        return f"`{path.removeprefix(folder + '/')}`"
    first = (ROOT / path).read_text().partition("\n")[0]
    return first.removeprefix("# ")


def _sentence_of(path: str) -> str:
    if not path.endswith(".py"):
        return ""
    docstring = ast.get_docstring(ast.parse((ROOT / path).read_text())) or ""
    return f": {docstring.partition(chr(10))[0]}"
