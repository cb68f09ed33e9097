"""Refuses what exceeds a limit of the console: the text names the limit, its value and the remedy.

`console.limit_catalogue` has all limits. What refuses without an error of this module calls
`Console.limit_hits.hit`.
"""

from __future__ import annotations

from collections.abc import Mapping

from starlette.exceptions import HTTPException

from cometmq.metrics.limit_hits import LimitHits


class LimitMetError(HTTPException):
    """A limit of the console refuses a request, or ends what it began.

    `what` says what there is, or would be; `most` is the value of the limit with that name. Where
    `note` has it counted, `limit` tells which one it was.
    """

    def __init__(
        self,
        status: int,
        what: str,
        limit: str,
        most: int,
        remedy: str,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(status, f"{what}, the limit {limit} is {most}; {remedy}", headers)
        self.limit = limit


def note(hits: LimitHits, error: Exception) -> None:
    """Count an error if a limit of the console raised it."""
    if isinstance(error, LimitMetError):
        hits.hit(error.limit)
    else:
        hits.note(error)
