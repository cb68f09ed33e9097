"""Raw requests about messages that are no ordinary ones, to the Java broker and to ours: delays,
recalls, retries, transactions, replies; mostly bad ones. The answers, and what is stored, compared.

`DIFFERENCES` names every answer in which ours is meant to differ, and why.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from tests.integration.raw_client import (
    RESPONSE,
    Command,
    RawClient,
    batch_body,
    heartbeat_body,
    json_request,
    properties,
    pull_ext,
    send_ext,
)
from tests.interop.conftest import need
from tests.interop.peers import JavaBroker, JavaNamesrv
from tests.interop.test_differential import Answer, Step, seen
from tests.waits import JVM_WAIT_S, eventually

from cometmq.protocol.messages.properties import decode_properties
from cometmq.protocol.messages.recall_handle import RecallHandle
from cometmq.protocol.messages.record import decode_records
from cometmq.testing import Cluster

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]

SEND, PULL, HEARTBEAT, SEND_BACK, END = 10, 11, 34, 36, 37
SEND_V2, SEND_BATCH, RESUME, REPLY, REPLY_V2, PUSH, RECALL = 310, 320, 323, 324, 325, 326, 370
COMMIT, ROLLBACK = 8, 12
REPLY_TOPIC = "DefaultCluster_REPLY_TOPIC"

DAY_MS = 86_400_000
INT64_MAX = 2**63 - 1
CONF = {
    "timerWheelEnable": "true",
    "recallMessageEnable": "true",
    # No check comes between the steps.
    "transactionTimeOut": "600000",
    "transactionCheckInterval": "3600000",
}


class Talk:
    """Asks one broker step by step, and keeps what is to be compared of each answer."""

    def __init__(self, address: str) -> None:
        self.client = RawClient(address)
        self.address = address
        self.answers: dict[str, Answer] = {}
        self._settled = 0

    def ask(
        self,
        name: str,
        code: int,
        ext: Mapping[str, Any],
        body: bytes = b"",
        loose: frozenset[str] = frozenset(),
    ) -> Command:
        return self.take(name, code, self.client.send(code, ext, body), loose)

    def take(
        self, name: str, code: int, opaque: int, loose: frozenset[str] = frozenset()
    ) -> Command:
        """The answer to a request that was sent; as the tables of steps, a name stands once."""
        assert name not in self.answers, name
        answer = self.client.answer(opaque)
        found = seen(Step(name, code, loose=loose), answer)
        # Java leaves "not set any response code" in some of its successes.
        self.answers[name] = replace(found, has_remark=found.has_remark and answer.code != 0)
        return answer

    def unanswered(self, name: str, code: int, ext: Mapping[str, Any]) -> None:
        """A request that is not answered: the answer to the next one comes first."""
        self.client.send(code, ext)
        self.answers[name] = Answer()
        self.ask(f"{name}, and the connection goes on", PULL, pull_ext("nowhere"))

    def stored(self, name: str, topic: str, queue_id: int = 0) -> None:
        """Keep the properties of what a queue holds, without what differs from run to run."""
        self._settle()
        answer = self.client.ask(PULL, pull_ext(topic, queueId=queue_id))
        records = [
            {"body": record.body, "times": record.reconsume_times, **comparable(record.properties)}
            for record in decode_records(answer.body)
        ]
        self.answers[name] = Answer(code=answer.code, records=tuple(records))

    def _settle(self) -> None:
        """Wait until all that was sent can be pulled: a Java broker builds its queues behind the
        log, but in its order.
        """
        assert self.client.ask(SEND, send_ext("settled"), b"x").code == 0
        self._settled += 1
        ext = pull_ext("settled", queueOffset=self._settled - 1)
        eventually(lambda: self.client.ask(PULL, ext).code == 0, wait_s=JVM_WAIT_S)


def comparable(text: str) -> dict[str, Any]:
    found: dict[str, Any] = decode_properties(text)
    for name in ("TIMER_OUT_MS", "ORIGIN_MESSAGE_ID", "UNIQ_KEY", "PUSH_REPLY_TIME"):
        if name in found:
            found[name] = "#"
    if len(found.get("TIMER_DELIVER_MS", "")) == len("1700000000000"):
        found["TIMER_DELIVER_MS"] = "#"
    if "DELAY" in found:
        # Java keeps a sign.
        found["DELAY"] = str(int(found["DELAY"]))
    return found


# -- delays --

LEVELS = {
    "a level": "3",
    "the highest level": "18",
    "a level above the highest": "19",
    "a level far above the highest": "2147483647",
    "level zero": "0",
    "a negative level": "-1",
    "a level beyond 32 bits": "2147483648",
    "a level far beyond 32 bits": "99999999999999999999",
    "a level that is no number": "three",
    "an empty level": "",
    "a level with a blank": " 3",
    "a level with a sign": "+3",
    "a level with a fraction": "3.0",
}


def timers(now_ms: int) -> dict[str, dict[str, str]]:
    return {
        "a delay in seconds": {"TIMER_DELAY_SEC": "3600"},
        "a delay in milliseconds": {"TIMER_DELAY_MS": "3600000"},
        "a time": {"TIMER_DELIVER_MS": str(now_ms + DAY_MS)},
        "the longest delay": {"TIMER_DELAY_SEC": "259200"},
        "a delay beyond the limit, seconds": {"TIMER_DELAY_SEC": "259201"},
        "a delay beyond the limit, milliseconds": {"TIMER_DELAY_MS": str(3 * DAY_MS + 60_000)},
        "a time beyond the limit": {"TIMER_DELIVER_MS": str(now_ms + 4 * DAY_MS)},
        "the last time of all": {"TIMER_DELIVER_MS": str(INT64_MAX)},
        "a delay beyond 64 bits, seconds": {"TIMER_DELAY_SEC": str(2**63)},
        "a delay beyond 64 bits, milliseconds": {"TIMER_DELAY_MS": str(2**63)},
        "a time beyond 64 bits": {"TIMER_DELIVER_MS": str(2**63)},
        "no delay": {"TIMER_DELAY_SEC": "0"},
        "a delay of a negative second": {"TIMER_DELAY_SEC": "-1"},
        "a delay of a negative millisecond": {"TIMER_DELAY_MS": "-1"},
        "a time that is over": {"TIMER_DELIVER_MS": "1000"},
        "a negative time": {"TIMER_DELIVER_MS": "-1"},
        "a delay that is no number": {"TIMER_DELAY_SEC": "soon"},
        "a delay with a fraction": {"TIMER_DELAY_MS": "1.5"},
        "an empty delay": {"TIMER_DELAY_MS": ""},
        "an empty time": {"TIMER_DELIVER_MS": ""},
        "level and delay": {"DELAY": "3", "TIMER_DELAY_SEC": "3600"},
        "level and a bad delay": {"DELAY": "3", "TIMER_DELAY_SEC": "soon"},
        "level zero and delay": {"DELAY": "0", "TIMER_DELAY_SEC": "3600"},
        "all three delays": {
            "TIMER_DELAY_SEC": "3600",
            "TIMER_DELAY_MS": "10",
            "TIMER_DELIVER_MS": "1000",
        },
        "a time and a bad delay": {
            "TIMER_DELIVER_MS": str(now_ms + 3_600_000),
            "TIMER_DELAY_MS": "x",
        },
        "a delay that was delivered once": {"TIMER_DELAY_SEC": "3600", "TIMER_OUT_MS": "1000"},
        "a recall that is over": {"TIMER_DELIVER_MS": "1000", "TIMER_DEL_UNIQKEY": "delays+U"},
        # The last, since Java stores them: the offsets of what follows would differ.
        "a delay that overflows, seconds": {"TIMER_DELAY_SEC": str(INT64_MAX)},
        "a delay that overflows, milliseconds": {"TIMER_DELAY_MS": str(INT64_MAX)},
    }


def delays(talk: Talk) -> None:
    loose = frozenset({"recallHandle"})
    now_ms = int(time.time() * 1000)
    cases = {name: {"DELAY": level} for name, level in LEVELS.items()} | timers(now_ms)
    for name, extra in cases.items():
        text = properties({"UNIQ_KEY": f"{len(talk.answers):032X}", **extra})
        talk.ask(f"send with {name}", SEND, send_ext("delays", properties=text), b"x", loose)
    talk.stored("what was not delayed", "delays")
    talk.stored("what waits for a moment", "rmq_sys_wheel_timer")
    for level in (3, 18):
        talk.stored(f"what waits at level {level}", "SCHEDULE_TOPIC_XXXX", level - 1)
    for name, extra in (
        ("level zero", {"DELAY": "0"}),
        ("a level", {"DELAY": "3"}),
        ("a delay", {"TIMER_DELAY_SEC": "3600"}),
        ("a half message", {"TRAN_MSG": "true", "PGROUP": "g"}),
    ):
        ext = send_ext("batches", letters=True, batch="true")
        body = batch_body([(b"one", properties(extra).encode()), (b"two", b"")])
        talk.ask(f"batch with {name}", SEND_BATCH, ext, body)


# -- recalls --


def recalls(talk: Talk) -> None:
    now_ms = int(time.time() * 1000)
    text = properties({"UNIQ_KEY": "U1", "TIMER_DELAY_SEC": "3600"})
    sent = talk.ask(
        "send to recall",
        SEND,
        send_ext("recalls", properties=text),
        b"x",
        frozenset({"recallHandle"}),
    )
    handle = sent.ext["recallHandle"]

    def recall(name: str, handle: str | None, topic: str | None = "recalls") -> None:
        ext = {"topic": topic, "recallHandle": handle, "producerGroup": "g"}
        talk.ask(name, RECALL, {key: value for key, value in ext.items() if value is not None})

    def made(topic: str = "recalls", broker: str = "broker-a", at: Any = now_ms + DAY_MS) -> str:
        return RecallHandle(topic, broker, at, "U1").encode()

    recall("recall", handle)
    recall("recall again", handle)
    recall("recall of a message that never was", made())
    recall("recall from a topic that does not exist", made("nowhere"), "nowhere")
    recall("recall from another topic", made("other"))
    recall("recall from another broker", made(broker="broker-z"))
    recall("recall of what is over", made(at=now_ms - 1))
    recall("recall beyond the limit", made(at=now_ms + 4 * DAY_MS))
    recall("recall at the end of time", made(at=INT64_MAX))
    recall("recall beyond 64 bits", made(at=2**63))
    recall("recall at a time that is none", made(at="soon"))
    recall("recall by a handle that is none", "nonsense")
    recall("recall by an empty handle", "")
    recall("recall by a handle of another version", "djIgdG9waWMgYiAxIHU=")
    recall("recall by a handle cut short", handle[:9])
    recall("recall without a handle", None)
    recall("recall without a topic", handle, None)


# -- retries --


def retries(talk: Talk) -> None:
    talk.client.ask(HEARTBEAT, {}, heartbeat_body("c@1", {"retrying": ["retries"]}))
    text = properties({"UNIQ_KEY": "U1", "TAGS": "t"})
    sent = talk.ask("send to retry", SEND, send_ext("retries", properties=text), b"to be retried")
    offset = int(sent.ext["msgId"][16:], 16)

    def back(name: str, **fields: Any) -> None:
        ext = {
            "offset": offset,
            "group": "retrying",
            "delayLevel": 0,
            "originMsgId": "U1",
            "originTopic": "retries",
            "unitMode": "false",
            "maxReconsumeTimes": 16,
            **fields,
        }
        talk.ask(name, SEND_BACK, {key: v for key, v in ext.items() if v is not None})

    back("retry")
    back("retry at a level", delayLevel=5)
    back("retry above the highest level", delayLevel=99)
    back("retry of a dead letter", delayLevel=-1)
    back("retry that had its chances", maxReconsumeTimes=0)
    back("retry without a limit", maxReconsumeTimes=None)
    back("retry of what was never stored", offset=2**40)
    back("retry before the beginning", offset=-1)
    back("retry for an unknown group, which is made", group="unknown-group")
    back("retry for an illegal group", group="a b")
    back("retry for a group with too long a name", group="g" * 256)
    back("retry without an offset", offset=None)
    back("retry without a level", delayLevel=None)
    back("retry without a group", group=None)
    back("retry at a level that is no number", delayLevel="three")
    for level in (3, 5, 18):
        talk.stored(f"what waits to be retried at level {level}", "SCHEDULE_TOPIC_XXXX", level - 1)
    talk.stored("dead letters", "%DLQ%retrying")


# -- transactions --


def send_half(talk: Talk, name: str, **more: str) -> Command:
    values = {"UNIQ_KEY": "U1", "TRAN_MSG": "true", "PGROUP": "g1", **more}
    ext = send_ext(
        "orders",
        letters=True,
        properties=properties(values),
        producerGroup="g1",
        sysFlag=4,
        bornTimestamp=int(time.time() * 1000),
    )
    return talk.ask(name, SEND_V2, ext, name.encode())


def half(talk: Talk, name: str, **more: str) -> dict[str, str]:
    """A half message; the ext fields of a verdict on it."""
    sent = send_half(talk, name, **more).ext
    return {
        "producerGroup": "g1",
        "tranStateTableOffset": sent["queueOffset"],
        "commitLogOffset": str(int(sent["msgId"][16:], 16)),
        "commitOrRollback": str(COMMIT),
        "fromTransactionCheck": "false",
        "msgId": "U1",
        "transactionId": "U1",
        "offsetMsgId": sent["msgId"],
    }


def transactions(talk: Talk) -> None:
    first, second, third = (half(talk, f"half message {number}") for number in range(3))
    ordinary = talk.ask("ordinary message", SEND, send_ext("orders"), b"ordinary").ext
    ordinary_offset = int(ordinary["msgId"][16:], 16)

    def end(name: str, verdict: Mapping[str, str], **fields: Any) -> None:
        merged = {**verdict, **fields}
        talk.ask(name, END, {key: value for key, value in merged.items() if value is not None})

    end("end of an unknown half message", first, tranStateTableOffset=2**40)
    end("end of a negative half message", first, tranStateTableOffset=-1)
    end("end at an unknown commit-log offset", first, commitLogOffset=2**40)
    end("end at a negative commit-log offset", first, commitLogOffset=-1)
    end("end at the offset of an ordinary message", first, commitLogOffset=ordinary_offset)
    end(
        "end at the offset of another half message",
        first,
        commitLogOffset=second["commitLogOffset"],
    )
    end("end of another group's", first, producerGroup="g2")
    end("rollback of another group's", first, producerGroup="g2", commitOrRollback=ROLLBACK)
    end("end without a half message's offset", first, tranStateTableOffset=None)
    end("end without a commit-log offset", first, commitLogOffset=None)
    end("end without a verdict", first, commitOrRollback=None)
    end("end with a verdict that is no number", first, commitOrRollback="commit")
    end("end without a group", first, producerGroup=None)
    talk.unanswered("end with no verdict yet", END, {**first, "commitOrRollback": "0"})
    end("end with an unknown verdict", first, commitOrRollback="5")
    talk.unanswered(
        "end with no verdict, asked for",
        END,
        {**first, "commitOrRollback": "0", "fromTransactionCheck": "true"},
    )
    talk.stored("nothing has ended", "orders")
    end("commit", first)
    end("rollback", second, commitOrRollback=ROLLBACK)
    end("commit, asked for", third, fromTransactionCheck="true")
    talk.stored("what was committed", "orders")
    end("rollback of what was committed", first, commitOrRollback=ROLLBACK)
    end("commit of what was committed", first)
    end("commit of what was rolled back", second)
    talk.stored("what was committed twice", "orders")
    late = half(talk, "half message with immunity", CHECK_IMMUNITY_TIME_IN_SECONDS="3600")
    end("commit within the immunity time", late)
    for name, msg_id in (
        ("nothing", ""),
        ("no id", "nonsense"),
        ("an id of nowhere", first["offsetMsgId"][:16] + f"{2**40:016X}"),
        ("a negative offset", first["offsetMsgId"][:16] + "F" * 16),
    ):
        talk.ask(f"resume of {name}", RESUME, {"msgId": msg_id})
    talk.ask("resume without an id", RESUME, {})
    # The last, since Java stores them.
    for name, more in (
        ("without a group", {"PGROUP": ""}),
        ("with a level", {"DELAY": "3"}),
        ("with a delay", {"TIMER_DELAY_SEC": "3600"}),
    ):
        send_half(talk, f"half message {name}", **more)


# -- replies --


def replies(talk: Talk) -> None:
    def ext(client: str | None, *, letters: bool = True, **fields: Any) -> dict[str, str]:
        values = {"MSG_TYPE": "reply", "CORRELATION_ID": "c", "TTL": "3000"}
        if client is not None:
            values["REPLY_TO_CLIENT"] = client
        return send_ext(REPLY_TOPIC, letters=letters, properties=properties(values), **fields)

    beat = {"clientID": "asks@1", "producerDataSet": [{"groupName": "asking"}]}
    with RawClient(talk.address) as requester:
        requester.ask(HEARTBEAT, {}, json.dumps(beat).encode())
        for name, code, letters in (("reply", REPLY, False), ("reply v2", REPLY_V2, True)):
            opaque = talk.client.send(code, ext("asks@1", letters=letters), b"the answer")
            push = answer_push(requester, 0)
            talk.answers[f"push of {name}"] = pushed(push)
            talk.take(name, code, opaque)
        opaque = talk.client.send(REPLY_V2, ext("asks@1"), b"x")
        answer_push(requester, 1)
        talk.take("reply that the client does not take", REPLY_V2, opaque)
    talk.ask("reply to nobody in particular", REPLY_V2, ext(None), b"x")
    talk.ask("reply to a client that never was", REPLY_V2, ext("never@1"), b"x")
    wait_until_gone(talk, ext("asks@1"))
    talk.ask("reply to a client that is gone", REPLY_V2, ext("asks@1"), b"x")
    talk.ask("reply to a queue beyond the last", REPLY_V2, ext("asks@1", queueId=99), b"x")
    forbidden = {**ext("never@1"), "b": "SCHEDULE_TOPIC_XXXX"}
    talk.ask("reply into a forbidden topic", REPLY_V2, forbidden, b"x")
    illegal = {**ext("never@1"), "b": "a b"}
    talk.ask("reply into an illegal topic", REPLY_V2, illegal, b"x")
    missing = {**ext("never@1"), "b": "nowhere", "c": "nowhere"}
    talk.ask("reply into a topic that cannot be made", REPLY_V2, missing, b"x")
    talk.ask("reply without ext fields", REPLY_V2, {}, b"x")
    talk.stored("replies", REPLY_TOPIC)


def answer_push(requester: RawClient, code: int) -> Command:
    push = requester.push(PUSH)
    requester.socket.sendall(json_request(code, opaque=push.opaque, flag=RESPONSE))
    return push


def pushed(push: Command) -> Answer:
    """Return the parts of a reply handed on that are compared."""
    ext: dict[str, Any] = {**push.ext, "properties": comparable(push.ext["properties"])}
    for name in ("bornHost", "storeHost", "storeTimestamp"):
        assert ext.pop(name)
    return Answer(code=push.code, ext=ext, body=push.body)


def wait_until_gone(talk: Talk, ext: Mapping[str, Any]) -> None:
    """A broker notices a closed connection a moment later."""
    eventually(
        lambda: talk.client.ask(REPLY_V2, ext, b"x").remark or "",
        lambda remark: "not found" in remark,
        wait_s=JVM_WAIT_S,
    )


# -- what is switched off --

OFF = {
    "timerWheelEnable": "false",
    "recallMessageEnable": "false",
    "rejectTransactionMessage": "true",
    "autoCreateSubscriptionGroup": "false",
}


def switched_off(talk: Talk) -> None:
    def send(name: str, extra: Mapping[str, str]) -> None:
        talk.ask(name, SEND, send_ext("off", properties=properties(extra)), b"x")

    send("timed message while there are none", {"TIMER_DELAY_SEC": "3600"})
    send("bad timed message while there are none", {"TIMER_DELAY_SEC": "soon"})
    send("level while there are no timed messages", {"DELAY": "3"})
    send("level and time while there are none", {"DELAY": "3", "TIMER_DELAY_SEC": "3600"})
    handle = RecallHandle("off", "broker-a", int(time.time() * 1000) + DAY_MS, "U1").encode()
    talk.ask("recall while it is forbidden", RECALL, {"topic": "off", "recallHandle": handle})
    send_half(talk, "half message while it is forbidden")
    back = {"offset": 0, "group": "unknown-group", "delayLevel": 0}
    talk.ask("retry for a group that is not made", SEND_BACK, back)


# -- the comparison --

SCENARIOS = (
    (CONF, (delays, recalls, retries, transactions, replies)),
    (OFF, (switched_off,)),
)
Change = Callable[[Answer], Answer]


def refused(code: int) -> Change:
    return lambda _: Answer(code=code, has_remark=True)


def without_ext(theirs: Answer) -> Answer:
    return replace(theirs, ext={})


def without_overflows(theirs: Answer) -> Answer:
    kept = (record for record in theirs.records if str(INT64_MAX) not in record.values())
    return replace(theirs, records=tuple(kept))


def with_place(theirs: Answer) -> Answer:
    """Add the place that a half message was meant for."""
    place = {"REAL_TOPIC": "orders", "REAL_QID": "0"}
    records = ({**record, **(place if "TRAN_MSG" in record else {})} for record in theirs.records)
    return replace(theirs, records=tuple(records))


def each_once(theirs: Answer) -> Answer:
    """Java's last two records are of the commits that came too late."""
    assert [record["body"] for record in theirs.records[-2:]] == [
        b"half message 0",
        b"half message 1",
    ]
    return with_place(replace(theirs, records=theirs.records[:-2]))


