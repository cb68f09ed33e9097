"""Serve the calls about the progress of groups, and reset their offsets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any, Final

from cometmq.admin.groups.reading import QueueTimes
from cometmq.admin.groups.records import GroupProgress
from cometmq.proxy.administration.asking import Inquiry, Parts, refuse_lite
from cometmq.proxy.administration.limits import check_items, check_questions
from cometmq.proxy.administration.members import queue_to_wire
from cometmq.proxy.calls import Caller
from cometmq.proxy.wire import admin_pb2 as admin
from cometmq.proxy.wire import messaging_pb2 as wire
from cometmq.proxy.wire.names import group_of, topic_of
from cometmq.proxy.wire.statuses import RefusedError, ok
from cometmq.proxy.wire.times import milliseconds_of

_Accumulation = admin.DescribeGroupAccumulationResponse.GroupAccumulation
_Span = admin.QueryTimeSpanResponse.QueueTimeSpan


async def describe_group_accumulation(
    parts: Parts, _caller: Caller, request: admin.DescribeGroupAccumulationRequest
) -> admin.DescribeGroupAccumulationResponse:
    """Count the messages that wait for a group. A broker that does not answer makes the counts unknown."""
    refuse_lite(request.lite_topic)
    group = group_of(request.group)
    check_questions(len(request.topics), "topics")
    topics = [topic_of(each) for each in request.topics]
    inquiry = Inquiry()
    progress = await parts.groups.progress(group)
    answer = admin.DescribeGroupAccumulationResponse()
    whole = _accumulation(progress, progress.lag, progress.in_flight)
    if whole is None:
        inquiry.notes.append(f"how many messages wait for group {group} is unknown: {_UNKNOWN}")
    else:
        answer.accumulation.CopyFrom(whole)
    for topic in dict.fromkeys(topics):
        of_topic = _accumulation(
            progress, progress.lag_in(topic), progress.in_flight_in(topic), topic
        )
        if of_topic is None:
            inquiry.notes.append(
                f"how many messages of topic {topic} wait for group {group} is unknown: {_UNKNOWN}"
            )
        else:
            answer.topic_accumulation[topic].CopyFrom(of_topic)
    answer.status.CopyFrom(inquiry.status())
    return answer


_UNKNOWN: Final = "the group has no offset in some of the queues, or in all of them"


def _accumulation(
    progress: GroupProgress, lag: int | None, in_flight: int | None, topic: str | None = None
) -> _Accumulation | None:
    if lag is None or in_flight is None:
        return None
    times = (at.last_consumed_ms for at in progress.queues if topic in (None, at.queue.topic))
    return _Accumulation(
        inflight_messages=in_flight,
        ready_messages=max(0, lag - in_flight),
        accumulation=lag,
        last_consume_timestamp=max((at for at in times if at is not None), default=0),
    )


async def query_time_span(
    parts: Parts, caller: Caller, request: admin.QueryTimeSpanRequest
) -> admin.QueryTimeSpanResponse:
    """Return the times of each queue of the named topics, or of all topics in which the group has an offset."""
    group, inquiry = group_of(request.group), Inquiry()
    check_questions(len(request.topics), "topics")
    topics = [topic_of(each) for each in request.topics]
    if not topics:
        topics = await parts.groups.topics(group)
        check_questions(len(topics), f"topics of group {group}")
        named = [wire.Resource(name=topic) for topic in topics]
        found = admin.QueryTimeSpanRequest(group=request.group, topics=named)
        await parts.calls.authorise(caller, "QueryTimeSpan", found)
        if not topics:
            await parts.groups.need(group)

    async def times(topic: str) -> list[QueueTimes]:
        return await inquiry.partly(parts.groups.times(group, topic), _joined_times)

    listed = await inquiry.each(dict.fromkeys(topics), "topics", times)
    check_items(sum(map(len, listed)), "queues")
    spans = [_span(at) for at in chain.from_iterable(listed)]
    return admin.QueryTimeSpanResponse(status=inquiry.status(), queue_time_span_list=spans)


def _joined_times(found: Mapping[str, Any]) -> list[QueueTimes]:
    parts: Iterable[list[QueueTimes]] = found.values()
    return sorted(chain.from_iterable(parts), key=lambda at: at.queue)


def _span(at: QueueTimes) -> _Span:
    return _Span(
        message_queue=queue_to_wire(at.queue),
        min_timestamp=at.first_ms,
        max_timestamp=at.last_ms,
        consume_timestamp=at.consumed_ms,
        delay_time_ms=at.delay_ms,
    )


async def reset_group_offset(
    parts: Parts, _caller: Caller, request: admin.ResetGroupOffsetRequest
) -> admin.ResetGroupOffsetResponse:
    group, topic = group_of(request.group), topic_of(request.topic)
    at_ms = time_of(request, "reset_timestamp")
    if at_ms is None:
        raise RefusedError(
            wire.BAD_REQUEST,
            "reset_timestamp is missing; give the time of the first message to consume again",
        )
    await parts.offsets.reset_to_time(group, topic, at_ms)
    return admin.ResetGroupOffsetResponse(status=ok())


def time_of(request: Any, field: str) -> int | None:
    """Return a time in ms since the epoch, None if it is not set. Raises RefusedError for one before the epoch."""
    if not request.HasField(field):
        return None
    at_ms = milliseconds_of(getattr(request, field), field, wire.BAD_REQUEST)
    if at_ms < 0:
        raise RefusedError(wire.BAD_REQUEST, f"{field} is {at_ms} ms; give a time after the epoch")
    return at_ms
