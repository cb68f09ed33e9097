"""Define the records that headers are decoded into and encoded from; `command` says what they mean.

They have a module of their own because msgspec makes their classes at run time, while `command` may
be compiled (see benchmarks and docs/internals/composition.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Generic, cast

import msgspec

from cometmq.protocol.frame import Frame
from cometmq.protocol.header import HeaderT, Int32

Ext = dict[str, str]
FLAG_RESPONSE: Final = 1
FLAG_ONEWAY: Final = 2

Text = str | int | float | bool | None
# Types of fields that are not part of the JSON, although msgspec has a name for each field. These types
# decode only null: building any other value there would be wasted, and took up to 140 ms.
if TYPE_CHECKING:
    _OwnFrame = Frame
    _OwnTexts = Ext | None
    _OwnBody = Any
else:
    _OwnFrame = _OwnTexts = _OwnBody = None


class JsonHeader(msgspec.Struct, omit_defaults=True):
    # In the order of Java's output, which is alphabetical; `omit_defaults` leaves the nulls out.
    code: int
    extFields: Ext | None = None  # noqa: N815 - a wire name
    flag: int | None = None
    language: str | None = None
    opaque: int | None = None
    remark: str | None = None
    serializeTypeCurrentRPC: str | None = None  # noqa: N815 - a wire name
    version: int | None = None


class AnyHeader(msgspec.Struct):
    code: Int32 = 0
    extFields: dict[str, Text] | None = None  # noqa: N815 - a wire name
    flag: Int32 = 0
    language: str | int | None = None
    opaque: Int32 = 0
    remark: str | None = None
    version: Int32 = 0


class ExtOnly(msgspec.Struct):
    extFields: Ext | None = None  # noqa: N815 - a wire name


class CodeOnly(msgspec.Struct):
    code: Int32 = 0


class Request(msgspec.Struct, Generic[HeaderT], kw_only=True, gc=False):
    """A request with its typed header, as handlers get it.

    `RequestDecoder` decodes the JSON into a request whose header may be None, and then sets the
    header.
    """

    code: Int32
    header: HeaderT = msgspec.field(name="extFields", default=cast("Any", None))
    flag: Int32 = 0
    language: str | int | None = None
    opaque: Int32 = 0
    version: Int32 = 0
    remark: str | None = None
    # Like the next two fields, not part of the JSON: the decoder always sets them.
    frame: _OwnFrame = msgspec.field(name="", default=Frame(0, b"", b""))
    # The ext fields as texts, if they were decoded as texts, as for a ROCKETMQ header.
    texts: _OwnTexts = msgspec.field(name=" ", default=None)
    # The decoded body, once `RequestType.typed_body` was asked for it.
    typed_body: _OwnBody = msgspec.field(name="  ", default=None)

    @property
    def body(self) -> bytes:
        return self.frame.body

    @property
    def is_oneway(self) -> bool:
        return self.flag & FLAG_ONEWAY != 0
