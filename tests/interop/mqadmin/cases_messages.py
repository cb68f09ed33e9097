"""Cases of the commands that send, find, print and trace messages, and that move offsets."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.integration.pop_peer import POP, pop_ext
from tests.integration.raw_client import properties, pull_ext, send_ext
from tests.interop.mqadmin.case import NOTHING, Case, Scenario
from tests.interop.mqadmin.place import BORN, PULL, SEND, UNIQUE_IDS
from tests.interop.peers import ask
from tests.waits import eventually

if TYPE_CHECKING:
    from tests.interop.mqadmin.place import Place

# A broker of 5.3, as ours, moves the offsets of a group without members itself.
_OLD_MODE: Final = (
    "a broker of 4.9 lets mqadmin reset a group without members, and mqadmin prints other columns; "
    "the same offsets are kept"
)


def _trace(*fields: object) -> str:
    """Return a record of a trace as Java's clients write it."""
    return "\x01".join(map(str, fields)) + "\x02"


def _fill(at: Place) -> None:
    new = at.words["new"]
    at.words["id"] = at.fill(new)[3]
    at.make_topic(f"{new}-sent", 1)
    at.words["sent"] = at.send(f"{new}-sent", 0)
    at.make_topic(f"{new}-trace", 1)
    unique = UNIQUE_IDS[3]
    traces = _trace(
        "Pub",
        BORN,
        "region",
        "makers",
        new,
        unique,
        "B",
        "k-3",
        "127.0.0.1:1",
        7,
        5,
        0,
        "ID",
        "true",
    )
    traces += _trace("SubBefore", BORN, "region", "eaters", "request", unique, 0, "k-3")
    traces += _trace("SubAfter", "request", unique, 9, "true", "k-3", 0, BORN, "eaters")
    named = properties({"KEYS": unique, "UNIQ_KEY": UNIQUE_IDS[0]})
    at.ask(SEND, send_ext(f"{new}-trace", properties=named, bornTimestamp=BORN), traces.encode())
    # A message set of the form that a compaction log has.
    (Path(at.words["dir"]) / "compaction").write_bytes(b"")


def _prepare_offsets(at: Place) -> None:
    new = at.words["new"]
    at.fill(new)
    for group in (new, f"{new}-clone"):
        at.make_group(group)
    at.make_topic(f"%RETRY%{new}", 1)
    at.commit(new, new, 1)


