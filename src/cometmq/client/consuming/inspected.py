"""A consumer's state in the shapes in which brokers ask for it."""

from __future__ import annotations

from cometmq.client.consuming.listening import ConsumeJob
from cometmq.client.pulling.process_queue import ProcessQueue
from cometmq.model.results import ConsumeResult
from cometmq.protocol.consumer_bodies import ConsumeMessageDirectlyResult, ProcessQueueInfo

_MIB = 1024 * 1024


def process_queue_info(process_queue: ProcessQueue, commit_offset: int | None) -> ProcessQueueInfo:
    lock = process_queue.lock
    return ProcessQueueInfo(
        cached_msg_count=len(process_queue),
        cached_msg_max_offset=process_queue.highest,
        cached_msg_min_offset=process_queue.lowest,
        cached_msg_size_in_mi_b=process_queue.size_bytes // _MIB,
        commit_offset=-1 if commit_offset is None else commit_offset,
        droped=process_queue.dropped,
        last_consume_timestamp=process_queue.last_consume_ms,
        last_pull_timestamp=process_queue.last_pull_ms,
        locked=lock is not None and lock.valid,
    )


def direct_result(job: ConsumeJob, *, orderly: bool) -> ConsumeMessageDirectlyResult:
    """What a listener said of a message that was handed to it directly."""
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
