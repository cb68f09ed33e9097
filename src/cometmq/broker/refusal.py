"""How a handler says no."""

from __future__ import annotations

from cometmq.errors import CometMQError


class Refused(CometMQError):  # noqa: N818 - no fault of ours
    """A request that the broker does not serve; becomes the answer's code, remark and fields."""

    def __init__(self, code: int, remark: str, ext: dict[str, str] | None = None) -> None:
        super().__init__(remark, code=code)
        self.ext = ext
