"""Refuse what exceeds a limit of the console: the text names the limit, its value and the remedy.

`console.limit_catalogue` has all limits. Code that refuses without an error of this module calls
`Console.limit_hits.hit`.
"""

from __future__ import annotations

from collections.abc import Mapping

from starlette.exceptions import HTTPException

from cometmq.console.refusals import Refused
from cometmq.metrics.limit_hits import LimitHits


class LimitMetError(HTTPException):
    """A limit of the console refuses a request, or ends what it began.

    `what` says what there is, or would be; `most` is the value of the limit. `limit` is its name,
    by which `note` counts it.
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
        super().__init__(
            status, Refused.LIMIT(what=what, limit=limit, most=most, remedy=remedy), headers
        )
        self.limit = limit


def note(hits: LimitHits, error: Exception) -> None:
    """Count an error if a limit of the console raised it."""
    if isinstance(error, LimitMetError):
        hits.hit(error.limit)
    else:
        hits.note(error)
