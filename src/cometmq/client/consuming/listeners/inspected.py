"""Translate a listener's outcome into the answer that brokers ask for."""

from __future__ import annotations

from cometmq.client.consuming.listeners.listening import ConsumeJob
from cometmq.model.results import ConsumeResult
from cometmq.protocol.bodies.consumers import ConsumeMessageDirectlyResult


def direct_result(job: ConsumeJob, *, orderly: bool) -> ConsumeMessageDirectlyResult:
    """Return the outcome of a message that was handed to a listener directly."""
    remark = None
    if job.failure is not None:
        result, remark = "CR_THROW_EXCEPTION", f"{type(job.failure).__name__}: {job.failure}"
    elif not job.answered:
        result = "CR_RETURN_NULL"
    else:
        result = "CR_SUCCESS" if job.result is ConsumeResult.SUCCESS else "CR_LATER"
    return ConsumeMessageDirectlyResult(
        consume_result=result,
        order=orderly,
        auto_commit=True,
        spent_time_mills=round(job.seconds * 1000),
        remark=remark,
    )
