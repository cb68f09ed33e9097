"""Ask other brokers for their identity: a slave's future master, before anything is copied from it;
and a broker that has our name and id already, before we start beside it.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Final

from cometmq.broker.config import BrokerConfig
from cometmq.errors import CometMQError, ConfigError, RemoteError
from cometmq.model.route import MASTER_ID
from cometmq.protocol import requests
from cometmq.protocol.header import NoHeader
from cometmq.remoting.client import RemotingClient
from cometmq.remoting.credentials import Credentials
from cometmq.runtime.configuration.config import parse_properties
from cometmq.runtime.sockets.network import Network

_TIMEOUT_S: Final = 3.0
_ALONE_TIMEOUT_S: Final = 1.0


class WrongMasterError(CometMQError):
    """Says that a broker cannot be the master of this slave."""


async def check_master(client: RemotingClient, config: BrokerConfig, address: str) -> None:
    """Raise WrongMasterError unless the broker at `address` is a master of this slave's name.

    Raises a kind of RemotingError when it does not answer. Java's brokers answer, too (code 26);
    Java's slaves do not ask, and would take the log of any broker.
    """
    reported = await ask_configuration(client, address, _TIMEOUT_S)
    wanted = {
        "brokerName": config.broker_name,
        "brokerClusterName": config.broker_cluster_name,
    }
    for key, text in wanted.items():
        if reported.get(key) != text:
            raise WrongMasterError(
                f"the broker at {address} has {key}={reported.get(key)}, this slave {key}={text}: give "
                "the slave the master's name and cluster, or correct haMasterAddress"
            )
    if reported.get("brokerRole") == "SLAVE" or reported.get("brokerId") != str(MASTER_ID):
        raise WrongMasterError(
            f"the broker at {address} is no master, it has brokerRole={reported.get('brokerRole')} and "
            f"brokerId={reported.get('brokerId')}: let haMasterAddress lead to the master"
        )


async def check_alone(
    config: BrokerConfig,
    own_address: str,
    network: Network,
    credentials: Credentials | None = None,
    tls: Callable[[], ssl.SSLContext] | None = None,
) -> None:
    """Raise ConfigError if a broker that runs elsewhere has this broker's name and id.

    A name server would hand out now the one address and now the other, and two masters would give
    the same offsets to different messages. Java's brokers do not ask. Requests are
    signed with `credentials`. An address that does not
    answer is one that the broker had before, or one whose broker is gone: so this notices mistakes,
    and is no lock. It takes a name server's time-out at most, and that of a broker.
    """
    client = RemotingClient(credentials=credentials, tls=tls, network=network)
    try:
        found = await asyncio.gather(
            *(_holder(client, config, server) for server in config.name_servers())
        )
        for address in dict.fromkeys(found):
            if address is not None and address != own_address:
                await _refuse_twin(client, config, address)
    finally:
        await client.close()


async def _refuse_twin(client: RemotingClient, config: BrokerConfig, address: str) -> None:
    try:
        reported = await ask_configuration(client, address, _ALONE_TIMEOUT_S)
    except CometMQError:
        return
    own = config.broker_name, str(config.broker_id)
    if (reported.get("brokerName"), reported.get("brokerId")) == own:
        raise ConfigError(
            f"brokerName={config.broker_name} with brokerId={config.broker_id} runs already, at "
            f"{address} (brokerRole={reported.get('brokerRole')}): stop that one first, or give this "
            "one another brokerName, or as a slave another brokerId"
        )


async def _holder(client: RemotingClient, config: BrokerConfig, server: str) -> str | None:
    """Return the address that a name server has for this broker's name and id, if any."""
    try:
        answer = await client.ask(
            server,
            requests.GET_BROKER_CLUSTER_INFO,
            NoHeader(),
            what="the question for the brokers",
            timeout_s=_ALONE_TIMEOUT_S,
        )
        broker = answer.body.broker_addr_table.get(config.broker_name)
    except CometMQError:  # the registration logs it
        return None
    return None if broker is None else broker.broker_addrs.get(config.broker_id)


async def ask_configuration(
    client: RemotingClient, address: str, timeout_s: float
) -> dict[str, str]:
    """Return a broker's settings by key. Raises a kind of RemotingError, or RemoteError."""
    answer = await client.ask(
        address,
        requests.GET_BROKER_CONFIG,
        NoHeader(),
        what="the question for the configuration",
        timeout_s=timeout_s,
    )
    try:
        return parse_properties(bytes(answer.command.body).decode(), f"the answer of {address}")
    except (ConfigError, UnicodeDecodeError) as error:
        raise RemoteError(f"{address} answered with no configuration: {error}") from error
