"""The options of ``horovodrun``: one table, and the parser that follows from it.

Each row says in which modes an option may be given; refusals, help and completion follow.
Everything from the first word that is not an option belongs to the user's command, also words that
look like options of ``horovodrun``.
"""

from __future__ import annotations

import argparse
import difflib
from dataclasses import field
from typing import TYPE_CHECKING, Any, NoReturn

from horovod._base.fast_dataclass import dataclass
from horovod.errors import UsageError
from horovod.runner.settings.flags import FLAGS, heading_of, help_of
from horovod.runner.starting.modes import Mode, check_options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from horovod._settings.setting import Setting

_USAGE = "horovodrun [options] COMMAND [ARGUMENTS ...]"
EXAMPLE = "horovodrun -np 2 python train.py"
SHELLS = ("bash", "zsh", "fish")
SHORT_HELP = f"""\
usage: {_USAGE}
for example: {EXAMPLE}
'horovodrun --help' lists the options; 'horovodrun experiment --help' is for job files, and so on:
'doctor' is for old scripts, 'dashboard' or 'watch' for a running job, 'report-issue' for a fault"""
CHOSEN_BY = {
    Mode.ELASTIC: "--min-np, --host-discovery-script or --join-file",
    Mode.NODE: "--node-rank",
    Mode.MPI: "--mpi or --jsrun",
    Mode.JOB_FILE: "-f",
    Mode.JOIN: "--join",
    Mode.CHECK: "--check",
}


@dataclass(frozen=True)
class Option:
    """One option.

    Attributes:
        section: of the help.
        names: as the user writes it.
        modes: where it may be given.
        help: one line.
        more: further arguments of ``add_argument``.
    """

    section: str
    names: tuple[str, ...]
    modes: Mode
    help: str
    more: Mapping[str, Any] = field(default_factory=dict)


def _switch(names: str, modes: Mode, text: str, section: str = "job", **more: Any) -> Option:
    return Option(section, tuple(names.split()), modes, text, {"action": "store_true", **more})


def _value(
    names: str,
    metavar: str | tuple[str, ...] | None,
    modes: Mode,
    text: str,
    section: str = "job",
    **more: Any,
) -> Option:
    """An option with a value; the metavars of :data:`_INTEGERS` make it an integer."""
    kinds = {"type": int} if metavar in _INTEGERS else {}
    return Option(section, tuple(names.split()), modes, text, {"metavar": metavar, **kinds, **more})


# Number of words of an option whose value may be left out.
_OPTIONAL = -1
_INTEGERS = ("N", "I", "ID", "PORT", "RANK", "SECONDS")
_ANY = ~Mode(0)
# What horovodrun starts from a command line, and from anything.
_RANKS = Mode.FIXED | Mode.ELASTIC | Mode.NODE | Mode.MPI
_STARTS = _RANKS | Mode.JOB_FILE
_HOSTS = _STARTS & ~Mode.NODE
_ELASTIC, CHANGES = "elastic training", Mode.ELASTIC | Mode.JOB_FILE

