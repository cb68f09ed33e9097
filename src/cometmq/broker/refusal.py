"""The error by which a handler refuses a request."""

from __future__ import annotations

from cometmq.errors import CometMQError


class Refused(CometMQError):  # noqa: N818 - no fault of ours
    """Says that the broker does not serve a request. Code, remark and `ext` go into the answer.
    `limit` is the name of the limit that refuses it, if one does.
    """

    def __init__(
        self, code: int, remark: str, ext: dict[str, str] | None = None, *, limit: str = ""
    ) -> None:
        super().__init__(remark, code=code, limit=limit)
        self.ext = ext
