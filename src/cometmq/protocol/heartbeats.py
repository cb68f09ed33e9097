"""Decode a large heartbeat in steps, so that a server's loop can serve others in between.

The largest one that is allowed has 16,384 subscriptions, or 4 MiB: to decode and check it at once holds
the loop for 20 to 60 ms. So its lists of groups are cut where their groups end, and long groups where
their subscriptions end.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from msgspec import structs

from cometmq.errors import ProtocolError
from cometmq.model.subscription import MAX_TAGS, ConsumerData, ProducerData, SubscriptionData
from cometmq.protocol.bodies import HeartbeatData
from cometmq.protocol.json_dialect import MAX_DIALECT_REQUEST_LENGTH, decode_body, decode_request
from cometmq.protocol.limits import (
    MAX_HEARTBEAT_HEAD_LENGTH,
    HeartbeatTotals,
    check_has_groups,
    check_heartbeat,
    check_limit,
)
from cometmq.protocol.request_type import JsonBody

if TYPE_CHECKING:
    from cometmq.protocol.json_cuts import Cut

T = TypeVar("T")

# A shorter one is decoded within a millisecond, in fastjson's dialect within some.
LARGE_BYTES: Final = 32 * 1024
# So long a part of a list has one group, or one subscription, that is long by itself.
_LONG_PART: Final = 32 * 1024
# In parts a reference of fastjson's dialect may name another object than in the whole, by which access
# control has judged. So may what only looks like the mark of a cut, which has a NUL.
_REFERENCE: Final = b'"$ref"'
_ESCAPE: Final = b"\\u00"
_NEED_WHOLE: Final = (_REFERENCE, *(_ESCAPE + b"%02x" % code for code in b"\0$ref"))
_LISTS: Final = {"consumerDataSet": "groupName", "producerDataSet": "groupName"}
_LEVEL_OF_LISTS: Final = 2
_SUBSCRIPTIONS: Final = {"subscriptionDataSet": "topic"}
_LEVEL_OF_SUBSCRIPTIONS: Final = 3  # in a list of groups
# Commas of a subscription besides those in its lists of tags and codes.
_OTHER_COMMAS: Final = 64


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """What a heartbeat within its limits says. Groups can be gone through once; a None among them is a
    step within a long one.
    """

    client_id: str
    fingerprint: int
    without_subscriptions: bool
    consumers: Iterator[ConsumerData | None]
    producers: Iterator[ProducerData]


def prepare() -> None:
    """Load what the steps need. Takes a tenth of a second the first time; for any thread."""
    import cometmq.protocol.json_cuts
    import cometmq.protocol.json_keys  # noqa: F401 - most brokers never need them, and they need numpy


def decode_heartbeat(data: bytes) -> Generator[None, None, Heartbeat]:
    """Return a heartbeat that is within its limits; a large one in steps.

    The groups of a large one are decoded once to check them, thrown away, and decoded again when the
    caller comes to them. To keep them in between takes 25 MB for each client, and makes Python's
    collector go through them, which takes longer than to decode them twice. Raises ProtocolError.
    """
    opened = yield from _opened(data)
    if isinstance(opened, HeartbeatData):
        check_has_groups(opened)
        return Heartbeat(
            opened.client_id,
            opened.heartbeat_fingerprint,
            opened.without_sub,
            iter(opened.consumer_data_set),
            iter(opened.producer_data_set),
        )
    check_has_groups(opened.head)
    for _ in opened.checked():
        yield
    head = opened.head
    return Heartbeat(
        head.client_id,
        head.heartbeat_fingerprint,
        head.without_sub,
        _joined(opened.consumer_pieces()),
        opened.producers(),
    )


class HeartbeatBody(JsonBody[HeartbeatData]):
    """Finds the names in a large heartbeat part by part, as `decode_heartbeat` reads them."""

    def name_steps(self, data: bytes | memoryview) -> Iterator[HeartbeatData | None]:
        """Yield heartbeats with some of the groups or subscriptions each, and None for a step.

        Raises ProtocolError for a heartbeat that exceeds a limit, when it comes to what is too much.
        """
        opened = yield from _opened(bytes(data))
        if isinstance(opened, HeartbeatData):
            yield opened
            return
        client_id = opened.head.client_id
        group: ConsumerData | None = None
        for piece in opened.checked():
            if isinstance(piece, ConsumerData):
                group = piece
                yield HeartbeatData(client_id, [piece])
            elif piece is None:
                yield None
            else:
                assert group is not None, "more subscriptions follow their group"
                yield HeartbeatData(
                    client_id, [structs.replace(group, subscription_data_set=piece)]
                )

    def prepare(self) -> None:
        prepare()


@dataclass(frozen=True, slots=True)
class _Opened:
    """A large heartbeat whose lists are cut out of its head."""

    head: HeartbeatData
    _parts: _Parts
    _consumers: Iterable[bytes] | None
    _producers: Iterable[bytes] | None

    def consumer_pieces(self) -> Iterator[ConsumerData | list[SubscriptionData] | None]:
        return self._parts.consumers(self._consumers, self.head.consumer_data_set)

    def producers(self) -> Iterator[ProducerData]:
        return self._parts.producers(self._producers, self.head.producer_data_set)

    def checked(self) -> Iterator[ConsumerData | list[SubscriptionData] | None]:
        """Yield the pieces of the groups of consumers, and None for each producer; check all of them."""
        totals = HeartbeatTotals(self.head.client_id)
        for piece in self.consumer_pieces():
            if isinstance(piece, ConsumerData):
                totals.add(piece)
            elif piece is not None:
                totals.add_subscriptions(piece)
            yield piece
        for producer in self.producers():
            totals.add_producer(producer)
            yield None


def _opened(data: bytes) -> Generator[None, None, HeartbeatData | _Opened]:
    """Return the head of a large heartbeat with its cut lists, and any other one whole and checked."""
    if len(data) < LARGE_BYTES:
        return _decode_whole(data)
    from cometmq.protocol.json_cuts import contains, cut_lists

    is_whole = yield from contains(data, _REFERENCE, _ESCAPE)
    if is_whole and (yield from contains(data, *_NEED_WHOLE)):
        _check_whole(data, "has references, or names with \\u0000")
        return _decode_whole(data)
    cut = yield from cut_lists(data, _LISTS, level=_LEVEL_OF_LISTS)
    _check_head(cut.rest, "a heartbeat")
    parts = _Parts(len(data))
    head = parts.decode(cut.rest, HeartbeatData)
    consumers = _list_of(cut, [group.group_name for group in head.consumer_data_set])
    producers = _list_of(cut, [group.group_name for group in head.producer_data_set])
    _check_spent(cut)
    return _Opened(head, parts, consumers, producers)


def _decode_whole(data: bytes) -> HeartbeatData:
    heartbeat = decode_request(data, HeartbeatData)
    check_heartbeat(heartbeat)
    return heartbeat


class _Parts:
    """Decodes the parts of one heartbeat of `length` bytes."""

    def __init__(self, length: int) -> None:
        self._length = length
        is_short = length <= MAX_DIALECT_REQUEST_LENGTH
        self._dialect_length = MAX_DIALECT_REQUEST_LENGTH if is_short else 0

    def decode(self, part: bytes, type_: type[T]) -> T:
        """Decode a part, in fastjson's dialect if the whole is short enough for it."""
        try:
            return decode_body(part, type_, max_dialect_length=self._dialect_length)
        except ProtocolError as error:
            if error.limit == "MAX_DIALECT_REQUEST_LENGTH":
                _check_whole(b" " * self._length, f"is not strict JSON ({error.__cause__})")
            raise

    def consumers(
        self, parts: Iterable[bytes] | None, whole: list[ConsumerData]
    ) -> Iterator[ConsumerData | list[SubscriptionData] | None]:
        """Yield the groups of a list, each followed by more of its subscriptions, and None for a step."""
        if parts is None:
            yield from whole
            return
        for part in parts:
            if len(part) <= _LONG_PART:
                yield from self.decode(part, list[ConsumerData])
            else:
                yield from self._long_consumers(part)

    def producers(
        self, parts: Iterable[bytes] | None, whole: list[ProducerData]
    ) -> Iterator[ProducerData]:
        if parts is None:
            yield from whole
            return
        for part in parts:
            _check_head(part, "a group of producers")
            yield from self.decode(part, list[ProducerData])

    def _long_consumers(
        self, part: bytes
    ) -> Iterator[ConsumerData | list[SubscriptionData] | None]:
        from cometmq.protocol.json_cuts import cut_lists

        cut = yield from cut_lists(part, _SUBSCRIPTIONS, level=_LEVEL_OF_SUBSCRIPTIONS)
        _check_head(cut.rest, "groups of a heartbeat")
        for group in self.decode(cut.rest, list[ConsumerData]):
            pieces = _list_of(cut, [each.topic for each in group.subscription_data_set])
            if pieces is not None:
                group.subscription_data_set = []
            yield group
            for piece in pieces or ():
                if len(piece) > _LONG_PART:
                    yield from _check_long_subscription(piece)
                yield self.decode(piece, list[SubscriptionData])
        _check_spent(cut)


