"""Decode a large list of topics or groups to be made in steps, so that a server's loop serves others in
between.

With ACL 2.0 every user may send one: the names in it say whether he may. A list of 4 MiB may have a
million empty groups, and held the loop for up to 1.4 s in one piece.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

from cometmq.errors import ProtocolError
from cometmq.protocol.json_dialect import (
    MAX_DIALECT_REQUEST_LENGTH,
    MAX_REQUEST_REFERENCED_NODES,
    decode_request,
)
from cometmq.protocol.limits import (
    MAX_CONFIG_LIST_LENGTH,
    check_config_length,
    check_configs,
    check_limit,
)
from cometmq.protocol.request_type import BodyT, JsonBody

MemberT = TypeVar("MemberT")

# A shorter one is decoded within ten milliseconds, whatever it has.
LARGE_BYTES: Final = 32 * 1024
# Empty groups of so many bytes take a millisecond.
_CHUNK_BYTES: Final = 4 * 1024
_LEVEL_OF_LIST: Final = 2
# In parts a reference may name another object than in the whole, and an escape may hide one, or the mark
# of a cut.
_NEED_WHOLE: Final = (b'"$ref"', *(b"\\u00%02x" % code for code in b"\0$ref"))


class ConfigListBody(JsonBody[BodyT]):
    """A body whose field `wire_name` has a list of `what`.

    `members` returns the decoded list, and `name_of` the name of a topic or group, which `mark` is called
    on the wire.
    """

    def __init__(
        self,
        type_: type[BodyT],
        what: str,
        wire_name: str,
        mark: str,
        *,
        members: Callable[[BodyT], list[MemberT]],
        name_of: Callable[[MemberT], str],
    ) -> None:
        super().__init__(type_, MAX_CONFIG_LIST_LENGTH)
        self._what = what
        self._wire_name = wire_name
        self._marks = {wire_name: mark}
        self._members: Callable[[BodyT], list[Any]] = members
        self._name_of: Callable[[Any], str] = name_of

    def name_steps(self, data: bytes | memoryview) -> Iterator[BodyT | None]:
        """Yield bodies with some of the topics or groups each, and None for a step.

        Raises ProtocolError for a list that exceeds a limit, when it comes to what is too much.
        """
        data = bytes(data)
        if len(data) < LARGE_BYTES:
            yield self._checked(data)
            return
        from cometmq.protocol.json_cuts import contains, count_commas, cut_lists

        if (yield from contains(data, *_NEED_WHOLE)):
            self._check_whole(len(data), (yield from count_commas(data)))
            yield self._checked(data)
            return
        cut = yield from cut_lists(
            data, self._marks, level=_LEVEL_OF_LIST, chunk_bytes=_CHUNK_BYTES
        )
        check_config_length(len(cut.rest))
        head = decode_request(cut.rest, self.type)
        parts = None
        if members := self._members(head):
            parts = cut.parts_of(self._name_of(members[0]))
        if not cut.is_spent:
            raise ProtocolError(f"{self._wire_name} stands twice in a body, or elsewhere")
        if parts is None:
            check_configs(self._what, len(members))
            yield head
            return
        count = 0
        for part in parts:
            check_config_length(len(part))
            some = decode_request(b'{"%b":%b}' % (self._wire_name.encode(), part), self.type)
            count += len(self._members(some))
            check_configs(self._what, count)
            yield some

    def prepare(self) -> None:
        """Import what cuts a body of LARGE_BYTES; to be called beside the loop before its steps."""
        import cometmq.protocol.json_cuts
        import cometmq.protocol.json_keys  # noqa: F401 - most brokers never need them, and they need numpy

    def _checked(self, data: bytes) -> BodyT:
        body = decode_request(data, self.type)
        check_configs(self._what, len(self._members(body)))
        return body

    def _check_whole(self, length: int, values: int) -> None:
        what = f"in a list of {self._what} with references, or names with \\u0000"
        remedy = "send fewer at once"
        for unit, count, name, limit in (
            ("bytes", length, "MAX_DIALECT_REQUEST_LENGTH", MAX_DIALECT_REQUEST_LENGTH),
            ("values", values, "MAX_REQUEST_REFERENCED_NODES", MAX_REQUEST_REFERENCED_NODES),
        ):
            check_limit(f"{unit} {what}", count, name, limit, remedy)
