"""The command line of ``horovodrun``: which words belong to it, and what they mean.

Everything from the first word that is not an option belongs to the user's command, also words that
look like options of ``horovodrun``.
"""

from __future__ import annotations

import argparse
import difflib
from typing import TYPE_CHECKING, Any, NoReturn

from horovod.errors import UsageError
from horovod.runner.settings.flags import FLAGS, heading_of, help_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from horovod._settings.setting import Setting

_USAGE = "horovodrun [options] COMMAND [ARGUMENTS ...]"
EXAMPLE = "horovodrun -np 2 python train.py"
BACKENDS = ("hosts", "ray")
SHELLS = ("bash", "zsh", "fish")
SHORT_HELP = f"""\
usage: {_USAGE}
for example: {EXAMPLE}
'horovodrun --help' lists the options; 'horovodrun experiment --help' is for job files,
'horovodrun doctor --help' for old scripts"""


class _Parser(argparse.ArgumentParser):
    """An ArgumentParser whose complaints are exceptions of one line."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


class _Options:
    """A parser that remembers how many words follow each option."""

    def __init__(self) -> None:
        self.parser = _Parser(
            prog="horovodrun",
            usage=_USAGE,
            description="Starts COMMAND once per rank and monitors the ranks. For example:\n"
            f"  {EXAMPLE}\n'horovodrun experiment' is for job files, 'horovodrun doctor' for old "
            "scripts.",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
            add_help=False,
        )
        self.num_words: dict[str, int] = {}
        self._groups: dict[str, argparse._ArgumentGroup] = {}

    def add(self, section: str, *names: str, **settings: Any) -> None:
        if section not in self._groups:
            self._groups[section] = self.parser.add_argument_group(section)
        action = self._groups[section].add_argument(*names, **settings)
        num_words = action.nargs if isinstance(action.nargs, int) else 1
        self.num_words.update(dict.fromkeys(names, num_words))


def _make_options() -> _Options:
    options = _Options()
    _add_job(options)
    _add_elastic(options)
    _add_output(options)
    for flag in FLAGS:
        _add_flag(options, flag)
    return options


def _add_job(options: _Options) -> None:
    add = options.add
    section = "job"
    add(section, "-h", "--help", action="help", help="show this text and exit")
    add(section, "-v", "--version", action="store_true", help="print the version and exit")
    add(
        section,
        "-cb",
        "--check-build",
        action="store_true",
        help="list frameworks and libraries and exit",
    )
    add(
        section,
        "--print-completion",
        choices=SHELLS,
        help="print what lets a shell complete these options, and exit",
    )
    add(
        section,
        "--check",
        action="store_true",
        help="examine the hosts of -H and exit; exit code 1 if something is wrong",
    )
    add(section, "--dry-run", action="store_true", help="print what would run and exit")
    add(
        section,
        "-f",
        "--job-file",
        metavar="FILE",
        help="a job file, which says what to run on how many ranks; see 'experiment --help'",
    )
    add(section, "-d", "--detach", action="store_true", help="run a job file in the background")
    add(section, "--resume", type=int, metavar="ID", help="what has not finished of an experiment")
    add(
        section,
        "--backend",
        choices=BACKENDS,
        help="where a job file runs: on hosts, which is the default, or on a Ray cluster",
    )
    add(section, "--config-file", metavar="FILE", help="YAML with values for the flags below")
    _add_hosts(options, section)
    _add_start(options, section)


def _add_hosts(options: _Options, section: str) -> None:
    add = options.add
    add(
        section, "-np", "--num-proc", dest="num_proc", type=int, metavar="N", help="number of ranks"
    )
    add(section, "-H", "--hosts", metavar="HOST:SLOTS,...", help="default: localhost:N")
    add(section, "-hostfile", "--hostfile", metavar="FILE", help="one 'HOST slots=N' per line")
    add(section, "-p", "--ssh-port", type=int, metavar="PORT", help="port of sshd on every host")
    add(section, "-i", "--ssh-identity-file", metavar="FILE", help="private key for ssh")
    add(section, "--num-nodes", type=int, metavar="N", help="number of hosts that run horovodrun")
    add(section, "--node-rank", type=int, metavar="I", help="number of this host, from 0")
    add(section, "--rendezvous", metavar="HOST:PORT", help="address for the store of node 0")
    add(
        section,
        "--network-interfaces",
        "--network-interface",
        dest="network_interfaces",
        action="append",
        metavar="NAME,...",
        help="interfaces for the traffic of the ranks; default: one that all hosts reach",
    )


def _add_start(options: _Options, section: str) -> None:
    add = options.add
    add(
        section,
        "--start-timeout",
        type=int,
        metavar="SECONDS",
        help="time for all ranks to find each other (default: HOROVOD_START_TIMEOUT, or 30)",
    )
    add(
        section,
        "--grace",
        type=float,
        metavar="SECONDS",
        help="time to end after Ctrl-C or SIGTERM (default: HOROVOD_GRACE_SECONDS, or 30)",
    )
    add(
        section,
        "--stdin-rank",
        type=int,
        metavar="RANK",
        help="the rank that reads horovodrun's stdin, for breakpoint(); default: none",
    )
    add(section, "--tcp", action="store_true", help="keep NCCL from using InfiniBand")
    add(section, "--gloo", action="store_true", help="horovodrun starts the ranks (default)")
    add(section, "--mpi", action="store_true", help="mpirun starts the ranks")
    add(section, "--jsrun", action="store_true", help="jsrun starts the ranks, in a job of LSF")
    add(section, "--mpi-args", default="", metavar="TEXT", help="more options for mpirun or jsrun")
    add(
        section,
        "--binding-args",
        default="",
        metavar="TEXT",
        help="options of mpirun or jsrun for binding ranks",
    )
    add(section, "--disable-cache", action="store_true", help=argparse.SUPPRESS)


def _add_elastic(options: _Options) -> None:
    add = options.add
    section = "elastic training"
    add(
        section,
        "--min-np",
        "--min-num-proc",
        dest="min_num_proc",
        type=int,
        metavar="N",
        help="the fewest ranks with which the job goes on (default: -np)",
    )
    add(
        section,
        "--max-np",
        "--max-num-proc",
        dest="max_num_proc",
        type=int,
        metavar="N",
        help="the most ranks (default: as many as there are slots)",
    )
    add(
        section,
        "--host-discovery-script",
        metavar="COMMAND",
        help="prints one HOST:SLOTS per line; asked once a second",
    )
    add(
        section,
        "--slots-per-host",
        dest="slots",
        type=int,
        metavar="N",
        help="slots of hosts that are named without a number",
    )
    add(
        section,
        "--join-file",
        metavar="FILE",
        help="write into FILE what lets other hosts join the job by themselves, with --join",
    )
    add(
        section,
        "--join",
        metavar="FILE",
        help="let this host join the job that wrote FILE, with -H localhost:N; also '-' for its "
        "text on stdin, or ADDRESS:PORT, then with the secret on stdin",
    )
    add(
        section,
        "--elastic-timeout",
        type=int,
        metavar="SECONDS",
        help="time for enough slots and workers to come (default: HOROVOD_ELASTIC_TIMEOUT, or 600)",
    )
    add(
        section,
        "--reset-limit",
        type=int,
        metavar="N",
        help="how often the ranks may change (default: no limit)",
    )
    add(
        section,
        "--blacklist-cooldown-range",
        "--cooldown-range",
        dest="cooldown_range",
        type=int,
        nargs=2,
        metavar=("MIN", "MAX"),
        help="seconds without workers for a host that failed (default: for ever)",
    )
    add(
        section,
        "--worker-timeout",
        type=float,
        metavar="SECONDS",
        help="silence of a worker's process, as by SIGSTOP, after which it is killed and left out "
        "(default: HOROVOD_WORKER_TIMEOUT, HOROVOD_STALL_CHECK_TIME_SECONDS, or 60)",
    )


def _add_output(options: _Options) -> None:
    add = options.add
    section = "output"
    add(section, "--verbose", action="store_true", help="report each step on stderr")
    add(
        section,
        "--output-filename",
        metavar="DIR",
        help="also write DIR/rank.<rank>/stdout and stderr, without prefixes",
    )
    add(
        section,
        "-prefix-timestamp",
        "--prefix-output-with-timestamp",
        dest="prefix_timestamp",
        action="store_true",
        help="prefix each line with the time",
    )


def _in_case_of(choices: Sequence[str]) -> Callable[[str], str]:
    """Lets a word be typed in any case."""
    return str.upper if all(map(str.isupper, choices)) else str.lower


def _add_flag(options: _Options, flag: Setting) -> None:
    section, attribute = heading_of(flag), flag.attribute
    if flag.flag_kind is not bool:
        options.add(
            section,
            f"--{flag.flag}",
            dest=attribute,
            type=_in_case_of(flag.choices) if flag.words else flag.flag_kind,
            choices=flag.choices or None,
            metavar={int: "N", float: "X"}.get(flag.flag_kind, "TEXT"),
            help=help_of(flag),
        )
        return
    names = ((flag.flag, flag.off, help_of(flag)),)
    aliases = ((on, off, argparse.SUPPRESS) for on, off in flag.aliases)
    for on, off, text in (*names, *aliases):
        hidden = argparse.SUPPRESS if text is argparse.SUPPRESS else f"opposite of --{on}"
        for word, value, help_text in ((on, True, text), (off, False, hidden)):
            options.add(
                section,
                f"--{word}",
                dest=attribute,
                action="store_const",
                const=value,
                help=help_text,
            )


def parse(words: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Reads the words that follow ``horovodrun``.

    A tuning flag that was not given is None in the result.

    Args:
        words: the command line without the program's name.

    Returns:
        The options by attribute, and the user's command, untouched.

    Raises:
        UsageError: a flag is unknown, not supported yet, or has no or a wrong value.
        SystemExit: ``--help`` was asked for and printed.
    """
    options = _make_options()
    own, command = _split(words, options.num_words)
    namespace = options.parser.parse_args(own)
    if namespace.hosts is not None and namespace.hostfile is not None:
        raise UsageError("-H and -hostfile exclude each other")
    return namespace, command


