"""Who could reach servers that ask nobody who they are."""

from __future__ import annotations

import pwd

import pytest

from horovod.data import exposure
from horovod.data.exposure import check_exposure, other_people
from horovod.errors import StartError


def account(name: str, user: int, shell: str = "/bin/bash") -> pwd.struct_passwd:
    return pwd.struct_passwd((name, "x", user, user, "", "/", shell))


ALONE = [account("root", 0), account("daemon", 2), account("nobody", 65534, "/usr/sbin/nologin")]


def test_accounts_of_people_count() -> None:
    accounts = [*ALONE, account("zoe", 1001), account("svc", 1002, "/usr/sbin/nologin")]
    assert other_people(accounts, 0) == ["zoe"]
    assert other_people(accounts, 1001) == []
    assert other_people([*accounts, account("ann", 1003)], 1001) == ["ann"]
    assert other_people([account("of-ldap", 200_017), account("dynamic", 61_200)], 0) == ["of-ldap"]


@pytest.mark.parametrize(
    ("accounts", "addresses", "told"),
    [
        (ALONE, [], ""),
        (ALONE, ["192.0.2.7", "fd00::7"], "(anyone who can reach 192.0.2.7)"),
        ([account(f"u{i}", 1000 + i) for i in range(5)], [], "u0, u1, u2 and 2 more)"),
        (
            [account("zoe", 1001)],
            ["192.0.2.7"],
            "(other users of the host: zoe, and anyone who can reach 192.0.2.7)",
        ),
    ],
)
def test_servers_start_where_nobody_else_could_use_them(
    accounts: list[pwd.struct_passwd],
    addresses: list[str],
    told: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def reachable() -> list[str]:
        if not addresses:
            raise StartError("this machine has no address that other hosts could reach")
        return addresses

    monkeypatch.setattr(pwd, "getpwall", lambda: accounts)
    monkeypatch.setattr(exposure.os, "geteuid", lambda: 987_654)  # as in containers: no account
    monkeypatch.setattr(exposure, "reachable_addresses", reachable)
    check_exposure(accepted=True)
    if not told:
        return check_exposure(accepted=False)
    with pytest.raises(StartError, match="would answer anyone who connects") as caught:
        check_exposure(accepted=False)
    assert told in str(caught.value)
    assert "all files of user 987654." in str(caught.value)
