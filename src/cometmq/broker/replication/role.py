"""Bar the requests that a slave does not serve (Java: BrokerRole.SLAVE in the processors)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from cometmq.broker.config import BrokerConfig
from cometmq.broker.refusal import Refused
from cometmq.protocol import requests
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.command import RemotingCommand, response
from cometmq.protocol.request_type import AnyRequestType
from cometmq.remoting.connection import AnyRequest, Connection
from cometmq.remoting.dispatch import Handler, Handlers


def bar_writes(
    handlers: Handlers, config: BrokerConfig, master_address: Callable[[], str | None]
) -> None:
    """Have a slave refuse each request marked so in its row, naming the master's address, and
    answer requests that only the master carries out with success.

    Call this before services register their handlers. The services that write to the log are not
    opened on a slave (`Service.runs_on_slave`), so only this answers what they would serve.
    """
    for row in requests.REQUESTS.values():
        if row.on_slave == ResponseCode.SUCCESS:
            handlers.bar(row, _left_to_master)
        elif row.on_slave is not None:
            handlers.bar(row, _refusing(row, row.on_slave, config, master_address))


def serve_reads_while(handlers: Handlers, reason_not_to: Callable[[], str | None]) -> None:
    """Have a slave refuse pulls, commits and questions about offsets as long as there is a reason. Call
    it as `bar_writes`.

    At the end of a log that has diverged, queue offsets belong to other messages than on the
    master. A group that read and committed them would skip the master's messages, and a reader that
    takes an end from here would wait for messages that the master does not have.
    """

    def check() -> None:
        if (reason := reason_not_to()) is not None:
            raise Refused(
                ResponseCode.SERVICE_NOT_AVAILABLE, f"this slave serves no reads now: {reason}"
            )

    for row in (
        requests.PULL_MESSAGE,
        requests.LITE_PULL_MESSAGE,
        requests.UPDATE_CONSUMER_OFFSET,
        requests.GET_MAX_OFFSET,
        requests.GET_MIN_OFFSET,
        requests.SEARCH_OFFSET_BY_TIMESTAMP,
    ):
        handlers.set_condition(row, check)


def _left_to_master(_connection: Connection, _request: AnyRequest) -> RemotingCommand:
    """Answer Java's tools with success: they send the request to master and slaves, and the slave
    copies the master.
    """
    return response(ResponseCode.SUCCESS)


def _refusing(
    row: AnyRequestType,
    code: int,
    config: BrokerConfig,
    master_address: Callable[[], str | None],
) -> Handler[Any]:
    def refuse(_connection: Connection, _request: AnyRequest) -> NoReturn:
        master = master_address()
        raise Refused(
            code,
            f"{row.name} is for the master: this broker is a slave, brokerId={config.broker_id} of "
            f"{config.broker_name}. "
            + (
                f"Ask the master, {master}"
                if master
                else "No name server knows its master; start that, or make this slave the master"
            ),
        )

    return refuse
