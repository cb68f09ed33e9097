"""Show messages: one by one to people, as rows in tables, and as records to programs."""

from __future__ import annotations

import base64
import codecs
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from cometmq.cli.admin.output import Column, Form, Output, as_text, as_time
from cometmq.errors import ConfigError

if TYPE_CHECKING:
    from cometmq.admin.messages.room import MessageTrack
    from cometmq.model.message import MessageExt

BASE64: Final = "base64"
_UNIQUE_ID: Final = re.compile("[0-9A-Fa-f]{32,64}")


def _joined(keys: object) -> str:
    """Return a list of keys as mqadmin shows them."""
    return as_text(" ".join(map(str, keys)) if keys and isinstance(keys, list) else None)


# All fields of a message, under their names in Java's JSON; then its body.
FIELDS: Final = (
    Column("msgId", "Message ID"),
    Column("offsetMsgId", "OffsetID"),
    Column("batchMsgId", "Batch ID"),
    Column("topic", "Topic"),
    Column("tags", "Tags"),
    Column("keys", "Keys", _joined),
    Column("brokerName", "Broker Name"),
    Column("queueId", "Queue ID"),
    Column("queueOffset", "Queue Offset"),
    Column("commitLogOffset", "CommitLog Offset"),
    Column("reconsumeTimes", "Reconsume Times"),
    Column("bornTimestamp", "Born Timestamp", as_time),
    Column("storeTimestamp", "Store Timestamp", as_time),
    Column("bornHost", "Born Host"),
    Column("storeHost", "Store Host"),
    Column("sysFlag", "System Flag"),
    Column("storeSize", "Store Size"),
    Column("bodyCRC", "Body CRC"),
    Column("preparedTransactionOffset", "Prepared Transaction Offset"),
    Column("properties", "Properties"),
)
BODY: Final = (Column("bodyEncoding", "Encoding"), Column("body", "Body"))
BODY_PATH: Final = Column("bodyPath", "Message Body Path")
TRACKS: Final = Column("consumers", "Consumers")
_TRACK: Final = (
    Column("consumerGroup", "Consumer Group"),
    Column("trackType", "Track Type"),
    Column("exceptionDesc", "Reason"),
)
# The fields in a line of a list for people.
_IN_LINE: Final = (
    "storeTimestamp",
    "brokerName",
    "queueId",
    "queueOffset",
    "msgId",
    "tags",
    "keys",
)
LINE: Final = tuple(next(c for c in FIELDS if c.key == key) for key in _IN_LINE)


def charset(name: str) -> str:
    """Parse the name of a charset (`UTF-8`, `GBK`); raise BadParameter if Python knows none."""
    try:
        found = codecs.lookup(name.strip())
        "".encode(found.name)  # there are codecs that make no text, such as hex
    except (LookupError, UnicodeError, ValueError):
        raise typer.BadParameter(
            f"{name!r:.80} is no charset; give UTF-8, GBK, ISO-8859-1 or another that Python knows"
        ) from None
    return found.name


BodyFormat = Annotated[
    str,
    typer.Option(
        "-f",
        "--bodyFormat",
        parser=charset,
        metavar="CHARSET",
        help="The charset of bodies. A body that is not in it is shown in base64.",
    ),
]
CharsetName = Annotated[
    str,
    typer.Option(
        "-c",
        "--charsetName",
        parser=charset,
        metavar="CHARSET",
        help="The charset of bodies. A body that is not in it is shown in base64.",
    ),
]
BodyPath = Annotated[
    Path | None,
    typer.Option(
        "--bodyPath",
        metavar="DIRECTORY",
        file_okay=False,
        help="Also write each body to a file of the message's id in this directory.",
    ),
]


def values(message: MessageExt) -> dict[str, object]:
    """Return the values of FIELDS, by their keys."""
    return {
        "msgId": message.msg_id,
        "offsetMsgId": message.offset_msg_id,
        "batchMsgId": message.batch_msg_id,
        "topic": message.topic,
        "tags": message.tags,
        "keys": list(message.keys),
        "brokerName": message.broker_name,
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "commitLogOffset": message.commit_log_offset,
        "reconsumeTimes": message.reconsume_times,
        "bornTimestamp": message.born_timestamp_ms,
        "storeTimestamp": message.store_timestamp_ms,
        "bornHost": message.born_host,
        "storeHost": message.store_host,
        "sysFlag": message.sys_flag,
        "storeSize": message.store_size,
        "bodyCRC": message.body_crc,
        "preparedTransactionOffset": message.prepared_transaction_offset,
        "properties": dict(sorted(message.properties.items())),
    }


