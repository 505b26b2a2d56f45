"""What a program gets in place of a placeholder: values x places x shells."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from horovod.runner.experiment.grid import SHELL, Line, filled
from horovod.runner.experiment.job_file import parse_job_file
from horovod.runner.experiment.placeholders import (
    Place,
    fill_line,
    malformed,
    placeholders_in,
    places_in,
)
from horovod.runner.experiment.plan import plan_text

if TYPE_CHECKING:
    from pathlib import Path

VALUES = {
    "number": "1e-5",
    "path": "data/a-b_c.txt",
    "empty": "",
    "blank": "a b",
    "blanks": "  a  b ",
    "apostrophe": "it's",
    "quotes": 'say "no"',
    "command": "$(touch pwned)",
    "ticks": "`touch pwned`",
    "variable": "$HOME",
    "pattern": "*",
    "braces": "{a,b}",
    "tilde": "~",
    "comment": "#a",
    "history": "!a",
    "operators": "a;touch pwned&b|c>d",
    "option": "-n",
    "backslash": "a\\b\\",
    "newline": "a\nb",
    "letters": "größer",
    "placeholder": "{{y}}",
}
# What writes each of its arguments on a line of its own, ended by a NUL.
SHOW = "printf '%s\\0'"
ALONE = {
    "last": f"{SHOW} {{{{x}}}}",
    "before an operator": f"true;{SHOW} {{{{ x }}}};true",
    "in a pipe": f"{SHOW} {{{{x}}}}|cat",
    "in a subshell": f"({SHOW} {{{{x}}}})",
    "in a substitution": f'printf %s "$({SHOW} {{{{x}}}} | tr "\\0" "@")" | tr "@" "\\0"',
    "on a line of its own": f"{SHOW} \\\n{{{{x}}}}\n",
    "behind a comment": f"# it's\n{SHOW} {{{{x}}}}",
    "behind quotes": f"true \"it's\" 'a\"b'; {SHOW} {{{{x}}}}",
}
QUOTED = {
    "in a word": (f"{SHOW} --x={{{{x}}}}", "--x="),
    "in double quotes": (f'{SHOW} "{{{{x}}}}"', ""),
    "in single quotes": (f"{SHOW} '{{{{x}}}}'", ""),
}
SHELLS = [SHELL, ("sh", "-e", "-c"), ("bash", "-c")]
SHELLS += [("zsh", "-e", "-c")] if shutil.which("zsh") else []


def arguments(line: str, shell: tuple[str, ...], folder: Path, **env: str) -> list[str]:
    """What the program of the line got."""
    words = [*shell, line]
    env = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/home", "LC_ALL": "C.UTF-8", **env}
    done = subprocess.run(words, env=env, cwd=folder, capture_output=True, text=True, check=True)
    assert not list(folder.iterdir()), line
    *found, rest = done.stdout.split("\0")
    assert rest == ""
    return found


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
@pytest.mark.parametrize("place", ALONE)
def test_a_value_that_is_a_word_arrives_as_it_is_written(
    place: str, shell: tuple[str, ...], tmp_path: Path
) -> None:
    for name, value in VALUES.items():
        (line,) = filled({"x": value}, [Line(ALONE[place])]).lines
        assert arguments(line.text, shell, tmp_path) == [value], name


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
@pytest.mark.parametrize("place", QUOTED)
def test_elsewhere_a_value_stays_and_what_changes_it_is_known(
    place: str, shell: tuple[str, ...], tmp_path: Path
) -> None:
    template, before = QUOTED[place]
    (placeholder,) = placeholders_in(template)
    for name, value in VALUES.items():
        line = fill_line(template, {"x": value})
        assert line == template.replace("{{x}}", value)
        if placeholder.keeps(value):
            assert arguments(line, shell, tmp_path) == [before + value], name


@pytest.mark.parametrize("shell", SHELLS, ids=" ".join)
def test_a_variable_is_the_safe_way(shell: tuple[str, ...], tmp_path: Path) -> None:
    for value in VALUES.values():
        line = f'{SHOW} --x="$X" "a $X"'
        assert arguments(line, shell, tmp_path, X=value) == [f"--x={value}", f"a {value}"]


def test_a_plain_word_is_not_quoted_and_the_plan_shows_the_exact_line() -> None:
    text = "project: p\ntrain:\n  run: a {{x}} --b={{x}}\n  parameters: {x: [0.1, 'a b', '']}\n"
    experiment = parse_job_file(text, "job.yml")
    assert [run.lines[0].text for run in experiment.runs] == [
        "a 0.1 --b=0.1",
        "a 'a b' --b=a b",
        "a '' --b=",
    ]
    told = plan_text(experiment, [[]]).splitlines()
    assert [each for each in told if each.startswith("  line ")] == [
        f"  line 1: {run.lines[0].text}" for run in experiment.runs
    ]
    assert "each line runs as: bash -e -o pipefail -c LINE" in told
    (warning,) = experiment.warnings
    assert warning == (
        "job.yml:3:3: train.run[0]: the shell changes 'a b' where {{x}} is inside "
        'a word: write "$X" there'
    )


@pytest.mark.parametrize(
    ("line", "places"),
    [
        ("a {{x}} {{x}}b", [Place.ALONE, Place.IN_WORD]),
        ("a $(( {{x}} + (1) ))", [Place.IN_WORD]),
        ("a ${b:-{{x}}}", [Place.IN_WORD]),
        ('a "${b:-{{x}}}"', [Place.IN_DOUBLE_QUOTES]),
        ("a $'it\\'s' {{x}}", [Place.ALONE]),
        ("a \\'{{x}} {{x}}", [Place.IN_WORD, Place.ALONE]),
        ("a \\ {{x}}", [Place.IN_WORD]),
        ("a \\\\ {{x}}", [Place.ALONE]),
        ("a\\\n{{x}}", [Place.IN_WORD]),
        ("a \\\n{{x}}\\\n b", [Place.ALONE]),
        ("cat <<E {{x}}\n{{x}}\nE\na {{x}}", [Place.ALONE, Place.IN_TEXT, Place.ALONE]),
        ("cat <<-'E'\n\t{{x}} it's\n\tE\na {{x}}", [Place.IN_QUOTED_TEXT, Place.ALONE]),
        ("cat <<< {{x}}", [Place.ALONE]),
        ("a # it's {{x}}\nb {{x}}", [Place.IN_QUOTED_TEXT, Place.ALONE]),
        ("it's {{x}}", [Place.IN_SINGLE_QUOTES]),
        ("case a in a) b {{x}};; esac", [Place.ALONE]),
    ],
)
def test_places(line: str, places: list[Place]) -> None:
    assert [each.place for each in placeholders_in(line)] == places
    assert len(places_in(line)) == len(line)


def test_what_only_looks_like_a_placeholder_is_found() -> None:
    filters = ["{{lr|int}}", "{{ lr.x }}", "{{ lr x }}", "{{other.x}}", "{{a | b}}"]
    for text in [*filters, "{{{lr}}}", "${{lr}}", "{{lr}"]:
        (only,) = malformed(f"a {text} {{{{lr}}}}", ["lr"])
        assert only.rstrip() == text
    for text in ("{{}}", "'{{.State}}'", "'{{json .}}'", "${lr}", "{lr}", "{{lr}}", "{{ lr }}"):
        assert list(malformed(f"a {text}", ["lr"])) == []


@pytest.mark.parametrize("value", ["~/data", "$HOME/data", "${HOME}"])
def test_what_a_shell_would_have_expanded_is_said_to_be_quoted(value: str) -> None:
    text = "project: p\ntrain:\n  run: a {{dir}} b{{dir}}\n"
    text += f"  parameters: {{dir: ['{value}']}}\n"
    quoted, *others = parse_job_file(text, "job.yml").warnings
    assert f"{value!r} is quoted where {{{{dir}}}} is a word of its own" in quoted
    assert all("is quoted" not in each for each in others)