OPTIONS = (
    Option("job", ("-h", "--help"), _ANY, "show this text and exit", {"action": "help"}),
    _switch("-v --version", _ANY, "print the version and exit"),
    _switch("-cb --check-build", _ANY, "list frameworks and libraries and exit"),
    _value("--print-completion", None, _ANY, choices=SHELLS,
           text="print a completion script for a shell and exit"),
    _switch("--check", Mode.CHECK,
            "check the hosts of -H and exit; exit code 1 if there is a fault"),
    _value("--step-ms", "MS", Mode.CHECK, type=float,
           text="milliseconds of a step without communication: forecast it over these hosts"),
    _value("--gradient-mb", "MB", Mode.CHECK, type=float,
           text="million bytes of the gradients of such a step: 4 for each million parameters"),
    _switch("--dry-run", Mode.FIXED | Mode.MPI | Mode.JOB_FILE, "print what would run and exit"),
    _value("-f --job-file", "FILE", Mode.JOB_FILE,
           "run a job file; see 'horovodrun experiment --help'"),
    _switch("-d --detach", Mode.JOB_FILE, "run a job file in the background"),
    _value("--resume", "ID", Mode.JOB_FILE, "continue the unfinished runs of an experiment"),
    _value("--backend", None, Mode.JOB_FILE, choices=("hosts", "ray"),
           text="where a job file runs: on hosts (default) or on a Ray cluster"),
    _value("--config-file", "FILE", _STARTS, "YAML file with values for the flags below"),
    _value("-np --num-proc", "N", _RANKS, "number of ranks", dest="num_proc"),
    _value("-H --hosts", "HOST:SLOTS,...", _ANY, "hosts and their slots (default: localhost:N)"),
    _value("-hostfile --hostfile", "FILE", _ANY, "file with one 'HOST slots=N' per line"),
    _value("-p --ssh-port", "PORT", _HOSTS, "port of sshd on every host"),
    _value("-i --ssh-identity-file", "FILE", _HOSTS, "private key for ssh"),
    _value("--num-nodes", "N", Mode.NODE, "number of hosts that run horovodrun"),
    _value("--node-rank", "I", Mode.NODE, "number of this host, from 0"),
    _value("--rendezvous", "HOST:PORT", Mode.NODE, "address for the store of node 0"),
    _value("--network-interfaces --network-interface", "NAME,...", _STARTS,
           "network interfaces for the ranks (default: one that all hosts can reach)",
           dest="network_interfaces", action="append"),
    _value("--start-timeout", "SECONDS", _STARTS,
           "time for all ranks to find each other (default: HOROVOD_START_TIMEOUT, or 30)"),
    _value("--grace", "SECONDS", _STARTS, type=float, text="time to end after Ctrl-C or SIGTERM "
           "(default: HOROVOD_GRACE_SECONDS, or 30)"),
    _value("--stdin-rank", "RANK", Mode.FIXED,
           "rank that reads horovodrun's stdin, for breakpoint() (default: none)"),
    _switch("--tcp", _STARTS, "keep NCCL from using InfiniBand"),
    _switch("--gloo", _STARTS, "horovodrun starts the ranks (default)"),
    _switch("--mpi", Mode.MPI, "mpirun starts the ranks"),
    _switch("--jsrun", Mode.MPI, "jsrun starts the ranks, in a job of LSF"),
    _value("--mpi-args", "TEXT", Mode.MPI, "more options for mpirun or jsrun", default=""),
    _value("--binding-args", "TEXT", Mode.MPI, "options of mpirun or jsrun for binding ranks",
           default=""),
    _switch("--disable-cache", _ANY, argparse.SUPPRESS),
    _value("--min-np --min-num-proc", "N", Mode.ELASTIC, section=_ELASTIC, dest="min_num_proc",
           text="minimum number of ranks (default: -np)"),
    _value("--max-np --max-num-proc", "N", Mode.ELASTIC, section=_ELASTIC, dest="max_num_proc",
           text="maximum number of ranks (default: number of slots)"),
    _value("--host-discovery-script", "COMMAND", CHANGES,
           "prints one HOST:SLOTS per line; called once a second", _ELASTIC),
    _value("--slots-per-host", "N", CHANGES, "slots of hosts that are listed without a number",
           _ELASTIC, dest="slots"),
    _value("--join-file", "FILE", Mode.ELASTIC, section=_ELASTIC,
           text="write FILE, with which other hosts can join the job through --join"),
    _value("--join", "FILE", Mode.JOIN, section=_ELASTIC,
           text="let this host join the job that wrote FILE, with the slots of -H localhost:N; '-' "
           "reads the text of FILE from stdin, ADDRESS:PORT reads the job's secret from there"),
    _value("--elastic-timeout", "SECONDS", CHANGES, section=_ELASTIC,
           text="time to wait for enough slots and workers (default: HOROVOD_ELASTIC_TIMEOUT, or "
           "600)"),
    _value("--reset-limit", "N", CHANGES,
           "maximum number of changes of the ranks (default: no limit)", _ELASTIC),
    _value("--blacklist-cooldown-range --cooldown-range", ("MIN", "MAX"), CHANGES,
           "seconds for which a failed host gets no workers (default: forever)", _ELASTIC,
           dest="cooldown_range", nargs=2, type=int),
    _value("--worker-timeout", "SECONDS", CHANGES, section=_ELASTIC, type=float,
           text="kill and exclude a worker whose process is silent for so long, as after SIGSTOP "
           "(default: HOROVOD_WORKER_TIMEOUT, HOROVOD_STALL_CHECK_TIME_SECONDS, or 60)"),
    _switch("--verbose", _ANY, "report each step on stderr", "output"),
    _switch("--watch", _RANKS, "print why steps are slow, and what to do", "output"),
    _value("--dashboard", "PORT", _RANKS, nargs="?", const=0, section="output",
           text="serve a live page of the job on 127.0.0.1; needs starlette and uvicorn"),
    _value("--metrics-port", "PORT", _RANKS, section="output",
           text="serve metrics for Prometheus on this port of 127.0.0.1; 0 for any"),
    _value("--output-filename", "DIR", _RANKS,
           "also write DIR/rank.<rank>/stdout and stderr, without prefixes", "output"),
    _switch("-prefix-timestamp --prefix-output-with-timestamp", _STARTS,
            "prefix each line with the time", "output", dest="prefix_timestamp"),
)  # fmt: skip


