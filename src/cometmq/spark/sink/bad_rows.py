"""Send rows that cannot be messages, and rows with bodies that `decode` could not decode, to a dead-letter
topic instead of ending the job.

A dead letter has the row's body, as far as it fits, and these properties:

    DEAD_LETTER_REASON        what a job without this option would have ended with
    DEAD_LETTER_TOPIC         where the row was to go, if it said so
    DEAD_LETTER_SHARDING_KEY  its sharding key, if it has one
    DEAD_LETTER_BODY_BYTES    how long its body was; a row without a body has one blank as its letter's
    DEAD_LETTER_ROW           all other columns that the sink takes, as JSON
"""

from __future__ import annotations

import json
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from cometmq.client.limits import MAX_MESSAGE_SIZE_BYTES
from cometmq.errors import IllegalArgumentError
from cometmq.spark.decoding.columns import REASON as REASON_COLUMN
from cometmq.spark.sink.columns import TAKEN, Outbound, reason_of, undecodable

REASON: Final = "DEAD_LETTER_REASON"
TOPIC: Final = "DEAD_LETTER_TOPIC"
SHARDING_KEY: Final = "DEAD_LETTER_SHARDING_KEY"
BODY_BYTES: Final = "DEAD_LETTER_BODY_BYTES"
ROW: Final = "DEAD_LETTER_ROW"

# Together far below MAX_PROPERTIES_LENGTH, because retries of consumers add theirs.
_TEXT_BYTES: Final = 1024
_ROW_BYTES: Final = 16 * 1024
_NO_BODY: Final = b" "
_CLEANED: Final = str.maketrans({"\x01": "\ufffd", "\x02": "\ufffd"})


class BadRows:
    """Makes messages of rows as `outbound` does, and letters to a dead-letter topic of those rows
    that it refuses. `count` is how many these were.
    """

    def __init__(self, outbound: Outbound, letters: Outbound) -> None:
        self._outbound = outbound
        self._letters = letters
        self.count = 0

    def messages(self, batch: Any, ids: list[str]) -> Any:
        """Return the rows as a batch of OUTBOUND with these unique ids, in their order."""
        made: list[Any] = []
        if undecodable(batch) is not None:
            batch, ids = self._without_undecodable(made, batch, ids)
        if len(batch) or not made:
            self._add(made, batch, ids)
        if len(made) == 1:
            return made[0]
        (whole,) = pa.Table.from_batches(made).combine_chunks().to_batches()
        return whole

    def _without_undecodable(
        self, made: list[Any], batch: Any, ids: list[str]
    ) -> tuple[Any, list[str]]:
        """Make letters of rows whose bodies did not decode; return the other rows and their ids.

        These rows are known and may be many, so this does not search for them by halving the batch.
        """
        column = batch.column(REASON_COLUMN)
        bad = [at for at, reason in enumerate(column.to_pylist()) if reason is not None]
        letters = [_letter(batch.slice(at, 1), reason_of(column[at].as_py())) for at in bad]
        (whole,) = pa.Table.from_batches(letters).combine_chunks().to_batches()
        made.append(self._letters.messages(whole, [ids[at] for at in bad]))
        self.count += len(bad)
        good = pc.is_null(column)
        kept = [one for one, fits in zip(ids, good.to_pylist(), strict=True) if fits]
        return batch.filter(good), kept

    def _add(self, made: list[Any], batch: Any, ids: list[str]) -> None:
        """Halve the batch until bad rows are alone: columns name no row, and bad ones are few."""
        try:
            made.append(self._outbound.messages(batch, ids))
        except IllegalArgumentError as error:
            if len(batch) == 1:
                self.count += 1
                made.append(self._letters.messages(_letter(batch, str(error)), ids))
                return
            half = len(batch) // 2
            self._add(made, batch.slice(0, half), ids[:half])
            self._add(made, batch.slice(half), ids[half:])


def _letter(row: Any, reason: str) -> Any:
    """Return the dead letter of one row, as a row that the sink takes."""
    left_out = ("body", REASON_COLUMN)
    names = [name for name in TAKEN if name not in left_out and name in row.schema.names]
    values = {name: row.column(name)[0].as_py() for name in names}
    values = {name: value for name, value in values.items() if value is not None}
    body = row.column("body").cast(pa.binary())
    length = pc.binary_length(body)[0].as_py() or 0
    head = pc.binary_slice(body, 0, MAX_MESSAGE_SIZE_BYTES)[0].as_py() if length else _NO_BODY
    properties = {
        REASON: _text(reason),
        TOPIC: _text(values.get("topic", "")),
        SHARDING_KEY: _text(values.get("sharding_key", "")),
        BODY_BYTES: str(length),
        # ASCII, in which the characters that separate properties are escaped.
        ROW: json.dumps(_plain(values), default=str)[:_ROW_BYTES],
    }
    filled = [(name, text) for name, text in properties.items() if text]
    return pa.record_batch(
        {
            "body": pa.array([head], pa.binary()),
            "properties": pa.array([filled], pa.map_(pa.string(), pa.string())),
        }
    )


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values with the map of properties as an object, whose entries Arrow gives as
    pairs.
    """
    entries = values.get("properties")
    return values if entries is None else {**values, "properties": dict(entries)}


def _text(value: str) -> str:
    """Return a text that fits into a property, cut if it is too long."""
    return value.translate(_CLEANED).encode()[:_TEXT_BYTES].decode(errors="ignore")