def body_of(message: MessageExt, encoding: str) -> tuple[str, str]:
    """Return how the body is written, and the body: as text in the charset, else in base64."""
    try:
        return encoding, message.body.decode(encoding)
    except UnicodeError:
        return BASE64, base64.b64encode(message.body).decode()


def list_columns(form: Form, *, with_body: bool) -> Sequence[Column]:
    """Return the columns of a list of messages: a line's worth for people, all for programs."""
    own = LINE if form is Form.TABLE else FIELDS
    return (*own, *BODY) if with_body else own


def list_row(message: MessageExt, columns: Iterable[Column], encoding: str) -> Sequence[object]:
    """Return the row of a message in a list with these columns."""
    found = values(message)
    found["bodyEncoding"], found["body"] = body_of(message, encoding)
    return [found[column.key] for column in columns]


def record(
    message: MessageExt,
    encoding: str,
    tracks: Sequence[MessageTrack] | None,
    path: Path | None,
) -> dict[str, object]:
    """Return all fields of a message for programs."""
    found = values(message)
    found["bodyEncoding"], found["body"] = body_of(message, encoding)
    if path is not None:
        found[BODY_PATH.key] = str(path)
    found[TRACKS.key] = (
        None
        if tracks is None
        else [dict(zip(_TRACK_KEYS, _track(it), strict=True)) for it in tracks]
    )
    return found


def show(
    out: Output,
    message: MessageExt,
    encoding: str,
    tracks: Sequence[MessageTrack] | None,
    path: Path | None,
) -> None:
    """Show a message to people: where it is, its properties, its body and who consumed it."""
    found = values(message)
    named: dict[str, object] = {
        column.title: column.form(found[column.key])
        for column in FIELDS
        if column.key not in ("msgId", "properties")
        and (column.key != "batchMsgId" or found[column.key])
    }
    if path is not None:
        named[BODY_PATH.title] = str(path)
    out.record(named, section=f"message {message.msg_id}")
    if message.properties:
        out.record(dict(sorted(message.properties.items())), section="properties")
    _show_body(out, message.body, encoding)
    if tracks is not None:
        if tracks:
            out.table(_TRACK, [_track(it) for it in tracks], section="consumers")
        else:
            out.text("none: no group has consumed from this topic", section="consumers")


def write_body(message: MessageExt, directory: Path | None) -> Path | None:
    """Write the body to a file of the message's id, as mqadmin does; return its path.

    Raises ConfigError if that cannot be done.
    """
    if directory is None:
        return None
    # A producer can write any id: it must not choose another directory, nor .bashrc in this one.
    name = message.msg_id if _UNIQUE_ID.fullmatch(message.msg_id) else message.offset_msg_id
    path = directory / name
    try:
        directory.mkdir(parents=True, exist_ok=True)
        path.write_bytes(message.body)
    except OSError as error:
        raise ConfigError(
            f"--bodyPath: the body cannot be written to {path}: {error.strerror}"
        ) from error
    return path


def _show_body(out: Output, body: bytes, encoding: str) -> None:
    size = f"{len(body)} bytes"
    try:
        text = body.decode(encoding)
    except UnicodeError:
        out.text(_dump(body), section=f"body ({size}, not {encoding})")
        return
    if all(c.isprintable() or c in "\t\n\r" for c in text):
        out.text(text, section=f"body ({size}, {encoding})")
    else:
        out.text(_dump(body), section=f"body ({size}, with control characters)")


def _dump(body: bytes) -> str:
    """Return bytes in hexadecimal, 16 in a line, with their printable ASCII beside them."""
    lines = []
    for begin in range(0, len(body), 16):
        some = body[begin : begin + 16]
        shown = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in some)
        lines.append(f"{begin:08x}  {some.hex(' '):<47}  {shown}")
    return "\n".join(lines)


_TRACK_KEYS: Final = tuple(column.key for column in _TRACK)


def _track(track: MessageTrack) -> tuple[str, str, str | None]:
    return track.group, track.kind.value, track.reason or None
