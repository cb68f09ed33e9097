"""Client program of the interop suite over RocketMQ's C++ client, by the Python face of its wheel:

    cpp_client.py DIRECTORY SCENARIO --name=value …

The wheel lies in DIRECTORY, not among the packages of the tests. Its face has texts only, so bodies are
texts here; `text_body` is that of message `index`.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import threading
from typing import Any

# Events have standard output for themselves: the library prints there, too.
_events = os.fdopen(os.dup(1), "wb")
os.dup2(2, 1)
_printing = threading.Lock()
_CONSUMED, _AGAIN = 0, 1


def text_body(index: int) -> str:
    """Return the body of message `index`."""
    return f"body {index}: grün 😀"


def emit(event: str, **fields: Any) -> None:
    """Print one event; its name comes first, readers know an event by that."""
    line = json.dumps({"event": event, **fields}, separators=(",", ":"))
    with _printing:
        _events.write(line.encode() + b"\n")
        _events.flush()


def produce(cpp: Any, args: dict[str, str]) -> None:
    """Send `count` messages one after the other."""
    producer = cpp.Producer(args.get("group", "cpp-producer"), timeout=60_000)
    producer.set_namesrv_addr(args["namesrv"])
    producer.start()
    for index in range(int(args["count"])):
        message = cpp.Message(args["topic"])
        message.set_keys(f"m-{index}")
        message.set_tags(args.get("tags", "TagA"))
        message.set_property("index", str(index))
        message.set_body(text_body(index))
        sent = producer.send_sync(message)
        emit("sent", index=index, status=int(sent.status), msgId=sent.msg_id)
    producer.shutdown()
    emit("summary", sent=int(args["count"]), failed=0)


def consume(cpp: Any, args: dict[str, str]) -> None:
    """Print every message until standard input closes; fail those of index 0 once with `fail=true`."""
    model = cpp.MessageModel[args.get("model", "CLUSTERING")]
    consumer = cpp.PushConsumer(args["group"], args.get("orderly") == "true", model)
    consumer.set_namesrv_addr(args["namesrv"])
    consumer.set_instance_name(args.get("member", "cpp"))

    # The face's own callback reports a failed message as consumed.
    def listen(_consumer: Any, handle: Any) -> int:
        one = cpp.RecvMessage(handle)
        index = int(one.get_property("index"))
        emit(
            "message",
            member=args.get("member", "cpp"),
            index=index,
            body=one.body.decode(),
            tags=one.tags.decode(),
            keys=one.keys.decode(),
            reconsumeTimes=one.reconsume_times,
        )
        fails = args.get("fail") == "true" and index == 0 and one.reconsume_times == 0
        return _AGAIN if fails else _CONSUMED

    expression = args.get("expression", "*").encode()
    status = cpp.dll.Subscribe(consumer._handle, args["topic"].encode(), expression)
    assert status == _CONSUMED, status
    consumer._register_callback(listen)
    consumer.start()
    emit("started", member=args.get("member", "cpp"))
    sys.stdin.read()
    consumer.shutdown()
    emit("summary")


def main() -> None:
    """Run the scenario of the command line."""
    directory, scenario, *arguments = sys.argv[1:]
    sys.path.insert(0, directory)
    cpp = importlib.import_module("rocketmq.client")
    args = dict(argument.removeprefix("--").split("=", 1) for argument in arguments)
    {"produce": produce, "consume": consume}[scenario](cpp, args)
    # What the library leaves behind is not torn down by the interpreter: its threads may still run.
    os._exit(0)


if __name__ == "__main__":
    main()
