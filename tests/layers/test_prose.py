"""``make lint`` counts idioms in documents and fragments among docstrings."""

from __future__ import annotations

import pytest
from prose import docstrings_in, idioms_in, is_fragment, rate_of, report


@pytest.mark.parametrize(
    ("sentence", "idiom"),
    [
        ("Loops do not stand in each other.", "stand"),
        ("It trains. Of several that are slow, none goes.", "Of several that are slow,"),
        ("`getBatchSize()` tells one.", "tells"),
        ("Others go\non.", "go on"),
        ("The launcher reads what they print.", "what"),
    ],
)
def test_an_idiom_is_found(sentence: str, idiom: str) -> None:
    assert idioms_in(f"# Title\n\nA line.\n{sentence}\n") == [(4, idiom)]


@pytest.mark.parametrize(
    "text",
    [
        "It says what to do. What is a rank? There is no server, and it is no longer needed.",
        "`whatever stands here`, [elastic](elastic.md#what-stands), <!-- not told -->",
        "| it tells | nobody |\n",
        "# What is told\n",
        "```sh\nmake anew  # whoever you are\n```\n",
        "The standard, a stand-alone program, a layer.",
    ],
)
def test_code_tables_headings_and_questions_are_left_out(text: str) -> None:
    assert idioms_in(text) == []


def test_the_rate_counts_words_of_sentences() -> None:
    assert rate_of("One word stands here.\n\n```\nnot these words\n```\n") == 250
    assert rate_of("| only | a table |\n") == 0


SOURCE = '''
"""Modules, too."""
class A:
    """Of all that belongs to one stay."""
    def f(self):
        """The same in MiB."""
    def g(self):
        """Whether it runs."""
    async def h(self):
        """Return the size."""
def none(): ...
'''


def test_fragments_are_docstrings_without_a_statement() -> None:
    found = list(docstrings_in(SOURCE))
    assert sorted(line for line, text in found) == [2, 4, 6, 8, 10]
    assert [text for _, text in found if is_fragment(text)] == [
        "Of all that belongs to one stay.",
        "The same in MiB.",
    ]


def test_what_is_above_its_limit_is_printed_and_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert report("page", 5.1, 5, ["page:1: anew"], everything=False)
    assert capsys.readouterr().out == "page:1: anew\npage: 5.1, at most 5\n"
    assert not report("page", 5, 5, ["page:1: anew"], everything=False)
    assert capsys.readouterr().out == ""
    assert not report("page", 5, 5, ["page:1: anew"], everything=True)
    assert "page:1: anew" in capsys.readouterr().out
