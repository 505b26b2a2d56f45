"""Marks of documents become titles and tabs, and links lead to pages of the site."""

from __future__ import annotations

import pytest
from markup import rendered
from plots import plot
from repository import page_of, with_links_of_site


def test_sections_become_tabs_and_comments_of_programs_do_not() -> None:
    text = "<!-- tabs -->\n### A\n\n```python\n# one\n```\n\n### B\n\nb\n<!-- end tabs -->\n"
    assert rendered(text) == (
        '=== "A"\n\n    ```python\n    # one\n    ```\n\n=== "B"\n\n    b\n\n'
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<!-- file: a.py -->\n```python\n", '```python title="a.py"\n'),
        ("<!-- output of: a | b -->\n```\n", '```text title="$ a | b"\n'),
        ("<!-- highlight: h -->\n```py\na\nh.b\n```\n", '```py hl_lines="2"\na\nh.b\n```\n'),
        ("<!-- run -->\n```sh\n", "<!-- run -->\n```sh\n"),
    ],
)
def test_marks_of_blocks(text: str, expected: str) -> None:
    assert rendered(text) == expected


@pytest.mark.parametrize(
    ("path", "link", "expected"),
    [
        ("docs/a.md", "../examples", "repository/examples/index.md"),
        ("docs/a.md", "../examples/jax/digits.py", "repository/examples/jax/digits.py.md"),
        ("docs/a.md", "../README.md", "index.md"),
        ("docs/a.md", "jax.md#gpus", "jax.md#gpus"),
        ("ARCHITECTURE.md", "docs/decisions", "../decisions/index.md"),
        ("benchmarks/README.md", "../docs/jax.md", "../../jax.md"),
        ("docs/decisions/0001.md", "../../CHANGELOG.md", "../repository/CHANGELOG.md"),
        ("docs/a.md", "https://example.org/x.md", "https://example.org/x.md"),
    ],
)
def test_links_lead_to_pages_of_the_site(path: str, link: str, expected: str) -> None:
    assert with_links_of_site(f"[it]({link})", path) == f"[it]({expected})"


def test_links_in_code_stay() -> None:
    text = "`[it](../README.md)`\n```\n[it](../README.md)\n```\n"
    assert with_links_of_site(text, "docs/a.md") == text


def test_pages_of_files() -> None:
    assert page_of("docs/training-step.svg") == "training-step.svg"
    assert page_of("Makefile") == "repository/Makefile.md"


def test_a_plot_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(KeyError):
        plot("no_such_plot")
