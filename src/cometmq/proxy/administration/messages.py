"""Serve the calls about single messages: find, send, and have a member consume one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from cometmq.admin.messages.reading import decompress_body
from cometmq.admin.messages.room import DirectConsumption, FoundMessages
from cometmq.model.message import MessageExt
from cometmq.protocol.redrive import NO_END_MS
from cometmq.proxy.administration.asking import Inquiry, Parts
from cometmq.proxy.administration.groups import time_of
from cometmq.proxy.administration.members import client_id_of
from cometmq.proxy.calls import Caller
from cometmq.proxy.configuration import config
from cometmq.proxy.wire import admin_pb2 as admin
from cometmq.proxy.wire import messaging_pb2 as wire
from cometmq.proxy.wire.messages import to_wire
from cometmq.proxy.wire.names import group_of, topic_of
from cometmq.proxy.wire.statuses import RefusedError, ok

# Reserved for the parts of an answer besides its messages.
_SPARE_BYTES: Final = 8 * 1024
_CONSUMED: Final = ("CR_SUCCESS", "CR_COMMIT")


async def query_message(
    parts: Parts, _caller: Caller, request: admin.ListMessageRequest
) -> admin.ListMessageResponse:
    """Return the messages with an id or a key, oldest first, as many as the answer has room for."""
    topic = topic_of(request.topic)
    most = _most_messages(request)
    _refuse_pages(request)
    begin_ms = time_of(request, "begin_timestamp") or 0
    end_ms = time_of(request, "end_timestamp")
    inquiry = Inquiry()
    notes = inquiry.notes
    found = await _found(
        parts, request, topic, most, (begin_ms, NO_END_MS if end_ms is None else end_ms), inquiry
    )
    wanted = [each for each in found if _is_wanted(each, request)]
    if len(wanted) > most:
        notes.append(f"{len(wanted) - most} more messages were found than max_message_nums={most}")
    answer = admin.ListMessageResponse()
    # To inflate 64 bodies as far as there is room may take a second.
    loop = asyncio.get_running_loop()
    await loop.run_in_executor(None, _add, answer, wanted[:most], request.topic, notes)
    if not wanted and not notes:
        raise RefusedError(
            wire.MESSAGE_NOT_FOUND,
            f"no broker of topic {topic} finds a message with this id or key, within these times",
        )
    answer.status.CopyFrom(inquiry.status())
    return answer


async def admin_send_message(
    parts: Parts, caller: Caller, request: admin.AdminSendMessageRequest
) -> admin.AdminSendMessageResponse:
    """Send a message like a producer, with a new id if the call gives none."""
    system = wire.SystemProperties()
    system.CopyFrom(request.system_properties)
    if system.message_type == wire.TRANSACTION:
        raise RefusedError(
            wire.UNSUPPORTED,
            "AdminSendMessage sends no transactional message, because nobody would end its transaction; use a producer",
        )
    if request.tag:
        system.tag = request.tag
    if request.key:
        system.keys.append(request.key)
    system.message_id = system.message_id or parts.instance.unique_ids.next()
    message = wire.Message(
        topic=request.topic,
        user_properties=request.user_properties,
        system_properties=system,
        body=request.body,
    )
    (entry,) = (await parts.sends.send(caller, wire.SendMessageRequest(messages=[message]))).entries
    return admin.AdminSendMessageResponse(status=entry.status, message_id=entry.message_id)


async def verify_message(
    parts: Parts, _caller: Caller, request: admin.VerifyMessageRequest
) -> admin.VerifyMessageResponse:
    """Have one member consume a stored message once, outside its queues."""
    group, topic = group_of(request.group), topic_of(request.topic)
    client_id = client_id_of(request.client_id)
    # One broker that has the message is enough.
    inquiry = Inquiry()
    found = await inquiry.partly(parts.messages.find(request.message_id, topic), _joined)
    if not found and inquiry.notes:
        raise RefusedError(
            wire.INTERNAL_SERVER_ERROR,
            f"whether a broker has message {request.message_id!r:.80} is unknown: {inquiry.notes[0]}",
        )
    if not found:
        raise RefusedError(
            wire.MESSAGE_NOT_FOUND,
            f"no broker of topic {topic} finds message {request.message_id!r:.80}",
        )
    message = found[0]
    own = parts.clients.member(group, client_id)
    if own is None:
        outcome = await parts.messages.consume_directly(
            group, client_id, message.offset_msg_id, topic
        )
        return admin.VerifyMessageResponse(status=_verdict(outcome))
    if topic not in own.subscriptions:
        raise RefusedError(
            wire.BAD_REQUEST, f"client {client_id:.200} does not subscribe to topic {topic}"
        )
    longest = parts.settings.max_message_size
    if not await asyncio.get_running_loop().run_in_executor(
        None, decompress_body, message, longest
    ):
        raise RefusedError(
            wire.MESSAGE_BODY_TOO_LARGE,
            f"the body has more bytes than the limit maxMessageSize of {longest}, or is "
            "damaged; name a member that is not a gRPC client",
            "maxMessageSize",
        )
    verdict = await parts.clients.questions.verdict(own, message)
    return admin.VerifyMessageResponse(status=_known(verdict))


# Inside


def _most_messages(request: admin.ListMessageRequest) -> int:
    wanted, most = request.max_message_nums, config.MAX_QUERIED_MESSAGES
    if not 0 <= wanted <= most:
        raise RefusedError(
            wire.BAD_REQUEST,
            f"max_message_nums is {wanted}, the limit MAX_QUERIED_MESSAGES is {most}; ask for 1 to {most} messages, "
            "in several calls for shorter times",
            "MAX_QUERIED_MESSAGES",
        )
    return wanted or most


def _refuse_pages(request: admin.ListMessageRequest) -> None:
    """Raise RefusedError for pages, and for a search that brokers have no index for."""
    for field in ("scroll_id", "page_num", "page_size"):
        if request.HasField(field):
            raise RefusedError(
                wire.UNSUPPORTED,
                f"this proxy does not serve {field}; narrow begin_timestamp and end_timestamp",
            )
    key = request.WhichOneof("search_key")
    if key not in ("message_id", "message_key"):
        raise RefusedError(
            wire.UNSUPPORTED if key else wire.BAD_REQUEST,
            f"the call searches by {key or 'nothing'}, but brokers have an index of message_id and message_key only; "
            "give one of them",
        )


async def _found(
    parts: Parts,
    request: admin.ListMessageRequest,
    topic: str,
    most: int,
    times: tuple[int, int],
    inquiry: Inquiry,
) -> list[MessageExt]:
    begin_ms, end_ms = times
    if request.WhichOneof("search_key") == "message_id":
        # Brokers find it by its place, and do not look at the time.
        by_id = inquiry.partly(parts.messages.find(request.message_id, topic), _joined)
        return [each for each in await by_id if begin_ms <= each.store_timestamp_ms <= end_ms]
    by_key = parts.messages.by_key(
        topic, request.message_key, max_messages=most, begin_ms=begin_ms, end_ms=end_ms
    )
    found = await inquiry.partly(by_key, FoundMessages.joined)
    inquiry.notes += [
        f"{address} ended its search: {why}" for address, why in found.ended_by.items()
    ]
    return found


def _joined(found: object) -> list[MessageExt]:
    assert isinstance(found, dict), "results by address"
    return FoundMessages.joined(found)


def _is_wanted(message: MessageExt, request: admin.ListMessageRequest) -> bool:
    if request.HasField("broker_name") and message.broker_name != request.broker_name:
        return False
    return not request.HasField("queue_id") or message.queue_id == request.queue_id


def _add(
    answer: admin.ListMessageResponse,
    messages: Iterable[MessageExt],
    topic: wire.Resource,
    notes: list[str],
) -> None:
    """Add messages for which there is room: a compressed body of few bytes may grow to gigabytes. In a thread."""
    most = config.MAX_ADMIN_ANSWER_BYTES
    left, lacking = most - _SPARE_BYTES, 0
    for message in messages:
        if not decompress_body(message, left):
            lacking += 1
            continue
        found = to_wire(message, topic, None)
        size = found.ByteSize() + 16
        if size > left:
            lacking += 1
            continue
        left -= size
        answer.messages.append(found)
    if lacking:
        notes.append(
            f"{lacking} messages are left out, because they are damaged or the answer would exceed the limit "
            f"MAX_ADMIN_ANSWER_BYTES of {most}; narrow the time, or use cometmq admin"
        )


def _known(verdict: wire.Status) -> wire.Status:
    """Return what a client says, as a failure if its code is none: calls are counted by the codes of their answers."""
    if verdict.code and verdict.code in wire.Code.values():
        return verdict
    return wire.Status(
        code=wire.FAILED_TO_CONSUME_MESSAGE,
        message=f"the client answered the code {verdict.code} {verdict.message[:900]}".strip(),
    )


def _verdict(outcome: DirectConsumption) -> wire.Status:
    if outcome.result in _CONSUMED:
        return ok()
    return wire.Status(
        code=wire.FAILED_TO_CONSUME_MESSAGE,
        message=f"{outcome.result} {(outcome.remark or '')[:900]}".strip(),
    )
