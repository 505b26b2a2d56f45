"""Scripts that let a shell complete the options of ``horovodrun``, made from its parser. Pure."""

from __future__ import annotations

import argparse
import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

_BASH = """\
# Completion of horovodrun in bash: source it, or put it into
# ~/.local/share/bash-completion/completions/horovodrun
_horovodrun() {
    local words=() word joins= i=1 value= cur is_command=
    # bash cuts words at '=' and ':'; here they are whole again.
    for word in "${COMP_WORDS[@]:0:COMP_CWORD+1}"; do
        if [[ -n $joins || $word == [=:] ]] && ((${#words[@]})); then
            words[-1]+=$word
        else
            words+=("$word")
        fi
        [[ $word == [=:] ]] && joins=1 || joins=
    done
    local last=$((${#words[@]} - 1))
    while ((i < last)); do
        case ${words[i]} in
            --) i=$((i + 1)) is_command=1 && break ;;
            @TAKING@) i=$((i + 2)) ;;
            -*) i=$((i + 1)) ;;
            *) break ;;
        esac
    done
    cur=${words[last]}
    if ((i > last)); then
        value=${words[last - 1]}
    elif ((i < last)); then
        value=COMMAND
    elif [[ -z $is_command && $cur == -*=* ]]; then
        value=${cur%%=*} cur=${cur#*=}
    elif [[ -z $is_command && $cur == -* ]]; then
        value=OPTION
    fi
    COMPREPLY=()
    case $value in
        OPTION) mapfile -t COMPREPLY < <(compgen -W '@OPTIONS@' -- "$cur") ;;
        '') mapfile -t COMPREPLY < <(
            compgen -W 'doctor report-issue' -- "$cur"
            compgen -c -- "$cur"
        ) ;;
@CHOICES@
        COMMAND | @FILES@)
            compopt -o filenames 2> /dev/null
            mapfile -t COMPREPLY < <(compgen -f -- "$cur") ;;
    esac
}
complete -F _horovodrun horovodrun
"""

_ZSH = """\
#compdef horovodrun
# Completion of horovodrun in zsh: save it as _horovodrun in a folder of $fpath.
_horovodrun() {
    _arguments \\
@OPTIONS@
        '(-)1:command:{ _command_names -e; compadd doctor report-issue }' \\
        '*::arguments:_normal'
}
if [[ $funcstack[1] == _horovodrun ]]; then
    _horovodrun "$@"
else
    compdef _horovodrun horovodrun
fi
"""

_FISH_TITLE = """\
# Completion of horovodrun in fish: save it as
# ~/.config/fish/completions/horovodrun.fish"""
_FISH_COMMANDS = (
    "complete -c horovodrun -n __fish_is_first_token -a doctor -d 'examine old scripts'",
    "complete -c horovodrun -n __fish_is_first_token -a report-issue -d 'report a fault'",
)


@dataclass(frozen=True)
class _Option:
    """One option: its spellings, what it says, and what its value is.

    Attributes:
        names: with dashes.
        help: one line.
        value: the name of its value; empty for a switch.
        choices: the only values allowed; empty for any.
        is_path: whether the value is a file or a folder.
    """

    names: Sequence[str]
    help: str
    value: str
    choices: Sequence[str]
    is_path: bool


def script_of(shell: str, parser: argparse.ArgumentParser) -> str:
    """The script for a shell.

    Args:
        shell: a key of :data:`SCRIPTS`.
        parser: of the command line.
    """
    return SCRIPTS[shell](list(_options(parser)))


def _options(parser: argparse.ArgumentParser) -> Iterable[_Option]:
    for action in parser._actions:
        if action.help is not argparse.SUPPRESS:
            value = "" if action.nargs == 0 else str(action.metavar or action.dest)
            is_path = value in ("FILE", "DIR") or bool(re.search(r"file(name)?$", action.dest))
            choices = [str(each) for each in action.choices or ()]
            text = (action.help or "").replace("%%", "%")
            yield _Option(action.option_strings, text, value, choices, is_path and not choices)


def _bash(options: Sequence[_Option]) -> str:
    def names(chosen: Callable[[_Option], object], separator: str = " | ") -> str:
        return separator.join(name for option in options if chosen(option) for name in option.names)

    choices = "\n".join(
        f"        {' | '.join(option.names)}) mapfile -t COMPREPLY < "
        f"<(compgen -W '{' '.join(option.choices)}' -- \"{_typed(option)}\") ;;"
        for option in options
        if option.choices
    )
    return (
        _BASH.replace("@TAKING@", names(lambda each: each.value))
        .replace("@OPTIONS@", names(lambda each: True, " "))
        .replace("@CHOICES@", choices)
        .replace("@FILES@", names(lambda each: each.is_path))
    )


def _typed(option: _Option) -> str:
    """Return the typed part of a value for the shell, in capitals if all choices are capitals."""
    return "${cur^^}" if all(map(str.isupper, option.choices)) else "$cur"


def _zsh(options: Sequence[_Option]) -> str:
    lines = []
    for option in options:
        what = re.sub(r"([\[\]:\\])", r"\\\1", option.help)
        value = option.value.replace(":", r"\:")
        how = (
            f"({' '.join(option.choices)})"
            if option.choices
            else "_files"
            if option.is_path
            else ""
        )
        tail = f"[{what}]" + (f":{value}:{how}" if option.value else "")
        lines += [f"        {shlex.quote(name + tail)} \\" for name in option.names]
    return _ZSH.replace("@OPTIONS@", "\n".join(lines))


def _fish(options: Sequence[_Option]) -> str:
    lines = [_FISH_TITLE]
    for option in options:
        words = ["complete", "-c", "horovodrun"]
        for name in option.names:
            kind = "-l" if name.startswith("--") else "-s" if len(name) == 2 else "-o"
            words += [kind, name.lstrip("-")]
        if option.value:
            words += ["-r"] if option.is_path else ["-x"]
        if option.choices:
            words += ["-a", " ".join(option.choices)]
        lines.append(shlex.join([*words, "-d", option.help]))
    return "\n".join([*lines, *_FISH_COMMANDS, ""])


SCRIPTS: dict[str, Callable[[Sequence[_Option]], str]] = {
    "bash": _bash,
    "zsh": _zsh,
    "fish": _fish,
}
