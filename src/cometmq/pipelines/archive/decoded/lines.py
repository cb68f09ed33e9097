"""Show how far the decoding of topics has come."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from cometmq.pipelines.report import Table


class DecodedLine(msgspec.Struct):
    """The line of a report about the decoded tables of a topic.

    messages: archived messages below the offsets that were decoded. rows: rows of bodies that fit, in all
    tables of the topic. undecodable: rows of the other bodies. waiting: archived messages that are not decoded
    yet. problem: the reason for which they wait, if it is known.
    """

    topic: str
    tables: list[str]
    messages: int = 0
    rows: int = 0
    undecodable: int = 0
    waiting: int = 0
    problem: str | None = None

    @property
    def holds(self) -> bool:
        """Return whether each message is in a table."""
        return self.rows + self.undecodable == self.messages and not self.waiting


def table_of(lines: Sequence[DecodedLine]) -> Table:
    """Return the part of a report that shows the decoded topics."""
    columns = ("topic", "tables", "messages", "decoded", "undecodable", "waiting", "because")
    rows = [
        (
            one.topic,
            ", ".join(one.tables),
            one.messages,
            one.rows,
            one.undecodable,
            one.waiting,
            one.problem,
        )
        for one in lines
    ]
    return Table("Decoded topics", columns, rows)
