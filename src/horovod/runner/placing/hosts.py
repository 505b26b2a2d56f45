"""Host lists and the assignment of ranks to hosts. Pure: no name is resolved here.

Words: a *slot* is the capacity of a host for one rank. The *local rank* counts the ranks of one
host; the *cross rank* counts the hosts that hold a rank with the same local rank.
"""

from __future__ import annotations

import logging
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from horovod._base.fast_dataclass import dataclass
from horovod.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

_logger = logging.getLogger(__name__)

_HOST = re.compile(
    r"(?:(?P<user>[A-Za-z0-9_][A-Za-z0-9_.-]*)@)?(?:\[(?P<v6>[0-9A-Fa-f:.]+(?:%\w+)?)\]|(?P<name>[A-Za-z0-9_][A-Za-z0-9_.-]*))"
    r"(?::(?P<slots>\d{1,6}))?"
)

_MOST_DIGITS = 6  # of a number of slots
# Of what cannot be read.
_MOST_QUOTED = 80


@dataclass(frozen=True)
class Host:
    """A host and the number of ranks it may hold.

    Attributes:
        name: its name or address, as the user wrote it.
        slots: None if the user gave no number.
        user: whom to log in as there; empty for the one that ssh takes.
    """

    name: str
    slots: int | None
    user: str = ""

    @property
    def hostname(self) -> str:
        """The name, as older programs call it."""
        return self.name

    def __str__(self) -> str:
        """Return the host in the form of an entry in a list of hosts."""
        name = f"[{self.name}]" if ":" in self.name else self.name
        name = f"{self.user}@{name}" if self.user else name
        return name if self.slots is None else f"{name}:{self.slots}"


