"""Members of one consumer group, each a process of its own that may be killed at any moment.

Run as `python -m tests.crash.storm_member NAMESRV GROUP TOPIC MODE LISTENER_US`. Reads the path of a
history from each line of its input and forks a member that writes it; answers with the process id. A
member leaves on SIGTERM; all are gone when the input ends. Forking spares each of them half a second
of imports; no thread and no loop runs before.

A history is a file of records, each one write, so that a kill leaves whole records:

| field | type | |
| --- | --- | --- |
| kind | char | `B` the listener begins, `E` it is done, `J` joined, `L` left |
| moment | int64 | nanoseconds of the system-wide monotonic clock |
| queue | int32 | queue id |
| offset | int64 | queue offset |
| number | int64 | the body of the message |
"""

from __future__ import annotations

import os
import signal
import struct
import sys
import threading
import time
from collections.abc import Callable

from cometmq import ConsumeFromWhere, ConsumeResult, MessageExt, PushConsumer

RECORD = struct.Struct("<cqiqq")


class Member:
    def __init__(self, namesrv: str, group: str, topic: str, mode: str, listener_us: str) -> None:
        self._options = {
            "namesrv": namesrv,
            "orderly": mode == "orderly",
            "consume_from": ConsumeFromWhere.FIRST_OFFSET,
        }
        self._group = group
        self._topic = topic
        self._listener_s = int(listener_us) / 1e6
        self._history = -1

    def run(self, history: str) -> None:
        """Consume until SIGTERM."""
        leave = threading.Event()
        signal.signal(signal.SIGTERM, lambda *_: leave.set())
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        self._history = os.open(history, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        consumer = PushConsumer(self._group, self._listen, **self._options)  # type: ignore[arg-type]  # a dict of options of several types
        consumer.subscribe(self._topic)
        with consumer:
            self._write(b"J")
            while not leave.wait(0.1):
                pass
        self._write(b"L")

    def _listen(self, messages: list[MessageExt]) -> ConsumeResult:
        for message in messages:
            place = message.queue_id, message.queue_offset, int(message.body)
            self._write(b"B", *place)
            if self._listener_s:
                time.sleep(self._listener_s)
            self._write(b"E", *place)
        return ConsumeResult.SUCCESS

    def _write(self, kind: bytes, queue: int = 0, offset: int = 0, number: int = 0) -> None:
        record = RECORD.pack(kind, time.monotonic_ns(), queue, offset, number)
        assert os.write(self._history, record) == RECORD.size


def fork(run: Callable[[], None]) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.close(0)
        run()
        code = 0
    finally:
        os._exit(code)


def main(arguments: list[str]) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps
    # A member that is told to leave before it listens for that leaves as soon as it does.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    members = []
    for line in sys.stdin:
        path = line.strip()
        pid = fork(lambda path=path: Member(*arguments).run(path))  # type: ignore[misc]  # mypy infers no lambda with a default
        members.append(pid)
        sys.stdout.write(f"{pid}\n")
        sys.stdout.flush()
    for pid in members:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


if __name__ == "__main__":
    main(sys.argv[1:])
