"""Which address of the launcher all hosts can reach."""

from __future__ import annotations

import pytest

from horovod.errors import StartError
from horovod.runner.protocol.invitation import Invitation
from horovod.runner.supervision.connect_back import ConnectBack

ENDPOINTS = (("10.0.0.1", 1001), ("192.168.0.1", 1002), ("172.17.0.1", 1003))


def test_the_best_address_that_all_hosts_reached_is_chosen() -> None:
    ways = ConnectBack(ENDPOINTS, ["a", "b"])
    ways.reached("a", 2)
    ways.reached("a", 1)
    assert ways.choice() is None
    assert ways.failure() == ""
    ways.reached("b", 1)
    assert ways.choice() == ("192.168.0.1", 1002)
    assert ways.failure() == ""


def test_a_host_that_reaches_nothing_is_named() -> None:
    ways = ConnectBack(ENDPOINTS, ["a", "b"])
    ways.reached("a", 0)
    ways.gave_up("b")
    assert ways.failure() == ""  # a is still trying
    ways.gave_up("a")
    assert "no address of this machine can be reached from b: tried 10.0.0.1" in ways.failure()
    assert "--network-interfaces" in ways.failure()


def test_hosts_that_reach_different_addresses_are_told_apart() -> None:
    ways = ConnectBack(ENDPOINTS, ["a", "b"])
    ways.reached("a", 0)
    ways.reached("b", 1)
    ways.reached("b", 2)
    ways.gave_up("a")
    ways.gave_up("b")
    assert "a reached 10.0.0.1; b reached 192.168.0.1, 172.17.0.1" in ways.failure()


def test_numbers_that_nobody_invited_to_are_no_choice() -> None:
    ways = ConnectBack(ENDPOINTS, ["a"])
    ways.reached("a", 3)
    ways.reached("a", -1)
    assert ways.choice() is None
    assert not ways.has_answered("a")
    ways.gave_up("a")
    assert ways.has_answered("a")


def test_an_invitation_survives_the_journey_and_hides_its_secret() -> None:
    invitation = Invitation(ENDPOINTS, b"\x01" * 32, ("eth0",))
    assert Invitation.from_json(invitation.to_json()) == invitation
    assert "\\x01" not in repr(invitation)


@pytest.mark.parametrize("text", [b"", b"[]", b'{"endpoints": 1}', b'{"secret": "00"}', b"\xff"])
def test_what_is_no_invitation_is_refused_without_its_text(text: bytes) -> None:
    with pytest.raises(StartError, match=r"^this is not an invitation: \w+$"):
        Invitation.from_json(text)