MESSAGES: Final = Scenario(
    "messages",
    (
        Case("queryMsgById", "-i {id}", r"Keys: +\[k-3 all-k\]", (4,)),
        Case("queryMsgById", "-i {id} -t {new}", r"Keys: +\[k-3 all-k\]", (5,)),
        Case("queryMsgById", "-i {id} -t {new} -f UTF-8", "body 3 äöü", (5,)),
        Case("queryMsgById", "-i {sent} -s true", "SendResult", (4,)),
        Case("queryMsgById", "-i {sent} -t {new}-sent -s true", "SendResult", (5,)),
        Case("queryMsgByUniqueKey", "-i {unique} -t {new}", r"Keys: +\[k-3 all-k\]"),
        Case("queryMsgByUniqueKey", "-i {unique} -t {new} -a", r"k-3 all-k"),
        Case("queryMsgByKey", "-t {new} -k k-3", r"[0-9A-F]{32} +3 +0"),
        Case("queryMsgByKey", "-t {new} -k all-k -m 3", r"[0-9A-F]{32} +\d +\d", (5,)),
        Case("queryMsgByKey", "-t {new} -k k-3 -b 0 -e 9999999999999", r" +3 +0", (5,)),
        Case("queryMsgByKey", "-t {new} -k k-3 -b 0 -e 9", "no message", (5,)),
        Case("queryMsgByKey", "-t {new} -k k-3 -c {cluster}", r" +3 +0", (5,)),
        Case("queryMsgByUniqueKey", "-i {unique} -t {new} -c {cluster}", "k-3 all-k", (5,)),
        Case("queryMsgByKey", "-t {new} -k k-none", "no message"),
        Case("queryMsgByOffset", "-t {new} -b {name} -i 2 -o 1", r"Keys: +\[k-6 all-k\]"),
        Case("queryMsgByOffset", "-t {new} -b {name} -i 2 -o 1 -f UTF-8", "body 6 äöü", (5,)),
        Case("queryMsgByOffset", "-t {new} -b {name} -i 2 -o 9", NOTHING),
        Case("queryMsgTraceById", "-i {unique} -t {new}-trace", "makers"),
        Case("queryMsgTraceById", "-i {unique} -t {new}-trace -c 1", "eaters", (5,)),
        Case("printMsg", "-t {new}", "body 7"),
        Case("printMsg", "-t {new} -s A -d false", "tagA|TAGS=A"),
        Case("printMsg", "-t {new} -b 0 -e 1000000000000", "minOffset"),
        Case("printMsgByQueue", "-t {new} -a {name} -i 1 -p true -d true", "body 5"),
        Case("printMsgByQueue", "-t {new} -a {name} -i 1 -p true -s B", "k-5"),
        Case(
            "printMsgByQueue",
            "-t {new} -a {name} -i 1 -p true -b 0 -e 9999999999999",
            "k-5",
        ),
        Case("printMsgByQueue", "-t {new} -a {name} -i 1 -f true", "Tag: A .*Count: 1"),
        Case("consumeMessage", "-t {new}", "Consume ok"),
        Case("consumeMessage", "-t {new} -b {name} -i 1 -o 1", "Consume ok"),
        Case("consumeMessage", "-t {new} -b {name} -i 1 -c 1 -g {new}-eaters", "Consume ok"),
        Case("consumeMessage", "-t {new} -b {name} -i 1 -s 9 -e 99", "Consume ok"),
        Case("consumeMessage", "-t {new} -b {name} -i 1 -o 7", "no matched msg"),
        Case("queryCq", "-t {new} -q 1 -i 0 -c 5 -b {broker}", "max: 2, min: 0"),
        Case("queryCq", "-t {topic} -q 1 -i 1 -c 1 -b {broker} -g {group}", "Subscription data"),
        Case("queryCq", "-t {new} -q 1 -i 1 -g mqadmin-nobody", "is not online"),
        Case("sendMessage", "-t {new}-sent -p text -k k-sent -c tag", "SEND_OK"),
        Case("sendMessage", "-t {new}-sent -p text -b {name} -i 0 -m true", "SEND_OK"),
        Case(
            "checkMsgSendRT",
            "-t {new}-sent -a 3 -s 10",
            "Avg RT",
            masks=((r"\d+$", "RT"), (r"RT: [\d.]+", "RT")),
        ),
        Case(
            "sendMsgStatus",
            "-b {name} -c 3 -s 10",
            "SEND_OK",
            masks=((r"rt=\d+ms", "RT"), (r"queueId=\d|queueOffset=\d+", "PLACE")),
        ),
        Case("topicStatus", "-t {new}-sent", r"broker-a +0 +0 +7"),
        Case(
            "dumpCompactionLog",
            "-f {dir}/compaction",
            NOTHING,
            (5,),
            local=True,
            note="there are no compacted topics here",
        ),
        Case("dumpCompactionLog", "-f {dir}/none", "none not exist", (5,), local=True),
    ),
    _fill,
)


def _prepare_popped(at: Place) -> None:
    """Have a group take three of four messages by a pop, and acknowledge none. Brokers of 4.9 know no pops."""
    new = at.words["new"]
    if new.endswith("-4"):
        return
    at.make_topic(new, 1)
    at.make_group(new)
    at.make_topic(f"%RETRY%{new}", 1)
    for number in range(4):
        at.ask(SEND, send_ext(new, queueId=0, bornTimestamp=BORN), b"%d" % number)
    # A Java broker puts a message into its queue a little later.
    last = pull_ext(new, queueId=0, queueOffset=3)
    eventually(partial(ask, at.broker, PULL, last), lambda answer: answer[0] == 0)
    born_ms = int(time.time() * 1000)
    ext = pop_ext(new, consumerGroup=new, queueId=0, maxMsgNums=3, bornTime=born_ms)
    at.ask(POP, {name: str(value) for name, value in ext.items()})


