"""Cases of what is not there: topics, groups, queues, messages, brokers and clusters."""

from __future__ import annotations

from typing import Final

from tests.interop.mqadmin.case import NOTHING, Case, Scenario

_NO_ROUTE: Final = "CODE: 17 .*No topic route info"
_NOT_MATCHED: Final = "CODE: 17 .*not matched route info"
_NO_CLUSTER: Final = "Make sure the specified clusterName exists"
_NO_MESSAGE: Final = "CODE: 208 "
_ANY_KEY: Final = (
    "a Java server takes any key and any value; ours refuses wrong ones and names the fault"
)
_NULL: Final = "where the queue lacks the entry, mqadmin fails on a Java broker's empty answer"

UNKNOWN: Final = Scenario(
    "unknown",
    (
        Case("topicStatus", "-t {new}", _NO_ROUTE),
        Case("topicClusterList", "-t {new}", _NO_ROUTE),
        Case("allocateMQ", "-t {new} -i 10.0.0.1", _NO_ROUTE),
        Case("updateTopicPerm", "-c {cluster} -t {new} -p 4", _NO_ROUTE),
        Case("deleteTopic", "-c {cluster} -t {new}", "success", changes=True),
        Case("getConsumerConfig", "-g {new}", NOTHING),
        # Without `-r true` a broker of Java 5.5 makes the group (`cases_metadata.MADE_AGAIN`).
        Case("deleteSubGroup", "-b {broker} -g {new} -r true", "success", changes=True),
        Case("consumerProgress", "-g {new}", _NO_ROUTE),
        Case("consumerStatus", "-g {new}", _NO_ROUTE),
        Case("consumerStatus", "-g {group} -i nobody", "CODE: 1 .* <nobody> not online"),
        Case("producer", "-b 127.0.0.1:1", "connect to 127.0.0.1:1 failed"),
        Case("queryMsgById", "-i {unique} -t {new}", _NOT_MATCHED, (5,)),
        Case("queryMsgByKey", "-t {new} -k key", _NOT_MATCHED),
        Case("queryMsgByUniqueKey", "-i {unique} -t {new}", _NOT_MATCHED),
        Case("queryMsgByUniqueKey", "-i {absent} -t {topic}", _NO_MESSAGE, (5,)),
        Case(
            "queryMsgByOffset", "-t {topic} -b nobody -i 0 -o 0", r"The broker\[nobody\] not exist"
        ),
        Case("queryMsgByOffset", "-t {topic} -b {name} -i 99 -o 0", r"queueId\[99\] is illegal"),
        Case("queryMsgTraceById", "-i {unique} -t {new}", _NOT_MATCHED),
        Case("printMsg", "-t {new}", _NO_ROUTE),
        Case(
            "printMsgByQueue",
            "-t {new} -a {name} -i 0 -p true",
            r"The broker\[broker-a\] not exist",
        ),
        Case("printMsgByQueue", "-t {topic} -a {name} -i 99 -p true", NOTHING),
        Case("consumeMessage", "-t {new}", _NO_ROUTE),
        Case("consumeMessage", "-t {topic} -b {name} -i 99", r"queueId\[99\] is illegal"),
        Case("queryCq", "-t {new} -q 0 -i 0 -b {broker}", "0@mqadmin-unknown-. is not exist!"),
        Case("queryCq", "-t {topic} -q 99 -i 0 -b {broker}", "99@.* is not exist!", unlike=_NULL),
        Case("queryCq", "-t {topic} -q 0 -i 99 -b {broker}", "max: 2, min: 0", unlike=_NULL),
        Case("cloneGroupOffset", "-s {new} -d {new} -t {topic} -o true", _NO_ROUTE),
        Case(
            "cloneGroupOffset",
            "-s {group} -d {new} -t {topic} -o true",
            r"CODE: 26 .*mqadmin-unknown-5.* not exist",
            (5,),
            changes=True,
        ),
        Case("resetOffsetByTime", "-g {group} -t {new} -s 0", _NO_ROUTE, changes=True),
        Case("resetOffsetByTime", "-g {group} -t {topic} -s 0 -b {broker} -q 99", "to 0", (5,)),
        Case(
            "resetOffsetByTime",
            "-g {group} -t {topic} -s 0 -b {broker} -q 1 -o 99",
            r"commitOffset\[99\] is illegal",
            (5,),
            unlike="a Java broker commits an offset beyond the end before it refuses the reset, ours does not",
        ),
        Case("skipAccumulatedMessage", "-g {group} -t {new}", _NO_ROUTE, changes=True),
        Case("statsAll", "-t {new}", "#Topic"),
        Case("deleteKvConfig", "-s {new}-space -k key", "success"),
        Case("addWritePerm", "-b nobody", "OK, 0"),
        Case("brokerStatus", "-c nowhere", _NO_CLUSTER),
        Case("getBrokerConfig", "-c nowhere", _NO_CLUSTER),
        Case(
            "updateBrokerConfig",
            "-b {broker} -k noSuchKey -v 1",
            "knows no noSuchKey",
            unlike=_ANY_KEY,
        ),
        Case(
            "updateBrokerConfig",
            "-b {broker} -k shortPollingTimeMills -v soon",
            "it must be a whole number",
            unlike=_ANY_KEY,
        ),
        Case("updateNamesrvConfig", "-k noSuchKey -v 1", "knows no noSuchKey", unlike=_ANY_KEY),
        Case("updateTopic", "-c nowhere -t {new}", _NO_CLUSTER),
        Case("updateSubGroup", "-c nowhere -g {new}", _NO_CLUSTER),
        Case("exportMetadata", "-c nowhere -f {dir}", _NO_CLUSTER),
        Case("exportConfigs", "-c nowhere -f {dir}", _NO_CLUSTER),
        Case("sendMessage", "-t {topic} -p text -b nobody -i 0", r"The broker\[nobody\] not exist"),
        Case("haStatus", "-b 127.0.0.1:1", "connect to 127.0.0.1:1 failed", (5,)),
    ),
)
