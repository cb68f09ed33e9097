"""The same raw requests about popping, good and bad, to Java's newest broker and to ours; the answers compared.

`DIFFERENCES` names every answer in which ours is meant to differ, and why.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pytest
from tests.integration.pop_peer import (
    ACK,
    BATCH_ACK,
    CHANGE,
    NOTIFICATION,
    PEEK,
    POLLING_INFO,
    POP,
    Popped,
    pop_ext,
    popped,
)
from tests.integration.raw_client import Command, RawClient, heartbeat_body, properties, send_ext
from tests.interop.conftest import need
from tests.interop.peers import HOST, JavaBroker, JavaNamesrv
from tests.record_fields import RECORD_FIELDS
from tests.waits import eventually

from cometmq.protocol.fastjson.dialect import encode_body
from cometmq.protocol.messages.properties import decode_properties
from cometmq.protocol.messages.record import StoredRecord, decode_records
from cometmq.protocol.pop.bodies import BatchAck, BatchAckMessageRequestBody, encode_bits
from cometmq.protocol.pop.handle import ORDER_QUEUE
from cometmq.testing import Cluster

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]

SEND, CREATE_TOPIC, UPDATE_GROUP, HEARTBEAT = 10, 17, 200, 34
MAX_OFFSET = 30
QUERY_ASSIGNMENT, SET_MODE = 400, 401
FOUND, NOTHING = 0, 210
LONG_MS = 600_000
BROKER: Final = "broker-a"

# What neither implementation can know beforehand: only its presence is compared.
UNPREDICTABLE: Final = frozenset({"popTime", "msgId", "transactionId"})
KEYS: Final = {"timerWheelEnable": "true", "enablePropertyFilter": "true"}


@dataclass
class Peer:
    """A broker under test, and what it has handed out so far."""

    client: RawClient
    handed_out: dict[str, list[Popped]] = field(default_factory=dict)

    def took(self, name: str, at: int = 0) -> Popped:
        """Return a message that the step of this name popped."""
        return self.handed_out[name][at]


Ext = Mapping[str, Any]


@dataclass(frozen=True)
class Step:
    """One request; what depends on earlier answers is made by functions of the peer. Of `loose` entries of the
    answer only the presence is compared. A step that is `until` an answer's code is asked again until it comes.
    """

    name: str
    code: int
    ext: Ext | Callable[[Peer], Ext] = field(default_factory=dict)
    body: bytes | Callable[[Peer], bytes] = b""
    loose: frozenset[str] = frozenset()
    until: int | None = None


@dataclass(frozen=True)
class Answer:
    """The parts of an answer that are compared; `records` are its messages."""

    code: int
    has_remark: bool = False
    ext: Mapping[str, str] = field(default_factory=dict)
    records: tuple[Mapping[str, Any], ...] = ()
    body: Any = None


def topic(name: str, queues: int = 1, **more: Any) -> Step:
    ext = {
        "topic": name,
        "defaultTopic": "TBW102",
        "readQueueNums": queues,
        "writeQueueNums": queues,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0,
        "order": "false",
        **more,
    }
    return Step(f"make the topic {name} {more or ''}".strip(), CREATE_TOPIC, ext)


def group(name: str, **more: Any) -> Step:
    body = json.dumps({"groupName": name, **more}).encode()
    return Step(f"make the group {name}", UPDATE_GROUP, {}, body)


def send(name: str, to: str, number: int, **more: Any) -> Step:
    return Step(f"send {number} to {name}", SEND, send_ext(to, **more), b"%d" % number)


def pop(name: str, of: str = "t", *, loose: tuple[str, ...] = (), **more: Any) -> Step:
    ext = {key: value for key, value in pop_ext(of, **more).items() if value is not None}
    return Step(name, POP, ext, loose=frozenset(loose))


def found(step: Step) -> Step:
    """Return a pop that is tried until it finds something: a Java broker builds its queues behind the log."""
    return replace(step, until=FOUND)


def about(name: str, code: int, taken: str, at: int = 0, **more: Any) -> Step:
    """Return a request about a message that was popped."""

    def ext(peer: Peer) -> Ext:
        values = peer.took(taken, at).ext(**more)
        return {key: value for key, value in values.items() if value is not None}

    return Step(name, code, ext, loose=frozenset({"invisibleTime"}))


def with_handle(
    name: str, code: int, taken: str, change: Callable[[str], str], **more: Any
) -> Step:
    """Return a request with a handle that was tampered with."""

    def ext(peer: Peer) -> Ext:
        message = peer.took(taken)
        return message.ext(**{**more, "extraInfo": change(message.handle.encode())})

    return Step(name, code, ext, loose=frozenset({"invisibleTime"}))


def batch(name: str, *entries: Callable[[Peer], BatchAck]) -> Step:
    def body(peer: Peer) -> bytes:
        made = [each(peer) for each in entries]
        return encode_body(BatchAckMessageRequestBody(BROKER, made))

    return Step(name, BATCH_ACK, {}, body)


def entry(taken: str, *at: int, **more: Any) -> Callable[[Peer], BatchAck]:
    def make(peer: Peer) -> BatchAck:
        messages = [peer.took(taken, each) for each in at]
        handle = messages[0].handle
        offsets = [each.record.queue_offset for each in messages]
        made = BatchAck(
            messages[0].group, messages[0].record.topic, str(handle.mark), offsets[0], handle.queue_id,
            handle.revive_qid, handle.pop_time, handle.invisible_time, encode_bits(offsets[0], offsets),
        )  # fmt: skip
        for key, value in more.items():
            setattr(made, key, value)
        return made

    return make


def ask(name: str, code: int, **ext: Any) -> Step:
    return Step(name, code, {key: value for key, value in ext.items() if value is not None})


def json_body(name: str, code: int, **values: Any) -> Step:
    return Step(name, code, {}, json.dumps(values).encode())


def without(step: Step, *names: str) -> Step:
    assert isinstance(step.ext, Mapping)
    return replace(step, ext={key: value for key, value in step.ext.items() if key not in names})


PLACES = [
    topic("t"), topic("o"), topic("two", 2), topic("hidden", perm=2), topic("r"), topic("s"), topic("d"),
    group("off", consumeEnable=False),
    topic("i"), topic("x"),
]  # fmt: skip

POPS = [
    pop("pop of an unknown topic", "nowhere"),
    pop("pop of a topic that may not be read", "hidden"),
    pop("pop of more than 32", maxMsgNums=33),
    pop("pop of none", maxMsgNums=0),
    pop("pop of fewer than none", maxMsgNums=-1),
    pop("pop of a queue beyond the last", queueId=1),
    pop("pop of a queue below -1", queueId=-7),
    pop("pop of an illegal group", consumerGroup="a b"),
    pop("pop of a group that may not consume", consumerGroup="off"),
    pop("pop that comes too late", bornTime=1_000),
    pop("pop without a birth", bornTime=None),
    pop("pop by broken SQL", expType="SQL92", exp="a >"),
    pop("pop by SQL", expType="SQL92", exp="a > 1"),
    pop("pop by an unknown kind of expression", expType="XPATH", exp="a"),
    pop("pop by no tag", exp="||"),
    pop("pop without an expression", exp=None, expType="TAG"),
    pop("pop by an empty expression", exp="", expType="TAG"),
    pop("pop hidden for no time", invisibleTime=0),
    pop("pop hidden for less than no time", invisibleTime=-1),
    pop("pop hidden for a year", invisibleTime=365 * 24 * 3600 * 1000),
    pop("pop from the end", initMode=1, consumerGroup="late"),
    pop("pop from nowhere", initMode=7, consumerGroup="odd"),
    pop("pop of a topic without messages"),
    pop("pop in order of a topic without messages", order="true"),
    pop("pop of two queues without messages", "two"),
    pop("pop with an order that is none", order="perhaps"),
    *(
        without(pop(f"pop without {name}"), name)
        for name in (
            "topic", "consumerGroup", "queueId", "maxMsgNums", "invisibleTime", "pollTime", "initMode",
        )
    ),
    pop("pop of a queue that is no number", queueId="first"),
]  # fmt: skip

TAKEN = [
    *(send("the topic", "t", number) for number in range(10)),
    found(pop("pop of three", maxMsgNums=3)),
    pop("pop of four", maxMsgNums=4),
    pop("pop of the rest"),
    pop("pop when all is taken"),
    about("acknowledge", ACK, "pop of three"),
    about("acknowledge twice", ACK, "pop of three"),
    about("acknowledge offset -1", ACK, "pop of three", offset=-1),
    about("acknowledge the offset behind the last", ACK, "pop of three", offset=10),
    about("acknowledge an offset beyond", ACK, "pop of three", offset=11),
    about("acknowledge in queue 9", ACK, "pop of three", queueId=9),
    about("acknowledge in queue 1", ACK, "pop of three", queueId=1),
    about("acknowledge in queue -1", ACK, "pop of three", queueId=-1),
    about("acknowledge in an unknown topic", ACK, "pop of three", topic="nowhere"),
    about("acknowledge for an unknown group", ACK, "pop of three", consumerGroup="nobody"),
    about("acknowledge for an illegal group", ACK, "pop of three", consumerGroup="a b"),
    with_handle("acknowledge by a handle of words", ACK, "pop of three", lambda _: "what is this"),
    with_handle("acknowledge by an empty handle", ACK, "pop of three", lambda _: ""),
    with_handle(
        "acknowledge by seven fields", ACK, "pop of three", lambda text: text.rpartition(" ")[0]
    ),
    with_handle(
        "acknowledge by a handle of another broker",
        ACK,
        "pop of three",
        lambda text: text.replace(BROKER, "elsewhere"),
    ),
    about("acknowledge without an offset", ACK, "pop of three", offset=None),
    about("acknowledge without a handle", ACK, "pop of three", extraInfo=None),
    about("acknowledge without a group", ACK, "pop of three", consumerGroup=None),
    about("hide", CHANGE, "pop of four", invisibleTime=LONG_MS),
    about("hide by the handle of before", CHANGE, "pop of four", invisibleTime=LONG_MS),
    about("hide what is done", CHANGE, "pop of three", invisibleTime=LONG_MS),
    about("hide for less than no time", CHANGE, "pop of four", 1, invisibleTime=-1),
    about("hide offset -1", CHANGE, "pop of four", 1, offset=-1, invisibleTime=LONG_MS),
    about(
        "hide the offset behind the last", CHANGE, "pop of four", 1, offset=10, invisibleTime=1000
    ),
    about("hide in queue 1", CHANGE, "pop of four", 1, queueId=1, invisibleTime=LONG_MS),
    about(
        "hide in an unknown topic", CHANGE, "pop of four", 1, topic="nowhere", invisibleTime=1000
    ),
    about("hide without a time", CHANGE, "pop of four", 1),
    with_handle(
        "hide by a handle of words",
        CHANGE,
        "pop of four",
        lambda _: "what is this",
        invisibleTime=1,
    ),
    batch("acknowledge two at once", entry("pop of four", 1, 2)),
    batch("acknowledge none at once"),
    batch("acknowledge at once in an unknown topic", entry("pop of four", 3, topic="nowhere")),
    batch("acknowledge at once in queue 9", entry("pop of four", 3, queue_id=9)),
    batch("acknowledge at once beyond the last", entry("pop of four", 3, start_offset=900)),
    batch("acknowledge at once for nobody", entry("pop of four", 3, consumer_group="nobody")),
    batch("acknowledge at once with a wrong mark", entry("pop of four", 3, retry="9")),
    Step("acknowledge at once without a body", BATCH_ACK),
    Step("acknowledge at once by what is no JSON", BATCH_ACK, {}, b"{nonsense"),
    json_body("acknowledge at once nothing named", BATCH_ACK, brokerName=BROKER),
]

SMALL = [
    *(send("the small topic", "s", number) for number in range(5)),
    found(pop("pop of the small topic", "s", maxMsgNums=1)),
    ask("peek", PEEK, consumerGroup="g", topic="s", queueId=0, maxMsgNums=2),
    ask("peek at any queue", PEEK, consumerGroup="g", topic="s", queueId=-1, maxMsgNums=32),
    ask("peek at more than 32", PEEK, consumerGroup="g", topic="s", queueId=0, maxMsgNums=33),
    ask("peek at none", PEEK, consumerGroup="g", topic="s", queueId=0, maxMsgNums=0),
    ask("peek at a queue beyond the last", PEEK, consumerGroup="g", topic="s", queueId=1, maxMsgNums=1),
    ask("peek at an unknown topic", PEEK, consumerGroup="g", topic="nowhere", queueId=0, maxMsgNums=1),
    ask("peek at what may not be read", PEEK, consumerGroup="g", topic="hidden", queueId=0, maxMsgNums=1),
    ask("peek for who may not", PEEK, consumerGroup="off", topic="s", queueId=0, maxMsgNums=1),
    ask("peek for an illegal group", PEEK, consumerGroup="a b", topic="s", queueId=0, maxMsgNums=1),
    ask("peek for a new group", PEEK, consumerGroup="fresh", topic="s", queueId=0, maxMsgNums=1),
    ask("peek where nothing is", PEEK, consumerGroup="g", topic="x", queueId=0, maxMsgNums=1),
    ask("peek without a queue", PEEK, consumerGroup="g", topic="s", maxMsgNums=1),
    *(
        ask(f"{name} {which}", code, **{**fields, **more, **changed})
        for name, code, more in (
            ("ask for news", NOTIFICATION, {"pollTime": 0, "bornTime": 0}),
            ("ask who waits", POLLING_INFO, {}),
        )
        for fields in ({"consumerGroup": "g", "topic": "s", "queueId": -1},)
        for which, changed in (
            ("", {}),
            ("of a queue", {"queueId": 0}),
            ("of a queue beyond the last", {"queueId": 1}),
            ("of an unknown topic", {"topic": "nowhere"}),
            ("of a topic that may not be read", {"topic": "hidden"}),
            ("of a topic without messages", {"topic": "x"}),
            ("for a group that may not consume", {"consumerGroup": "off"}),
            ("for an illegal group", {"consumerGroup": "a b"}),
            ("without a queue", {"queueId": None}),
            ("without a topic", {"topic": None}),
        )
    ),
    ask("ask for news without a birth", NOTIFICATION, consumerGroup="g", topic="s", queueId=0, pollTime=0),
    ask("ask for news in order", NOTIFICATION, consumerGroup="g", topic="s", queueId=0, pollTime=0, bornTime=0,
        order="true", attemptId="a"),
]  # fmt: skip

ORDER = [
    *(send("the ordered topic", "o", number) for number in range(6)),
    found(pop("pop three in order", "o", maxMsgNums=3, order="true", attemptId="one")),
    pop("pop in order before all is done", "o", maxMsgNums=3, order="true", attemptId="two"),
    pop("pop in order by no attempt", "o", maxMsgNums=3, order="true"),
    ask("news of what is blocked", NOTIFICATION, consumerGroup="g", topic="o", queueId=0, pollTime=0, bornTime=0,
        order="true", attemptId="two"),
    ask("news for the attempt that has it", NOTIFICATION, consumerGroup="g", topic="o", queueId=0, pollTime=0,
        bornTime=0, order="true", attemptId="one"),
    pop("pop in order by the same attempt", "o", maxMsgNums=3, order="true", attemptId="one"),
    about("acknowledge in order by the handle of before", ACK, "pop three in order"),
    about("acknowledge the third in order", ACK, "pop in order by the same attempt", 2),
    about("acknowledge the third in order twice", ACK, "pop in order by the same attempt", 2),
    about("acknowledge in order what is not in flight", ACK, "pop in order by the same attempt", offset=4),
    about("hide in order", CHANGE, "pop in order by the same attempt", 1, invisibleTime=LONG_MS),
    about("hide in order by the handle of before", CHANGE, "pop three in order", 1, invisibleTime=1000),
    about("hide in order what is not in flight", CHANGE, "pop in order by the same attempt", offset=4,
          invisibleTime=1000),
    about("acknowledge the first in order", ACK, "pop in order by the same attempt", 0),
    about("hide in order what is done", CHANGE, "pop in order by the same attempt", 0, invisibleTime=1000),
    pop("pop in order what is hidden", "o", maxMsgNums=3, order="true"),
    about("hide in order for no time", CHANGE, "pop in order by the same attempt", 1, invisibleTime=0),
    # The third message was acknowledged, and comes again with the second.
    found(pop("pop in order more by the first attempt", "o", maxMsgNums=3, order="true")),
    batch("acknowledge at once in order", entry("pop in order more by the first attempt", 0, 1)),
    batch("acknowledge at once in order what is not in flight",
          entry("pop in order more by the first attempt", 0, start_offset=5)),
    about("acknowledge in order behind", ACK, "pop in order more by the first attempt", 2),
    pop("pop in order the last", "o", maxMsgNums=3, order="true", attemptId="three"),
    about("acknowledge in order the last", ACK, "pop in order the last"),
    pop("pop in order when all is done", "o", order="true"),
    about("acknowledge in order what was skipped", ACK, "pop in order by the same attempt", 1),
    about("acknowledge in order what was done long ago", ACK, "pop in order by the same attempt", 0),
]  # fmt: skip

AGAIN = [
    send("the topic to come again", "r", 0, properties=properties({"KEYS": "k", "POP_CK": "1 2 3"})),
    found(pop("pop for a second", "r", invisibleTime=1000)),
    found(pop("pop what comes again", "r", invisibleTime=1000)),
    found(pop("pop what comes again once more", "r", invisibleTime=LONG_MS)),
    about("acknowledge by the handle of the first time", ACK, "pop for a second"),
    about("acknowledge what came again", ACK, "pop what comes again once more"),
    about("hide what came again and is done", CHANGE, "pop what comes again once more", invisibleTime=LONG_MS),
    # Both have their retry topic now.
    send("the topic to come again", "r", 1),
    found(pop("pop by a queue", "r", queueId=0)),
    about("hide for a moment", CHANGE, "pop by a queue", invisibleTime=1000),
    found(pop("pop by a queue what comes again", "r", queueId=0)),
    batch("acknowledge at once what came again", entry("pop by a queue what comes again", 0, topic="r")),
]  # fmt: skip


def assignment(name: str, **more: Any) -> Step:
    values = {
        "topic": "i",
        "consumerGroup": "members",
        "clientId": "c1",
        "strategyName": "AVG",
        "messageModel": "CLUSTERING",
        **more,
    }
    return json_body(name, QUERY_ASSIGNMENT, **values)


def mode(name: str, **more: Any) -> Step:
    values = {
        "topic": "i",
        "consumerGroup": "members",
        "mode": "POP",
        "popShareQueueNum": 0,
        **more,
    }
    return json_body(
        name, SET_MODE, **{key: value for key, value in values.items() if value is not None}
    )


MODES = [
    assignment("queues for nobody"),
    Step("a member comes", HEARTBEAT, {}, heartbeat_body("c1", {"members": ["i"]})),
    assignment("queues of a member"),
    assignment("queues in a circle", strategyName="AVG_BY_CIRCLE"),
    assignment("queues by an unknown strategy", strategyName="MINE"),
    assignment("queues of a stranger", clientId="c9"),
    assignment("queues of an unknown topic", topic="nowhere"),
    assignment("queues of a broadcast", messageModel="BROADCASTING"),
    mode("have a group pop"),
    assignment("queues of a member that pops"),
    assignment("queues of a stranger that pops", clientId="c9"),
    assignment("queues by an unknown strategy to pop", strategyName="MINE"),
    assignment("queues of a retry topic", topic="%RETRY%members"),
    mode("have a group share one queue", popShareQueueNum=1),
    assignment("queues of a member that shares"),
    mode("have a group share less than none", popShareQueueNum=-3),
    mode("have a group pull", mode="PULL"),
    assignment("queues of a member that pulls again"),
    mode("a mode that is none", mode="PUSH"),
    mode("no mode", mode=None),
    mode("no number of members", popShareQueueNum=None),
    mode("a mode of an unknown topic", topic="nowhere"),
    mode("a mode of a retry topic", topic="%RETRY%members"),
    mode("a mode of an unknown group", consumerGroup="nobody-knows"),
    mode("a mode of an illegal group", consumerGroup="a b"),
    Step("a mode without a body", SET_MODE),
]

STEPS = [*PLACES, *POPS, *TAKEN, *SMALL, *ORDER, *AGAIN, *MODES]
_names = [step.name for step in STEPS]
assert len(set(_names)) == len(_names), {name for name in _names if _names.count(name) > 1}

Change = Callable[[Answer], Answer]


def refused(code: int) -> Change:
    return lambda _: Answer(code=code, has_remark=True)


def explained(theirs: Answer) -> Answer:
    return replace(theirs, has_remark=True)


def with_infos(theirs: Answer) -> Answer:
    return replace(theirs, ext={**theirs.ext, "startOffsetInfo": "", "msgOffsetInfo": ""})


def of_order(theirs: Answer) -> Answer:
    return replace(theirs, ext={**theirs.ext, "reviveQid": str(ORDER_QUEUE)})


def names_original(theirs: Answer) -> Answer:
    records = [
        {**record, "properties": {**record["properties"], "ORIGIN_MESSAGE_ID": "#"}}
        for record in theirs.records
    ]
    return replace(theirs, records=tuple(records))


NAMELESS = "Java takes 0, false or nothing for a field that is missing or unreadable; ours names it"
NEGATIVE = "nothing can be hidden for less than no time; Java hands it out again at once"
ONE_HANDLE = "a handle stands for one time: Java hides a message anew that is done, or was hidden or handed out since"
ORIGINAL = "copies name their original, as those of messages that were pulled do"

# How our answer follows from Java's, and why it is another.
DIFFERENCES: dict[str, tuple[Change, str]] = {
    "pop of none": (refused(29), "a pop asks for something; Java looks, and waits, for nothing"),
    "pop of fewer than none": (refused(29), "Java fails in its code (1)"),
    "pop that comes too late": (with_infos, "as all answers without messages"),
    "pop hidden for less than no time": (refused(29), NEGATIVE),
    "pop hidden for a year": (
        refused(29),
        "Java's timer takes three days at most; it then hands out nothing, and says that there is more",
    ),
    "pop with an order that is none": (refused(1), NAMELESS),
    "pop without queueId": (refused(1), NAMELESS),
    "pop without maxMsgNums": (refused(1), NAMELESS),
    "pop without invisibleTime": (refused(1), NAMELESS),
    "pop without pollTime": (refused(1), NAMELESS),
    "pop without initMode": (refused(1), NAMELESS),
    "pop of a queue that is no number": (refused(1), NAMELESS),
    "acknowledge without a group": (refused(1), NAMELESS),
    "peek without a queue": (refused(1), NAMELESS),
    "ask for news without a queue": (refused(1), NAMELESS),
    "ask for news without a birth": (refused(1), NAMELESS),
    "ask who waits without a queue": (refused(1), NAMELESS),
    "hide offset -1": (explained, "ours says why"),
    "hide the offset behind the last": (explained, "ours says why"),
    "hide by the handle of before": (refused(208), ONE_HANDLE),
    "hide what is done": (refused(208), ONE_HANDLE),
    "hide what came again and is done": (refused(208), ONE_HANDLE),
    "hide for less than no time": (refused(29), NEGATIVE),
    "hide in order what is done": (of_order, "the handle stays one in order; nobody looks at it"),
    "acknowledge none at once": (explained, "ours says why"),
    "acknowledge at once without a body": (explained, "ours says why"),
    "acknowledge at once nothing named": (explained, "ours says why"),
    "pop what comes again": (names_original, ORIGINAL),
    "pop what comes again once more": (names_original, ORIGINAL),
    "pop by a queue what comes again": (names_original, ORIGINAL),
}
assert DIFFERENCES.keys() <= set(_names)


def run(address: str) -> dict[str, Answer]:
    answers: dict[str, Answer] = {}
    with RawClient(address) as client:
        peer = Peer(client)
        for step in STEPS:
            command = take(peer, step)
            if step.code == POP and command.code == FOUND:
                fields = step.ext(peer) if callable(step.ext) else step.ext
                peer.handed_out[step.name] = popped(command, fields["consumerGroup"], BROKER)
            if step.code == SEND:
                wait_until_queued(peer, step, command)
            answers[step.name] = seen(step, command)
    return answers


def take(peer: Peer, step: Step) -> Command:
    ext = step.ext(peer) if callable(step.ext) else step.ext
    body = step.body(peer) if callable(step.body) else step.body
    if step.until is None:
        return peer.client.ask(step.code, ext, body)

    def answered() -> Command | None:
        command = peer.client.ask(step.code, ext, body)
        return command if command.code == step.until else None

    return eventually(answered)


def wait_until_queued(peer: Peer, sent: Step, answer: Command) -> None:
    """Wait until the queue has what was sent: Java's broker fills its queues behind the log, and a pop that comes
    sooner counts fewer messages as left.
    """
    assert isinstance(sent.ext, Mapping)
    where = {"topic": sent.ext["topic"], "queueId": answer.ext["queueId"]}
    wanted = int(answer.ext["queueOffset"]) + 1
    eventually(lambda: int(peer.client.ask(MAX_OFFSET, where).ext["offset"]) >= wanted)


def seen(step: Step, command: Command) -> Answer:
    hidden = UNPREDICTABLE | step.loose
    ext = {
        key: "#" if key in hidden else value
        for key, value in command.ext.items()
        if key not in ("MSG_REGION", "TRACE_ON")
    }
    if ext.get("reviveQid", str(ORDER_QUEUE)) != str(ORDER_QUEUE):
        ext["reviveQid"] = "#"  # Java's are eight that take turns
    records: tuple[Mapping[str, Any], ...] = ()
    body: Any = None
    if step.code in (POP, PEEK):
        records = tuple(map(comparable, decode_records(command.body)))
    elif command.body:
        body = json.loads(command.body)
    if command.code not in (FOUND, NOTHING):
        ext = {}  # Java leaves zeros in a refusal, where no client looks for them
    # What Java's answers say when nobody wrote a remark.
    has_remark = bool(command.remark) and command.remark != "not set any response code"
    return Answer(command.code, has_remark, ext, records, body)


def comparable(record: StoredRecord) -> Mapping[str, Any]:
    """The fields of a record that two brokers must agree in."""
    apart = {
        "born_host", "store_host", "store_timestamp", "physical_offset", "total_size", "body_crc",
        "prepared_transaction_offset",
    }  # fmt: skip
    values = {name: getattr(record, name) for name in RECORD_FIELDS if name not in apart}
    values["body"] = bytes(record.body)
    found = decode_properties(record.properties)
    for name in ("UNIQ_KEY", "ORIGIN_MESSAGE_ID", "1ST_POP_TIME"):
        if name in found:
            found[name] = "#"
    if "POP_CK" in found:
        fields = found["POP_CK"].split(" ")
        fields[1] = fields[3] = "#"  # the time, and the queue of check points
        found["POP_CK"] = " ".join(fields)
    values["properties"] = found
    return values


Both = tuple[dict[str, Answer], dict[str, Answer]]


@pytest.fixture(scope="module")
def answers() -> Both:
    """All answers of the Java broker and of ours, by step."""
    need("java", "mvn")
    with (
        JavaNamesrv() as namesrv,
        JavaBroker(namesrv.address, broker_name=BROKER, conf=KEYS) as broker,
    ):
        theirs = run(broker.address)
    with Cluster(properties=KEYS) as cluster:
        ours = run(f"{HOST}:{cluster.brokers[0].port}")
    return theirs, ours


@pytest.mark.parametrize("name", [step.name for step in STEPS])
def test_answers_as_java(name: str, answers: Both) -> None:
    theirs, ours = answers[0][name], answers[1][name]
    if name in DIFFERENCES:
        change, _reason = DIFFERENCES[name]
        assert ours != theirs, "no difference any more: take it out of DIFFERENCES"
        theirs = change(theirs)
    assert ours == theirs