def _joined(
    pieces: Iterator[ConsumerData | list[SubscriptionData] | None],
) -> Iterator[ConsumerData | None]:
    """Yield groups with all their subscriptions, and None for a step."""
    group: ConsumerData | None = None
    for piece in pieces:
        if isinstance(piece, ConsumerData):
            if group is not None:
                yield group
            group = piece
            continue
        if piece is not None:
            assert group is not None, "more subscriptions follow their group"
            group.subscription_data_set += piece
        yield None
    if group is not None:
        yield group


def _list_of(cut: Cut, names: list[str]) -> Iterable[bytes] | None:
    """Return the parts of a list by the mark that stands in it; None for one that was not cut out."""
    return cut.parts_of(names[0]) if names else None


def _check_long_subscription(part: bytes) -> Iterator[None]:
    """Raise ProtocolError for too many tags before they are decoded, which may take 40 ms."""
    from cometmq.protocol.json_cuts import count_commas

    count = yield from count_commas(part)
    if count > 2 * MAX_TAGS + _OTHER_COMMAS:
        check_limit(
            "values in the lists of a subscription (a tag and a code for each)",
            count,
            "MAX_TAGS",
            MAX_TAGS,
            "subscribe to * and select in the listener, or use fewer tags",
        )


def _check_head(rest: bytes, what: str) -> None:
    check_limit(
        f"bytes of {what} are no groups or subscriptions",
        len(rest),
        "MAX_HEARTBEAT_HEAD_LENGTH",
        MAX_HEARTBEAT_HEAD_LENGTH,
        "leave out what no broker reads",
    )


def _check_whole(data: bytes, why: str) -> None:
    check_limit(
        f"bytes in a heartbeat that {why}",
        len(data),
        "MAX_DIALECT_REQUEST_LENGTH",
        MAX_DIALECT_REQUEST_LENGTH,
        "send strict JSON without them, or divide the groups among several clients",
    )


def _check_spent(cut: Cut) -> None:
    if not cut.is_spent:
        raise ProtocolError("a heartbeat has a list of groups or of subscriptions twice")