def completion_of(shell: str) -> str:
    """The script that lets a shell, one of :data:`SHELLS`, complete the options."""
    from horovod.runner.cli.completion import script_of

    return script_of(shell, _make_options().parser)


def _split(words: Sequence[str], num_words: dict[str, int]) -> tuple[list[str], list[str]]:
    """Cuts the options from the command, each option with its value in one word."""
    own: list[str] = []
    rest = list(words)
    while rest:
        word = rest[0]
        if word == "--":
            return own, rest[1:]
        if not word.startswith("-") or word == "-":
            break
        name, equals, value = _resolve(word, num_words)
        rest = rest[1:]
        if num_words[name] == 0:
            if equals:
                raise UsageError(f"{name} takes no value, but was given {value!r}")
            own.append(name)
            continue
        count = num_words[name]
        if equals and count > 1:
            raise UsageError(f"{name} takes {count} words: write {name} 1 2, without '='")
        if not equals:
            if len(rest) < count:
                needs = "a value" if count == 1 else f"{count} values"
                raise UsageError(f"{name} needs {needs}")
            values, rest = rest[:count], rest[count:]
            value = values[0]
        own += [f"{name}={value}"] if count == 1 else [name, *values]
    return own, rest


def _resolve(word: str, num_words: dict[str, int]) -> tuple[str, str, str]:
    """Finds the full name of an option, which may be abbreviated or joined with its value."""
    name, equals, value = word.partition("=")
    if name in num_words:
        return name, equals, value
    if name.startswith("--"):
        matches = [known for known in num_words if known.startswith(name)]
        if len(matches) == 1:
            return matches[0], equals, value
        if matches:
            raise UsageError(f"{name} may mean {' or '.join(sorted(matches))}")
    elif num_words.get(word[:2]) == 1:
        return word[:2], "=", word[2:]
    similar = difflib.get_close_matches(name, num_words, n=1)
    hint = f"; did you mean {similar[0]}?" if similar else "; see horovodrun --help"
    raise UsageError(f"unknown option {name}{hint}")
