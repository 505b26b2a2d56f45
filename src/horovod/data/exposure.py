"""Check who could reach servers that have no authentication.

The servers of tf.data's service listen on all interfaces of a host and run any graph that they are
sent: a graph can read and write every file of the user who runs the server. TensorFlow can neither
bind them to one address nor let clients prove who they are.
"""

from __future__ import annotations

import os
import pwd
import socket
from contextlib import suppress
from typing import TYPE_CHECKING

from horovod._rendezvous.interfaces import reachable_addresses
from horovod.errors import StartError

if TYPE_CHECKING:
    from collections.abc import Iterable

# Daemons have smaller numbers than people. Those of directories such as LDAP have no upper bound;
# systemd takes these for services that come and go, and the last ones are nobody and "no user".
_FIRST_PERSON = 1000
_SERVICES = range(61184, 65536)
_NO_LOGIN = ("nologin", "false", "sync")
_MOST_NAMED = 3


def check_exposure(accepted: bool) -> None:
    """Refuse to start a server of tf.data's service that somebody else could use.

    Args:
        accepted: whether the user said that anyone who can reach the servers may use them.

    Raises:
        StartError: the host has other users or is on a network, and the user did not say so.
    """
    if accepted:
        return
    reachable_by = _describe_people(other_people(pwd.getpwall(), os.geteuid()))
    with suppress(StartError):  # it has no address but loopback
        reachable_by += [f"anyone who can reach {address}" for address in reachable_addresses()[:1]]
    if reachable_by:
        raise StartError(
            f"tf.data's servers on {socket.gethostname()} would answer anyone who connects "
            f"({', and '.join(reachable_by)}), and run graphs that can read and write all files of "
            f"user {_own_name()}. If nobody else uses the host and its network, start them with "
            "--serve-without-authentication, or "
            "TfDataServiceConfig(..., serve_without_authentication=True)"
        )


def other_people(accounts: Iterable[pwd.struct_passwd], user: int) -> list[str]:
    """Return the names of accounts with which somebody else can log in. Pure.

    Args:
        accounts: all of the host.
        user: the id of this process's user.
    """
    return sorted(
        account.pw_name
        for account in accounts
        if account.pw_uid >= _FIRST_PERSON
        and account.pw_uid not in _SERVICES
        and account.pw_uid != user
        and os.path.basename(account.pw_shell) not in _NO_LOGIN
    )


def _describe_people(names: list[str]) -> list[str]:
    if not names:
        return []
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return [f"other users of the host: {', '.join(names[:_MOST_NAMED])}{more}"]


def _own_name() -> str:
    user = os.geteuid()
    with suppress(KeyError):  # the user of a container may have no account
        return pwd.getpwuid(user).pw_name
    return str(user)