NO_NUMBER = (
    "Java fails in its code (1, which makes a client send it to the next broker); 13 says that the"
    " message itself is at fault"
)
OVERFLOW = "Java's sum overflows and it delivers at once what should come in 292 million years"
BATCHED = "Java stores it as an ordinary message: at once, and for all to see"
HALF = "Java lets it wait as a delayed message, and forgets its transaction"
PLACE = "Java tells in a refusal too where the reply is stored, which no client reads"
NAMELESS = "Java takes it for a handle that is none; ours names the field that is missing"

# How our answer follows from Java's, and why it is another.
DIFFERENCES: dict[str, tuple[Change, str]] = {
    **{
        f"send with {level}": (refused(13), NO_NUMBER)
        for level in (
            "a level beyond 32 bits",
            "a level far beyond 32 bits",
            "a level that is no number",
            "a level with a blank",
            "a level with a fraction",
        )
    },
    "send with a delay that overflows, seconds": (refused(13), OVERFLOW),
    "send with a delay that overflows, milliseconds": (refused(13), OVERFLOW),
    "what was not delayed": (without_overflows, OVERFLOW),
    "batch with a level": (refused(13), BATCHED),
    "batch with a delay": (refused(13), BATCHED),
    "batch with a half message": (refused(13), BATCHED),
    "recall without a handle": (refused(1), NAMELESS),
    "what was committed": (
        with_place,
        "ours keeps REAL_TOPIC and REAL_QID, as Java's did up to 5.3",
    ),
    "what was committed twice": (each_once, "Java does not know which transactions have ended"),
    "half message without a group": (refused(13), "nobody could be asked what became of it"),
    "half message with a level": (refused(13), HALF),
    "half message with a delay": (refused(13), HALF),
    "reply that the client does not take": (without_ext, PLACE),
    "reply to nobody in particular": (without_ext, PLACE),
    "reply to a client that never was": (without_ext, PLACE),
    "reply to a client that is gone": (without_ext, PLACE),
}


