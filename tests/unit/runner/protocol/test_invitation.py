"""What an agent is told before it knows its job."""

from __future__ import annotations

import pytest

from horovod.errors import StartError
from horovod.runner.protocol.invitation import Invitation

ENDPOINTS = (("10.0.0.1", 1001), ("192.168.0.1", 1002), ("172.17.0.1", 1003))


def test_an_invitation_survives_the_journey_and_hides_its_secret() -> None:
    invitation = Invitation(ENDPOINTS, b"\x01" * 32, ("eth0",))
    assert Invitation.from_json(invitation.to_json()) == invitation
    assert "\\x01" not in repr(invitation)


@pytest.mark.parametrize("text", [b"", b"[]", b'{"endpoints": 1}', b'{"secret": "00"}', b"\xff"])
def test_what_is_no_invitation_is_refused_without_its_text(text: bytes) -> None:
    with pytest.raises(StartError, match=r"^this is not an invitation: \w+$"):
        Invitation.from_json(text)
