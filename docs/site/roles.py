"""Docstrings as mkdocstrings reads them: roles of reStructuredText are code, examples a section."""

from __future__ import annotations

import re
from typing import Any

import griffe

_EXAMPLE = re.compile(r"^Example:$", re.MULTILINE)
_ROLE = re.compile(r":(?:attr|class|data|exc|func|meth|mod):`~?([^`]+)`")


class Roles(griffe.Extension):
    """Rewrite the docstring of each object as it is loaded."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Replace the roles and the title of the example in one docstring."""
        if obj.docstring is not None:
            text = _ROLE.sub(r"`\1`", obj.docstring.value)
            obj.docstring.value = _EXAMPLE.sub("Examples:", text)
