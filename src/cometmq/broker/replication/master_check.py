"""Ask the broker that shall be a slave's master who it is, before anything is taken from it."""

from __future__ import annotations

from typing import Final

from cometmq.broker.config import BrokerConfig
from cometmq.errors import CometMQError, ConfigError, RemoteError
from cometmq.model.route import MASTER_ID
from cometmq.protocol import requests
from cometmq.protocol.header import NoHeader
from cometmq.remoting.client import RemotingClient
from cometmq.runtime.config import parse_properties

_TIMEOUT_S: Final = 3.0


class WrongMasterError(CometMQError):
    """Says that a broker cannot be the master of this slave."""


async def check_master(client: RemotingClient, config: BrokerConfig, address: str) -> None:
    """Raise WrongMasterError unless the broker at `address` is a master of this slave's name.

    Raises a kind of RemotingError when it does not answer. Java's brokers answer, too (code 26);
    Java's slaves do not ask, and would take the log of any broker.
    """
    told = await ask_configuration(client, address, _TIMEOUT_S)
    wanted = {
        "brokerName": config.broker_name,
        "brokerClusterName": config.broker_cluster_name,
    }
    for key, text in wanted.items():
        if told.get(key) != text:
            raise WrongMasterError(
                f"the broker at {address} has {key}={told.get(key)}, this slave {key}={text}: give "
                "the slave the master's name and cluster, or correct haMasterAddress"
            )
    if told.get("brokerRole") == "SLAVE" or told.get("brokerId") != str(MASTER_ID):
        raise WrongMasterError(
            f"the broker at {address} is no master, it has brokerRole={told.get('brokerRole')} and "
            f"brokerId={told.get('brokerId')}: let haMasterAddress lead to the master"
        )


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
