"""Keep which groups pop a topic's messages: codes 401 and 402 (Java: MessageRequestModeManager).

Members that let the broker divide the queues get the choice, see `assignments`. The choice
excludes no member: a group may pull and pop at the same time. The file is RocketMQ's
messageRequestMode.json; slaves copy it.
"""

from __future__ import annotations

from typing import Final

from cometmq.broker.parts import Parts
from cometmq.broker.refusal import Refused
from cometmq.errors import ConfigError
from cometmq.model.names import is_retry_topic
from cometmq.protocol import requests
from cometmq.protocol.bodies.overview import (
    MessageRequestModes,
    SetMessageRequestModeRequestBody,
)
from cometmq.protocol.codes import ResponseCode
from cometmq.protocol.command import RemotingCommand, Request, response
from cometmq.protocol.fastjson.dialect import decode_body, encode_body, pretty_pieces
from cometmq.protocol.header import NoHeader
from cometmq.remoting.connection import Connection
from cometmq.remoting.dispatch import Handlers
from cometmq.runtime.state_files.json_file import JsonFile

PULL: Final = "PULL"
POP: Final = "POP"
# Pairs of a topic and a group, 300 bytes each.
MAX_REQUEST_MODES: Final = 100_000


class RequestModes:
    """Keeps what operators chose. For the loop's thread only."""

    def __init__(self, parts: Parts) -> None:
        self._config = parts.config
        self._topics = parts.topics
        self._groups = parts.groups
        self._state = parts.state
        directory = parts.store.config.store_path_root_dir / "config"
        self._file = JsonFile(directory / "messageRequestMode.json", files=parts.files)
        self._modes = MessageRequestModes()
        self._count = 0

    def open(self) -> None:
        """Read the file. Raises ConfigError if it is unreadable."""
        found = self._file.read(lambda text: decode_body(text.encode(), MessageRequestModes))
        if found is not None:
            self._modes = found
            self._count = sum(map(len, found.message_request_mode_map.values()))

    def register(self, handlers: Handlers) -> None:
        handlers.register(requests.SET_MESSAGE_REQUEST_MODE, self.set)
        handlers.register(requests.GET_ALL_MESSAGE_REQUEST_MODE, self.all)

    def mode_of(self, topic: str, group: str) -> tuple[str, int]:
        """Return PULL or POP, and how many other members share a queue when they pop."""
        if is_retry_topic(topic):
            return PULL, -1
        chosen = self._modes.message_request_mode_map.get(topic, {}).get(group)
        if chosen is None:
            config = self._config
            return config.default_message_request_mode.value, config.default_pop_share_queue_num
        return chosen.mode, chosen.pop_share_queue_num

    async def set(self, _connection: Connection, call: Request[NoHeader]) -> RemotingCommand:
        """Choose how a group gets a topic's messages; answer when that is on disk."""
        body = requests.SET_MESSAGE_REQUEST_MODE.typed_body(call)
        self._check(body)
        groups = self._modes.message_request_mode_map.setdefault(body.topic, {})
        self._count += body.consumer_group not in groups
        groups[body.consumer_group] = body
        try:
            await self._state.save(self._file, lambda: pretty_pieces(self._modes))
        except OSError as error:
            raise ConfigError(
                f"{self._file.path} cannot be written: {error.strerror or error}; the choice holds until the "
                "broker stops, which tries again until then"
            ) from error
        return response(ResponseCode.SUCCESS)

    def copy(self, modes: MessageRequestModes) -> None:
        """Take over the choices of a slave's master. No request ends a choice, so if the master lacks
        a choice, it has lost its file: the choice stays.
        """
        own = self._modes.message_request_mode_map
        changed = False
        for topic, groups in modes.message_request_mode_map.items():
            known = own.setdefault(topic, {})
            changed = changed or any(known.get(group) != each for group, each in groups.items())
            known.update(groups)
        if changed:
            self._count = sum(map(len, own.values()))
            self._state.soon(self._file, lambda: pretty_pieces(self._modes))

    def all(self, _connection: Connection, _: Request[NoHeader]) -> RemotingCommand:
        """Return all choices, for slaves."""
        return response(ResponseCode.SUCCESS, body=encode_body(self._modes))

    def _check(self, body: SetMessageRequestModeRequestBody) -> None:
        topic, group = body.topic, body.consumer_group
        if is_retry_topic(topic):
            raise Refused(
                ResponseCode.NO_PERMISSION,
                f"retry topic {topic} is always pulled; choose for the topic whose messages come again",
            )
        if self._topics.get(topic) is None:
            raise Refused(
                ResponseCode.TOPIC_NOT_EXIST, f"topic[{topic}] not exist, apply first please!"
            )
        if self._groups.find(group) is None:
            raise Refused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, self._groups.unknown(group))
        is_new = group not in self._modes.message_request_mode_map.get(topic, {})
        if is_new and self._count >= MAX_REQUEST_MODES:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"for {self._count} pairs of a topic and a group a mode is chosen, the limit MAX_REQUEST_MODES is "
                f"{MAX_REQUEST_MODES}; delete {self._file.path.name} of pairs that are gone while the broker is "
                "stopped",
                limit="MAX_REQUEST_MODES",
            )