# Java commits an offset at the pop: a message that is not acknowledged counts as done until it comes again.
_NOT_DONE: Final = (
    "of 4 messages of which 3 are popped and not acknowledged a Java broker shows Diff 1 and Inflight 0, ours Diff 4 "
    "and Inflight 3: its consumer offset is the first message that is not done"
)
_DIFF_4: Final = r"broker-a +0 +4 +0 +4 +3 [\s\S]*Diff Total: 4\s+Consume Inflight Total: 3"

POPPED: Final = Scenario(
    "popped",
    (
        Case("consumerProgress", "-g {new}", _DIFF_4, (5,), unlike=_NOT_DONE),
        Case("consumerProgress", "-g {new} -t {new}", _DIFF_4, (5,), unlike=_NOT_DONE),
        Case("consumerProgress", "-g {new} -c {cluster}", _DIFF_4, (5,), unlike=_NOT_DONE),
    ),
    _prepare_popped,
)

OFFSETS: Final = Scenario(
    "offsets",
    (
        Case("consumerProgress", "-g {new}", "Diff Total: 4"),
        Case("consumerProgress", "-g {new} -t {new}", "Diff Total: 4", (5,)),
        Case(
            "brokerConsumeStats", "-b {broker} -l 1", "mqadmin-offsets", only="mqadmin-offsets-LINE"
        ),
        Case("consumerProgress", "-g {new} -c {cluster}", "Diff Total: 4", (5,)),
        Case(
            "cloneGroupOffset",
            "-s {new} -d {new}-clone -t {new} -o true",
            "clone group offset success",
            changes=True,
        ),
        Case(
            "resetOffsetByTime",
            "-g {new} -t {new} -s 0",
            "#resetOffset|#queueId",
            changes=True,
            unlike=_OLD_MODE,
            unlike_in=(4,),
        ),
        Case(
            "resetOffsetByTime",
            "-g {new} -t {new} -s -1",
            "#resetOffset|#queueId",
            changes=True,
            unlike=_OLD_MODE,
            unlike_in=(4,),
        ),
        Case(
            "resetOffsetByTime",
            "-g {new} -t {new} -s 2023-01-01#00:00:00:000 -f false",
            "broker-a",
            changes=True,
            unlike=_OLD_MODE,
            unlike_in=(4,),
        ),
        Case(
            "resetOffsetByTime",
            "-g {new} -t {new} -s now",
            "broker-a",
            changes=True,
            unlike=_OLD_MODE,
            unlike_in=(4,),
        ),
        Case(
            "resetOffsetByTime",
            "-g {new} -t {new} -s 0 -c",
            "broker-a",
            (4,),
            changes=True,
            unlike=_OLD_MODE,
            unlike_in=(4,),
        ),
        Case(
            "resetOffsetByTime",
            "-g {new} -t {new} -s 0 -c {cluster}",
            "broker-a",
            (5,),
            changes=True,
        ),
        Case(
            "resetOffsetByTime",
            "-g {new} -t {new} -s 0 -b {broker} -q 2 -o 1",
            "offset to 1",
            (5,),
            changes=True,
        ),
        Case(
            "resetOffsetByTime",
            "-g {new} -t {new} -s -1 -b {broker} -q 3",
            "offset to",
            (5,),
            changes=True,
        ),
        Case(
            "skipAccumulatedMessage",
            "-g {new} -t {new}",
            "#queueId",
            changes=True,
            unlike=_OLD_MODE,
            unlike_in=(4,),
        ),
        Case(
            "skipAccumulatedMessage",
            "-g {new} -t {new} -f false",
            "#queueId",
            changes=True,
            unlike=_OLD_MODE,
            unlike_in=(4,),
        ),
        Case(
            "skipAccumulatedMessage",
            "-g {new} -t {new} -c {cluster}",
            "#queueId",
            (5,),
            changes=True,
        ),
        Case(
            "resetOffsetByTime",
            "-g {new}-unknown -t {new} -s 0",
            "DESC",
            changes=True,
            unlike=_OLD_MODE,
            unlike_in=(4,),
        ),
    ),
    _prepare_offsets,
)
