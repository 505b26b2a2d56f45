"""The invitation by which an agent reaches the launcher's store."""

from __future__ import annotations

import json
from dataclasses import field

from horovod._base.fast_dataclass import dataclass
from horovod._rendezvous.secret import check_secret
from horovod.errors import StartError

Endpoint = tuple[str, int]


@dataclass(frozen=True)
class Invitation:
    """The facts that an agent needs to try the launcher's addresses.

    Attributes:
        endpoints: address and port of the store, the best first.
        secret: of the job.
        network_interfaces: the user's choice; empty for any.
    """

    endpoints: tuple[Endpoint, ...]
    secret: bytes = field(repr=False)
    network_interfaces: tuple[str, ...] = ()

    def to_json(self) -> bytes:
        """Serialize for the agent."""
        document = {
            "endpoints": self.endpoints,
            "secret": self.secret.hex(),
            "network_interfaces": self.network_interfaces,
        }
        return json.dumps(document).encode("ascii")

    @staticmethod
    def from_json(text: bytes) -> Invitation:
        """Reads what :meth:`to_json` wrote.

        Raises:
            StartError: it is something else. Nothing of it is repeated: it holds the secret.
        """
        try:
            document = json.loads(text)
            return Invitation(
                tuple((str(address), int(port)) for address, port in document["endpoints"]),
                check_secret(bytes.fromhex(document["secret"])),
                tuple(str(name) for name in document["network_interfaces"]),
            )
        except (ValueError, KeyError, TypeError, RecursionError, StartError) as error:
            raise StartError(f"this is not an invitation: {type(error).__name__}") from None
