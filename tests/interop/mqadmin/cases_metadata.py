"""Cases of the commands that make, change, show and delete topics, groups and settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.interop.mqadmin.case import NOTHING, Case, Scenario

if TYPE_CHECKING:
    from tests.interop.mqadmin.place import Place

# What each server is given by its test. Ours recalls delayed messages where nobody forbids it, and
# has the patience of 5.3.
_GIVEN: Final = (
    *("accessMessageInMemoryMaxRatio", "cleanFileForciblyEnable", "diskSpaceWarningLevelRatio"),
    *("enablePropertyFilter", r"mappedFileSize\w+", "maxHashSlotNum", "maxIndexNum"),
    *("messageDelayLevel", "storePathRootDir", r"transaction\w+", r"\w*([pP]ath|Port)\w*"),
    *("recallMessageEnable", "registerBrokerTimeoutMills"),
)
_OWN: Final = ((rf"^({'|'.join(_GIVEN)}) +=.*", ""),)

MADE_AGAIN: Final = (
    "a Java broker of 5.5 that deletes a group and keeps its offsets (no `-r true`) then asks "
    "whether it is a lite group, which makes the group again; ours deletes it"
)


def _write_lists(at: Place) -> None:
    new, directory = at.words["new"], Path(at.words["dir"])
    topics = [{"topicName": f"{new}-{i}"} for i in range(3)]
    groups = [{"groupName": f"{new}-{i}"} for i in range(3)]
    (directory / "topics.json").write_text(json.dumps(topics))
    (directory / "groups.json").write_text(json.dumps(groups))


def _prepare_topics(at: Place) -> None:
    _write_lists(at)
    used = f"{at.words['new']}-used"
    at.fill(used)
    at.commit(at.words["group"], used, 1)


def _prepare_groups(at: Place) -> None:
    _write_lists(at)
    new = at.words["new"]
    at.fill(new)
    for group in (new, f"{new}-kept"):
        at.make_group(group)
        at.commit(group, new, 1)


TOPICS: Final = Scenario(
    "topics",
    (
        Case(
            "updateTopic",
            "-c {cluster} -t {new} -r 2 -w 3 -p 6 -o false",
            "create topic to .* success",
            changes=True,
        ),
        Case(
            "updateTopic", "-b {broker} -t {new} -r 2 -w 3 -u true -s true", "success", changes=True
        ),
        Case("topicList", says="mqadmin-topics", only="^mqadmin-topics-LINE"),
        Case("topicList", "-c", "mqadmin-topics", only=r"\bmqadmin-(topics-LINE|orders-LINE)"),
        Case("topicRoute", "-t {new}", '"readQueueNums":2'),
        Case("topicRoute", "-t {new} -l", "Total:", (5,)),
        Case("topicStatus", "-t {new}", r"broker-a +2 +0 +0"),
        Case("topicStatus", "-t {new} -c {cluster}", r"broker-a +2 +0 +0", (5,)),
        Case("topicClusterList", "-t {new}", "DefaultCluster"),
        Case("allocateMQ", "-t {new} -i 10.0.0.1,10.0.0.2", "10.0.0.2"),
        Case("updateTopicPerm", "-c {cluster} -t {new} -p 4", "from 6 to 4", changes=True),
        Case("updateTopicPerm", "-b {broker} -t {new} -p 6", "from 4 to 6", changes=True),
        Case("updateTopicPerm", "-b {broker} -t {new} -p 6", "new perm equals to the old one"),
        Case(
            "updateTopic",
            "-c {cluster} -t {new} -o true",
            "set cluster orderConf",
            changes=True,
            note="the topic stays an ordered one, as at a broker of 5.3; a broker of 4.9 forgets that",
        ),
        Case("updateOrderConf", "-t {new} -m get", r"orderConf=\[broker-a:8\]"),
        Case(
            "updateTopic",
            "-b {broker} -t {new} -r 4 -w 5 -o true",
            "set broker orderConf",
            changes=True,
        ),
        Case(
            "updateOrderConf",
            "-t {new} -m put -v broker-a:4",
            "update orderConf success",
            changes=True,
        ),
        Case("updateOrderConf", "-t {new} -m get", r"orderConf=\[broker-a:4\]"),
        Case("updateOrderConf", "-t {new} -m delete", "delete orderConf success", changes=True),
        Case("updateOrderConf", "-t {new} -m get", "No config item"),
        Case(
            "updateTopic",
            "-c {cluster} -t {new}-typed -a +message.type=FIFO",
            "message.type=FIFO",
            (5,),
            changes=True,
        ),
        Case(
            "updateTopic",
            "-b {broker} -t {new}-typed -a +message.type=DELAY",
            "success",
            (5,),
            changes=True,
        ),
        Case("updateTopicList", "-c {cluster} -f {dir}/topics.json", "success", (5,), changes=True),
        Case("updateTopicList", "-b {broker} -f {dir}/topics.json", "success", (5,), changes=True),
        Case("deleteTopic", "-c {cluster} -t {new}", "from NameServer success", changes=True),
        Case("topicRoute", "-t {new}", "No topic route info"),
        Case(
            "deleteTopic",
            "-c {cluster} -t {new}-used",
            "success",
            (4,),
            note="offsets in the topic are deleted with it, as at a broker of 5.3; a broker of 4.9 keeps them",
        ),
        Case("deleteTopic", "-c {cluster} -t {new}-used", "success", (5,), changes=True),
        Case("deleteTopic", "-c nowhere -t {new}", "Make sure the specified clusterName exists"),
        Case("topicList", says="mqadmin-", only="^mqadmin-topics-LINE", lines=(5,)),
        Case("updateTopic", "-c {cluster} -t {new}!", "characters outside|illegal characters"),
        Case("updateTopic", "-c {cluster} -t TBW102", "conflict|system topic"),
    ),
    _prepare_topics,
)

GROUPS: Final = Scenario(
    "groups",
    (
        Case(
            "updateSubGroup",
            "-c {cluster} -g {new} -r 3 -d false -q 2 -w 0",
            "create subscription group to .* success",
            changes=True,
        ),
        Case("getConsumerConfig", "-g {new}", "retryMaxTimes += +3"),
        Case(
            "setConsumeMode",
            "-b {broker} -t {topic} -g {new} -m POP -q 1",
            "set consume mode to .* success",
            (5,),
            changes=True,
        ),
        Case(
            "updateSubGroup",
            "-b {broker} -g {new} -s false -m true -a false -i 0",
            "create subscription group to .* success",
            changes=True,
        ),
        Case("getConsumerConfig", "-g {new}", "consumeEnable += +false"),
        Case(
            "updateSubGroup",
            """-b {broker} -g {new}-typed -p '{{"type":"EXPONENTIAL","exponentialRetryPolicy":'"""
            """'{{"initial":1000,"max":9000,"multiplier":3}}}}'""",
            "success",
            (5,),
            changes=True,
        ),
        Case("getConsumerConfig", "-g {new}-typed", "EXPONENTIAL", (5,)),
        Case("updateSubGroup", "-b {broker} -g {new}-typed -o true", "success", (5,), changes=True),
        Case(
            "updateSubGroup",
            "-b {broker} -g {new}-typed --attributes +no.such=3",
            "no.such",
            (5,),
            changes=True,
            unlike="a Java broker refuses an unknown attribute with code 1, ours with code 29",
        ),
        Case(
            "updateSubGroupList", "-c {cluster} -f {dir}/groups.json", "success", (5,), changes=True
        ),
        Case(
            "updateSubGroupList", "-b {broker} -f {dir}/groups.json", "success", (5,), changes=True
        ),
        Case("getConsumerConfig", "-g {new}-2", "mqadmin-groups-5-2", (5,)),
        Case(
            "deleteSubGroup",
            "-b {broker} -g {new} -r true",
            "delete subscription group",
            changes=True,
        ),
        Case("getConsumerConfig", "-g {new}", NOTHING),
        Case("deleteSubGroup", "-b {broker} -g {new}-kept", "success", (4,), changes=True),
        Case("deleteSubGroup", "-b {broker} -g {new}-kept", "success", (5,), note=MADE_AGAIN),
        Case("getConsumerConfig", "-g {new}-kept", NOTHING, (5,), unlike=MADE_AGAIN),
        # With the offsets, which both have kept, Java's broker deletes the group, too.
        Case("deleteSubGroup", "-b {broker} -g {new}-kept -r true", "success", (5,), changes=True),
        Case("deleteSubGroup", "-c {cluster} -g {new}-2 -r true", "success", changes=True),
        Case(
            "updateSubGroup",
            "-c {cluster} -g {new}!",
            "characters outside",
            unlike="a Java broker makes a group of any name, ours refuses invalid names",
        ),
    ),
    _prepare_groups,
)

SETTINGS: Final = Scenario(
    "settings",
    (
        Case(
            "updateKvConfig",
            "-s {new}-space -k key -v value",
            "create or update kv config to namespace success",
            changes=True,
        ),
        Case(
            "deleteKvConfig",
            "-s {new}-space -k key",
            "delete kv config from namespace success",
            changes=True,
        ),
        Case(
            "wipeWritePerm",
            "-b {name}",
            r"wipe write perm of broker.* OK, \d+",
            masks=((r"OK, \d+", "OK, N"),),
        ),
        Case("topicRoute", "-t {topic}", '"perm":4'),
        Case(
            "addWritePerm",
            "-b {name}",
            r"add write perm of broker.* OK, \d+",
            masks=((r"OK, \d+", "OK, N"),),
        ),
        Case("topicRoute", "-t {topic}", '"perm":6'),
        Case("wipeWritePerm", "-b nobody", "OK, 0"),
        Case("getNamesrvConfig", says="listenPort", both=True, masks=_OWN),
        Case(
            "updateNamesrvConfig",
            "-k orderMessageEnable -v true",
            "update name server config success",
        ),
        Case("getNamesrvConfig", says="orderMessageEnable += +true", both=True, masks=_OWN),
        Case(
            "updateNamesrvConfig",
            "-k orderMessageEnable -v false",
            "update name server config success",
        ),
        Case("updateBrokerConfig", "-b {broker} -k shortPollingTimeMills -v 900", "success"),
        Case("getBrokerConfig", "-b {broker}", "brokerName", both=True, masks=_OWN),
        Case("getBrokerConfig", "-c {cluster}", "Master: ", both=True, masks=_OWN),
        Case(
            "updateBrokerConfig",
            "-b {broker} -k shortPollingTimeMills -v 1000",
            "update broker config success",
        ),
        Case(
            "updateBrokerConfig",
            "-c {cluster} -k shortPollingTimeMills -v 1000",
            "update broker config success",
        ),
        Case(
            "updateBrokerConfig",
            "-c {cluster} -k shortPollingTimeMills -v 1000 -a true",
            "update broker config success",
            (5,),
        ),
    ),
)