def run(address: str, scenarios: Iterable[Callable[[Talk], None]]) -> dict[str, Answer]:
    talk = Talk(address)
    with talk.client:
        for scenario in scenarios:
            scenario(talk)
    return talk.answers


@pytest.fixture(scope="module")
def answers() -> tuple[dict[str, Answer], dict[str, Answer]]:
    """All answers of the Java broker and of ours, by step."""
    need("java", "mvn")
    theirs: dict[str, Answer] = {}
    ours: dict[str, Answer] = {}
    with JavaNamesrv() as namesrv:
        for conf, scenarios in SCENARIOS:
            with JavaBroker(namesrv.address, conf=conf) as broker:
                theirs |= run(broker.address, scenarios)
            with Cluster(properties=conf) as cluster:
                ours |= run(cluster.brokers[0].address, scenarios)
    return theirs, ours


def test_answers_as_java(answers: tuple[dict[str, Answer], dict[str, Answer]]) -> None:
    theirs, ours = answers
    assert ours.keys() == theirs.keys()
    assert theirs.keys() >= DIFFERENCES.keys()
    for name, (change, _reason) in DIFFERENCES.items():
        assert ours[name] != theirs[name], f"no difference any more at {name}: take it out"
        theirs[name] = change(theirs[name])
    different = [
        f"{name}:\n  {theirs[name]}\n  {ours[name]}" for name in ours if ours[name] != theirs[name]
    ]
    assert not different, "\n".join(different)