@dataclass(frozen=True)
class Slot:
    """Place of one rank: its numbers, its host, and the ssh user (empty for ssh's default)."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    hostname: str
    user: str = ""


def is_host_name(name: str) -> bool:
    """Tell whether a list of hosts could name this one."""
    shown = f"[{name}]" if ":" in name else name
    match = _HOST.fullmatch(shown)
    return match is not None and (match["v6"] or match["name"]) == name


def _quoted(entry: str) -> str:
    return repr(entry if len(entry) <= _MOST_QUOTED else f"{entry[:_MOST_QUOTED]}…")


def parse_hosts(text: str, least_slots: int = 1) -> list[Host]:
    """Reads a list such as ``a:2,me@b:4``, ``localhost`` or ``[fe80::1]:2``.

    A host that is named more than once gets the sum of its slots. One with 0 slots is left out,
    with a warning. A comma at the end says nothing.

    Args:
        text: comma-separated ``host``, ``host:slots`` or ``[IPv6 address]:slots``, each of them
            maybe with ``user@`` in front.
        least_slots: of each host; 0 if one may be named that has none now, and stays in the list.

    Returns:
        The hosts in the order in which they were first named.

    Raises:
        UsageError: an entry cannot be read; the message quotes it. Or no host has a slot.
    """
    entries = [entry.strip() for entry in text.split(",")]
    if len(entries) > 1 and not entries[-1]:
        entries.pop()
    hosts = [_parse_host(entry) for entry in entries]
    return _merge(_with_slots(hosts, text) if least_slots else hosts)


def parse_hostfile(text: str, path: str) -> list[Host]:
    """Reads lines such as ``worker-0 slots=4``; blank lines and ``#`` comments are skipped.

    ``worker-0:4`` means the same. Without a number of slots, ``max_slots=`` gives it; beside one it
    says nothing more, because no host ever gets more ranks than it has slots.

    Args:
        text: the contents of the file.
        path: its name, for messages.

    Returns:
        The hosts in the order in which they were first named.

    Raises:
        UsageError: a line cannot be read, or no line names a host.
    """
    hosts = []
    for number, line in enumerate(text.splitlines(), start=1):
        fields = line.split("#", 1)[0].split()
        if not fields:
            continue
        try:
            hosts.append(_parse_line(fields[0], fields[1:]))
        except UsageError as error:
            raise UsageError(f"{path}, line {number}: {error}") from None
    if not hosts:
        raise UsageError(f"{path} names no host; write one 'host slots=N' per line")
    return _merge(_with_slots(hosts, path))


def read_hostfile(path: str) -> list[Host]:
    """Read a hostfile.

    Raises:
        UsageError: it cannot be read, or something is wrong with it.
    """
    try:
        text = Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read the hostfile {path}: {error}") from None
    return parse_hostfile(text, path)


def parse_host_files(filename: str) -> str:
    """The hosts of a hostfile as a list such as ``a:2,b:4``, which :func:`parse_hosts` reads.

    Args:
        filename: see :func:`parse_hostfile`.

    Raises:
        OSError: the file cannot be read.
        UsageError: a line cannot be read, or no line names a host.
    """
    return ",".join(map(str, parse_hostfile(Path(filename).read_text(), filename)))


def _parse_line(entry: str, fields: Sequence[str]) -> Host:
    host = _parse_host(entry)
    numbers: dict[str, int] = {}
    for field in fields:
        key, _, value = field.partition("=")
        key = key.replace("-", "_")
        is_number = value.isascii() and value.isdigit() and len(value) <= _MOST_DIGITS
        if key not in ("slots", "max_slots") or not is_number:
            raise UsageError(
                f"cannot read {_quoted(field)}: write 'host slots=N', followed by 'max_slots=N' "
                "if another launcher needs it"
            )
        numbers[key] = int(value)
    if host.slots is not None and "slots" in numbers:
        raise UsageError(f"{entry!r} already has its slots; 'slots=' repeats them")
    slots = numbers.get("slots", numbers.get("max_slots")) if host.slots is None else host.slots
    return Host(host.name, slots, host.user)


def _with_slots(hosts: Sequence[Host], where: str) -> list[Host]:
    """Those that may hold a rank; the others are named in a warning.

    Args:
        hosts: as they were listed.
        where: for messages.
    """
    kept = [host for host in hosts if host.slots != 0]
    if not kept:
        raise UsageError(f"no host of {where} has a slot: give {hosts[0].name!r} at least one")
    names = {host.name for host in kept}
    empty = dict.fromkeys(host.name for host in hosts if host.name not in names)
    if empty:
        _logger.warning("hosts with 0 slots get no rank: %s", ", ".join(empty))
    return kept


def _parse_host(entry: str) -> Host:
    match = _HOST.fullmatch(entry)
    if match is None:
        raise UsageError(
            f"cannot read the host {_quoted(entry)}: write 'host', 'host:slots' or "
            "'[IPv6 address]:slots', with 'user@' in front if need be"
        )
    slots = None if match["slots"] is None else int(match["slots"])
    return Host(match["v6"] or match["name"], slots, match["user"] or "")


def _merge(hosts: Sequence[Host]) -> list[Host]:
    merged: dict[str, Host] = {}
    for host in hosts:
        known = merged.get(host.name)
        if known is not None:
            if known.user != host.user:
                raise UsageError(
                    f"host {host.name!r} is given with two users, {known.user or 'nobody'!r} and "
                    f"{host.user or 'nobody'!r}: name the same one each time"
                )
            host = Host(host.name, (known.slots or 1) + (host.slots or 1), host.user)
        merged[host.name] = host
    return list(merged.values())


def assign(hosts: Sequence[Host], num_proc: int) -> list[Slot]:
    """Fills the slots of the hosts in order until every rank has one.

    A host without a number of slots offers one slot, or all that are needed if it is the only host.

    Args:
        hosts: in the order of their ranks.
        num_proc: how many ranks the job has, exactly.

    Returns:
        One slot per rank, in the order of ranks.

    Raises:
        UsageError: ``num_proc`` is not positive, or there are fewer slots than ranks.
    """
    if num_proc < 1:
        raise UsageError(f"a job of {num_proc} ranks cannot run: give at least 1")
    default = num_proc if len(hosts) == 1 else 1
    capacities = [default if host.slots is None else host.slots for host in hosts]
    if (num_slots := sum(capacities)) < num_proc:
        slots = f"{num_slots} slot{'s are' if num_slots != 1 else ' is'}"
        raise UsageError(
            f"{num_proc} ranks were requested, but only {slots} available on "
            + ", ".join(f"{host.name}:{n}" for host, n in zip(hosts, capacities, strict=True))
        )
    places: list[tuple[str, int]] = []
    local_sizes: dict[str, int] = {}
    for host, capacity in zip(hosts, capacities, strict=True):
        local_sizes[host.name] = min(capacity, num_proc - len(places))
        places += [(host.name, local_rank) for local_rank in range(local_sizes[host.name])]
    users = {host.name: host.user for host in hosts}
    return [
        replace(_slot(rank, hostname, local_rank, local_sizes), user=users[hostname])
        for rank, (hostname, local_rank) in enumerate(places)
    ]


def get_host_assignments(
    hosts: Sequence[Host], min_num_proc: int, max_num_proc: int | None = None
) -> list[Slot]:
    """Fills the slots of the hosts in order, with as many ranks as there is room for.

    Args:
        hosts: in the order of their ranks; one without a number of slots offers one.
        min_num_proc: how many ranks the job has at least.
        max_num_proc: and at most; None for all slots.

    Returns:
        One slot per rank, in the order of ranks.

    Raises:
        UsageError: there are fewer slots than ``min_num_proc``.
    """
    num_slots = sum(1 if host.slots is None else host.slots for host in hosts)
    num_proc = num_slots if max_num_proc is None else min(num_slots, max_num_proc)
    return assign(hosts, max(num_proc, min_num_proc))


def _slot(rank: int, hostname: str, local_rank: int, local_sizes: dict[str, int]) -> Slot:
    owners = [name for name, size in local_sizes.items() if size > local_rank]
    return Slot(
        rank=rank,
        size=sum(local_sizes.values()),
        local_rank=local_rank,
        local_size=local_sizes[hostname],
        cross_rank=owners.index(hostname),
        cross_size=len(owners),
        hostname=hostname,
    )
