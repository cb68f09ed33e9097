"""Serve the request that sends dead letters again: code 30001 (Java has none).

A redrive is a task of the broker, not of the request: it goes on when the client that asked is
gone, and a client that asks with the same id waits for the same task.
"""

from __future__ import annotations

import asyncio
import functools
from typing import Final

from cometmq.broker.found_messages import may_send
from cometmq.broker.refusal import Refused
from cometmq.broker.retries.redrive import Redrives, RedriveState
from cometmq.errors import StoreError
from cometmq.logs.loggers import get_logger
from cometmq.model import names
from cometmq.protocol import requests
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.command import RemotingCommand, Request, response
from cometmq.protocol.fastjson.dialect import encode_body
from cometmq.protocol.redrive import (
    LetterSelection,
    RedriveDeadLettersRequestHeader,
    RedriveReport,
)
from cometmq.remoting.connection import Connection
from cometmq.remoting.dispatch import Handlers
from cometmq.runtime.tasks import TaskOwner

log = get_logger(__name__)

# Well within the time that clients wait for an answer.
_ANSWER_AFTER_S: Final = 1.0
# Each letter is compared with all of these, and the redrive is kept on disk with all of them.
MAX_SELECTED: Final = 1_000


class RedriveHandlers:
    """Serves redrives. `tasks` end with the broker; a later request continues a redrive.

    For the loop's thread only.
    """

    def __init__(self, redrives: Redrives, tasks: TaskOwner) -> None:
        self._redrives = redrives
        self._handlers = Handlers()
        self._tasks = tasks
        self._runs: dict[str, asyncio.Task[RedriveState]] = {}

    def register(self, handlers: Handlers) -> None:
        self._handlers = handlers
        handlers.register(requests.REDRIVE_DEAD_LETTERS, self.redrive)

    async def redrive(
        self, connection: Connection, request: Request[RedriveDeadLettersRequestHeader]
    ) -> RemotingCommand:
        """Begin a redrive, or wait for one that was begun; answer how far it is."""
        header = request.header
        selection = _selection(bytes(request.frame.body))
        if fault := names.group_fault(header.group):
            raise Refused(ResponseCode.INVALID_PARAMETER, fault)
        run = self._run(connection, request, selection)
        await asyncio.wait([run], timeout=_ANSWER_AFTER_S)
        state = run.result() if run.done() else self._redrives.get(header.redrive_id)
        assert state is not None, "a redrive that runs has a state"
        report = RedriveReport(
            redrive_id=state.redrive_id,
            group=state.group,
            sent_count=state.sent_count,
            skipped_count=state.skipped_count,
            next_offset=state.next_offset,
            end_offset=state.end_offset,
            finished=state.finished,
        )
        return response(ResponseCode.SUCCESS, body=encode_body(report))

    def _run(
        self,
        connection: Connection,
        request: Request[RedriveDeadLettersRequestHeader],
        selection: LetterSelection,
    ) -> asyncio.Task[RedriveState]:
        header = request.header
        redrive_id, group = header.redrive_id, header.group
        run = self._runs.get(redrive_id)
        if run is not None:
            self._redrives.check(redrive_id, group, selection, only_group=header.only_group)
            return run
        log.info(
            "redrive of dead letters asked for",
            peer=connection.peer,
            redrive_id=redrive_id,
            group=group,
        )

        @functools.cache
        def may_send_to(topic: str) -> bool:
            return may_send(self._handlers, connection, request, topic)

        run = self._tasks.spawn(
            self._redrives.redrive(
                redrive_id,
                group,
                selection,
                only_group=header.only_group,
                may_send=may_send_to,
            ),
            "redrive",
            log_failure=False,
        )
        self._runs[redrive_id] = run
        run.add_done_callback(functools.partial(self._ended, redrive_id))
        return run

    def _ended(self, redrive_id: str, run: asyncio.Task[RedriveState]) -> None:
        self._runs.pop(redrive_id, None)
        # Perhaps no request waits for the redrive any more.
        if not run.cancelled() and isinstance(error := run.exception(), StoreError):
            log.warning(
                "redrive interrupted; the same request goes on with it",
                redrive_id=redrive_id,
                reason=str(error),
            )


def _selection(body: bytes) -> LetterSelection:
    selection = requests.REDRIVE_DEAD_LETTERS.body.decode(body or b"{}")
    for name, values in (("ids", selection.ids), ("keys", selection.keys)):
        if len(values) > MAX_SELECTED:
            raise Refused(
                ResponseCode.INVALID_PARAMETER,
                f"{len(values)} {name} are selected, the limit MAX_SELECTED is {MAX_SELECTED}; use "
                "several redrives, or a time range",
                limit="MAX_SELECTED",
            )
    return selection
