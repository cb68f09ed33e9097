"""Hold the common part of the reports of a replay and of a redrive."""

from __future__ import annotations

from cometmq.pipelines.report import Report, Section, Table
from cometmq.pipelines.resending.timeline import Timeline


class ResendReport(Report):
    """The common base of both reports.

    chosen: how many messages are to be sent.
    sent, already_there: of the whole job, all its runs together; those already there were found in
        the target when a run continued a killed one.
    refused: messages that can never be sent; refusals says why (the first of each task).
    ledgers_dropped: ids that were finished long ago, of which this run has dropped the ledgers.
    """

    id: str
    chosen: int
    sent: int
    already_there: int
    refused: int
    refusals: list[str]
    timeline: Timeline
    ledgers_dropped: list[str]

    def refusal_tables(self) -> list[Section]:
        rows = [[text] for text in self.refusals]
        return [Table("Cannot be sent", ["the first of each task"], rows)] if rows else []

    def dropped_tables(self) -> list[Section]:
        rows = [[name] for name in self.ledgers_dropped]
        return [Table("Ledgers dropped after keep_days", ["id"], rows)] if rows else []