class _Parser(argparse.ArgumentParser):
    """An ArgumentParser whose complaints are exceptions of one line."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


class _Options:
    """A parser that remembers how many words follow each option, and to which row it belongs."""

    def __init__(self) -> None:
        self.parser = _Parser(
            prog="horovodrun",
            usage=_USAGE,
            description="Starts COMMAND once per rank and monitors the ranks. For example:\n"
            f"  {EXAMPLE}\n'horovodrun experiment' is for job files, 'horovodrun doctor' for old "
            "scripts, 'horovodrun report-issue' for reports of faults.",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
            add_help=False,
        )
        self.num_words: dict[str, int] = {}
        self.modes: dict[str, Mode] = {}
        groups: dict[str, argparse._ArgumentGroup] = {}
        for row in (*OPTIONS, *(row for flag in FLAGS for row in _rows_of(flag))):
            if row.section not in groups:
                groups[row.section] = self.parser.add_argument_group(row.section)
            action = groups[row.section].add_argument(*row.names, help=row.help, **row.more)
            num_words = action.nargs if isinstance(action.nargs, int) else 1
            num_words = _OPTIONAL if action.nargs == "?" else num_words
            self.num_words.update(dict.fromkeys(row.names, num_words))
            self.modes.update(dict.fromkeys(row.names, row.modes))


def _rows_of(flag: Setting) -> Iterator[Option]:
    """Yield what sets a variable of the ranks; a switch is two options, one for on and one off."""
    section, attribute = heading_of(flag), flag.attribute
    if flag.flag_kind is not bool:
        more: dict[str, Any] = {
            "dest": attribute,
            "type": _in_case_of(flag.choices) if flag.words else flag.flag_kind,
            "choices": flag.choices or None,
            "metavar": {int: "N", float: "X"}.get(flag.flag_kind, "TEXT"),
        }
        yield Option(section, (f"--{flag.flag}",), _STARTS, help_of(flag), more)
        return
    names = ((flag.flag, flag.off, help_of(flag)),)
    aliases = ((on, off, argparse.SUPPRESS) for on, off in flag.aliases)
    for on, off, text in (*names, *aliases):
        hidden = argparse.SUPPRESS if text is argparse.SUPPRESS else f"opposite of --{on}"
        for word, value, help_text in ((on, True, text), (off, False, hidden)):
            more = {"dest": attribute, "action": "store_const", "const": value}
            yield Option(section, (f"--{word}",), _STARTS, help_text, more)


def _in_case_of(choices: Sequence[str]) -> Callable[[str], str]:
    """Lets a word be typed in any case."""
    return str.upper if all(map(str.isupper, choices)) else str.lower


@dataclass(frozen=True)
class CommandLine:
    """Command line as the user wrote it.

    Attributes:
        values: the value of each option by attribute; None for a tuning flag that was not given.
        given: the options as they were spelled, each with its modes.
        command: that of the user, untouched.
    """

    values: argparse.Namespace
    given: Mapping[str, Mode]
    command: tuple[str, ...]

    def check(self, mode: Mode) -> None:
        """Refuse options and commands that do not fit the mode.

        Raises:
            UsageError: one does not fit.
        """
        if mode is Mode.CHECK:  # added to the line of a job, it examines the hosts of that job
            return
        given = {"a command": _RANKS, **self.given} if self.command else self.given
        check_options(given, mode, CHOSEN_BY)


def parse(words: Sequence[str]) -> CommandLine:
    """Reads the words that follow ``horovodrun``.

    Raises:
        UsageError: a flag is unknown, not supported yet, or has no or a wrong value.
        SystemExit: ``--help`` was asked for and printed.
    """
    options = _Options()
    own, command = _split(words, options.num_words)
    values = options.parser.parse_args(own)
    if values.hosts is not None and values.hostfile is not None:
        raise UsageError("-H and -hostfile are mutually exclusive")
    names = [word.partition("=")[0] for word in own if word.startswith("-")]
    given = {name: options.modes[name] for name in names if name in options.modes}
    return CommandLine(values, given, tuple(command))


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of all options."""
    return _Options().parser


def words_after_options() -> dict[str, int]:
    """Return how many words follow each option; -1 if its value may be left out."""
    return _Options().num_words


def completion_of(shell: str) -> str:
    """The script that lets a shell, one of :data:`SHELLS`, complete the options."""
    from horovod.runner.cli.completion import script_of

    return script_of(shell, make_parser())


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
        if num_words[name] == _OPTIONAL:  # only behind "=": the next word may be the command
            own.append(f"{name}{equals}{value}")
            continue
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
