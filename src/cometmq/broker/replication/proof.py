"""Prove to a master, over its broker port, that a connection to its port for slaves is a slave's."""

from __future__ import annotations

from cometmq.broker.config import BrokerConfig
from cometmq.errors import CometMQError, ProtocolError
from cometmq.logs.loggers import get_logger
from cometmq.protocol import requests
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.command import RemotingCommand, Request, response
from cometmq.protocol.headers import AdmitSlaveRequestHeader, AdmitSlaveResponseHeader
from cometmq.protocol.replication import TOKEN_SIZE
from cometmq.remoting.client import RemotingClient
from cometmq.remoting.connection import Connection
from cometmq.remoting.dispatch import Handlers
from cometmq.replication.admission import SlaveAdmission

log = get_logger(__name__)

_TIMEOUT_S = 3.0


class ProofHandlers:
    """Gives tokens to slaves. For the loop's thread only.

    Without access control nobody checks who asks, and the answer is the one of a broker that does not
    know the request.
    """

    def __init__(self, config: BrokerConfig, admission: SlaveAdmission) -> None:
        self._config = config
        self._admission = admission

    def register(self, handlers: Handlers) -> None:
        handlers.register(requests.ADMIT_SLAVE, self.admit)

    def admit(
        self, connection: Connection, request: Request[AdmitSlaveRequestHeader]
    ) -> RemotingCommand:
        """Return a token for one connection to the port for slaves."""
        if not self._admission.needs_proof:
            return response(
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                "there is no access control here, so slaves are admitted by their addresses",
            )
        wanted, own = request.header.broker_name, self._config.broker_name
        if wanted != own:
            raise CometMQError(
                f"a slave of brokerName={wanted:.100} asks, this master has brokerName={own}",
                code=ResponseCode.SYSTEM_ERROR,
            )
        log.info("a slave has proved its identity", peer=connection.peer)
        token = self._admission.issue().hex()
        return response(ResponseCode.SUCCESS, header=AdmitSlaveResponseHeader(token=token))


async def ask_for_token(client: RemotingClient, address: str, broker_name: str) -> bytes | None:
    """Return a token of the master at `address`; None where it asks for no proof, as Java's do.

    Raises RemoteError when the master refuses, and a kind of RemotingError when it cannot be asked.
    """
    answer = await client.ask(
        address,
        requests.ADMIT_SLAVE,
        AdmitSlaveRequestHeader(broker_name=broker_name),
        what="to be admitted as a slave",
        timeout_s=_TIMEOUT_S,
        also=(ResponseCode.REQUEST_CODE_NOT_SUPPORTED,),
    )
    if answer.code != ResponseCode.SUCCESS:
        return None
    try:
        token = bytes.fromhex(answer.header.token)
    except ValueError:
        token = b""
    if len(token) != TOKEN_SIZE:
        raise ProtocolError(f"the master at {address} gave an invalid token")
    return token
