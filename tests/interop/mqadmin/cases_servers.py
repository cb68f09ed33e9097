"""Cases of the commands that show and tend servers and clients, and of those refused on purpose."""

from __future__ import annotations

from typing import Final

from tests.interop.mqadmin.case import Case, Scenario
from tests.interop.peers import NEWEST_JAVA

from cometmq.protocol.codes import RequestCode as Code

_FIGURES: Final = ((r"\b\d+(\.\d+)?(ms|w)?\b", "N"),)

_RATES: Final = (
    (r"^(\S*mqadmin-\S+) +[\d.]+ .*", r"\1 RATES"),
    # Java numbers a program's lambdas as it comes to them.
    (r"\$\$Lambda\$\d+\S*", "$$Lambda"),
)

# Names of settings and figures without their values, of which a directory is part of one.
_NAMES: Final = (
    (r"(DiskRatio_).*", r"\1"),
    (r"^(\S+ +)?(\w+) *:.*", r"\1\2"),
    (r".*scheduleMessageOffset_\d+$", ""),
)
_END: Final = ((r"(#MasterCommitLogMaxOffset)\s+\d+", r"\1 END"),)
_DONE: Final = "export .* success"
_OURS: Final = "mqadmin-(orders|billing)-LINE|^export"
_OWN: Final = (
    # Clients of other tests may be at one of both.
    (rf".*/clientInfo\[\] = (?!JAVA%V{NEWEST_JAVA.replace('.', '_')}).*", ""),
    (r"(/messageDelayLevel) =.*", r"\1"),
    (r"= [\d.]+$", "= N"),
)

CLIENTS: Final = Scenario(
    "clients",
    (
        Case("consumerProgress", says="mqadmin-billing", only="mqadmin-billing-LINE"),
        Case("consumerProgress", "-g {group}", "Diff Total: 0"),
        Case("consumerProgress", "-g {group} -s true", "Client IP", masks=((r"@m1", "@m1"),)),
        Case("consumerStatus", "-g {group}", "Rebalance OK"),
        Case("consumerStatus", "-g {group} -b {broker}", "Rebalance OK"),
        Case("consumerStatus", "-g {group} -i {client}", "#Consumer MQ Detail#", masks=_RATES),
        Case(
            "consumerStatus",
            "-g {group} -i {client} -s",
            "#Consumer jstack#",
            # Threads are where they happen to be.
            only="#Consumer|broker-a|: ",
            masks=(*_RATES, (r".*(TID|java:\d+).*", "")),
        ),
        Case("consumerConnection", "-g {group}", "Below is subscription"),
        Case("consumerConnection", "-g {group} -b {broker}", "Below is subscription"),
        Case("consumerConnection", "-g mqadmin-nobody", "DESC"),
        Case(
            "producerConnection",
            "-g CLIENT_INNER_PRODUCER -t {topic}",
            "@m1",
            only="@m1",
            masks=((r"^\d{4}", "N"),),
        ),
        Case("producerConnection", "-g mqadmin-nobody -t {topic}", "not exist"),
        Case("producer", "-b {broker}", "@m1", only="@m1"),
        Case("queryMsgById", "-i {id} -g {group} -d {client}", "CR_SUCCESS", (4,)),
        Case("queryMsgById", "-i {id} -t {topic} -g {group} -d {client}", "CR_SUCCESS", (5,)),
        Case("queryMsgById", "-i {id}", "trackType=CONSUMED", (4,)),
        Case("queryMsgById", "-i {id} -t {topic}", "trackType=CONSUMED", (5,)),
        Case("queryMsgByUniqueKey", "-i {unique} -t {topic} -g {group} -d {client}", "CR_SUCCESS"),
        Case(
            "brokerConsumeStats",
            "-b {broker} -o false",
            "mqadmin-billing",
            only="mqadmin-billing-LINE",
        ),
        Case("brokerConsumeStats", "-b {broker} -o true", "#Topic", only="mqadmin-billing-LINE"),
        Case("resetMasterFlushOffset", "-b {broker} -o 0", "success", (5,)),
        # Members are told to go on where they are.
        Case("resetOffsetByTime", "-g {group} -t {topic} -s -1", r"broker-a +3 +2"),
        Case("resetOffsetByTime", "-g {group} -t {topic} -s -1 -c", r"broker-a +3 +2", (4,)),
        Case("resetOffsetByTime", "-g {group} -t {topic} -s -1 -c {cluster}", "broker-a", (5,)),
        Case("skipAccumulatedMessage", "-g {group} -t {topic}", r"broker-a +3 +2"),
    ),
)

SERVERS: Final = Scenario(
    "servers",
    (
        Case("clusterList", says="broker-a", masks=_FIGURES),
        Case("clusterList", "-m", "broker-a", masks=_FIGURES),
        Case("clusterList", "-i 60", "broker-a", masks=_FIGURES, stop_after_lines=2),
        Case("clusterList", "-c {cluster}", "broker-a", (5,), masks=_FIGURES),
        Case(
            "clusterRT",
            "-a 2 -s 10 -i 60 -c {cluster}",
            "broker-a",
            masks=_FIGURES,
            stop_after_lines=2,
        ),
        Case("brokerStatus", "-b {broker}", "putTps", more=True, masks=_NAMES),
        Case("brokerStatus", "-c {cluster}", "putTps", more=True, masks=_NAMES),
        Case("cleanExpiredCQ", "-b {broker}", "success"),
        Case("cleanExpiredCQ", "-c {cluster}", "success"),
        Case("cleanExpiredCQ", says="success"),
        Case("cleanUnusedTopic", "-b {broker}", "success"),
        Case("cleanUnusedTopic", "-c {cluster}", "success"),
        Case("cleanUnusedTopic", says="success"),
        Case("deleteExpiredCommitLog", "-b {broker}", "success"),
        Case("deleteExpiredCommitLog", "-c {cluster}", "success"),
        Case("deleteExpiredCommitLog", says="success"),
        Case("haStatus", "-b {broker} -i 60", "#SlaveNum", (5,), masks=_END, stop_after_lines=4),
        Case("haStatus", "-b {broker}", "#SlaveNum", (5,), masks=_END),
        Case("haStatus", "-c {cluster}", "#SlaveNum", (5,), masks=_END),
        Case(
            "checkRocksdbCqWriteProgress",
            "-c {cluster} -t {topic}",
            "check doing",
            (5,),
            note="there is no RocksDB here to check",
        ),
        Case("statsAll", "-t {topic}", "mqadmin-billing", masks=_FIGURES),
        Case("statsAll", "", "mqadmin-billing", only="mqadmin-billing-LINE", masks=_FIGURES),
        # A topic counts as active by samples of minutes and hours, which each broker takes at times
        # of its own.
        Case("statsAll", "-a -t {topic}", "#Topic", only="^#", masks=_FIGURES),
        Case("exportMetadata", "-c {cluster} -f {dir}", _DONE, file="metadata.json", only=_OURS),
        Case("exportMetadata", "-c {cluster} -f {dir} -t", _DONE, file="topic.json", only=_OURS),
        Case("exportMetadata", "-c {cluster} -f {dir} -s", _DONE, file="metadata.json", only=_OURS),
        Case("exportMetadata", "-b {broker} -f {dir} -t -s", _DONE, file="topic.json", only=_OURS),
        Case(
            "exportMetadata",
            "-c {cluster} -f {dir} -g",
            _DONE,
            file="subscriptionGroup.json",
            only=_OURS,
        ),
        Case(
            "exportMetadata",
            "-b {broker} -f {dir} -g",
            _DONE,
            file="subscriptionGroup.json",
            only=_OURS,
        ),
        Case(
            "exportConfigs",
            "-c {cluster} -f {dir}",
            _DONE,
            file="configs.json",
            masks=_OWN,
            more=True,
        ),
        Case("exportMetrics", "-c {cluster} -f {dir}", _DONE, file="metrics.json", masks=_OWN),
    ),
)


def _refused(command: str, args: str, code: Code, lines: tuple[int, ...] = (5,)) -> Case:
    return Case(command, args, lines=lines, refused=code)


def _lite(command: str, args: str, code: Code) -> Case:
    note = "mqadmin prints no reason"
    return Case(command, args, r"\berror\b", lines=(5,), refused=code, note=note)


REFUSED_ON_PURPOSE: Final = Scenario(
    "refused",
    (
        _refused(
            "updateAclConfig",
            "-b {broker} -a key -s secret-key",
            Code.UPDATE_AND_CREATE_ACL_CONFIG,
            (4,),
        ),
        _refused("deleteAclConfig", "-b {broker} -a key", Code.DELETE_ACL_CONFIG, (4,)),
        _refused("clusterAclConfigVersion", "-b {broker}", Code.GET_BROKER_CLUSTER_ACL_INFO, (4,)),
        _refused(
            "updateGlobalWhiteAddr",
            "-b {broker} -g 10.0.0.1",
            Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG,
            (4,),
        ),
        _refused("createUser", "-b {broker} -u name -p secret", Code.AUTH_CREATE_USER),
        _refused("updateUser", "-b {broker} -u name -p secret", Code.AUTH_UPDATE_USER),
        _refused("deleteUser", "-b {broker} -u name", Code.AUTH_DELETE_USER),
        _refused("getUser", "-b {broker} -u name", Code.AUTH_GET_USER),
        _refused("listUser", "-b {broker}", Code.AUTH_LIST_USER),
        _refused("copyUser", "-f {broker} -t {broker}", Code.AUTH_LIST_USER),
        _refused(
            "createAcl", "-b {broker} -s User:name -r Topic:t -a Pub -d Allow", Code.AUTH_CREATE_ACL
        ),
        _refused(
            "updateAcl", "-b {broker} -s User:name -r Topic:t -a Pub -d Allow", Code.AUTH_UPDATE_ACL
        ),
        _refused("deleteAcl", "-b {broker} -s User:name", Code.AUTH_DELETE_ACL),
        _refused("getAcl", "-b {broker} -s User:name", Code.AUTH_GET_ACL),
        _refused("listAcl", "-b {broker}", Code.AUTH_LIST_ACL),
        _refused("copyAcl", "-f {broker} -t {broker}", Code.AUTH_LIST_ACL),
        _refused("exportPopRecord", "-b {broker} -d true", Code.POP_ROLLBACK),
        _refused(
            "updateStaticTopic", "-b {name} -t {new} -qn 2", Code.UPDATE_AND_CREATE_STATIC_TOPIC
        ),
        Case(
            "remappingStaticTopic",
            "-b {name} -t {topic}",
            "static",
            (5,),
            note="there are no static topics here; mqadmin itself reports that an ordinary topic is not static",
        ),
        _refused("addBroker", "-c {broker} -b /tmp/broker.conf", Code.ADD_BROKER),
        _refused("removeBroker", "-c {broker} -b {cluster}:{name}:0", Code.REMOVE_BROKER),
        _refused("getColdDataFlowCtrInfo", "-b {broker}", Code.GET_COLD_DATA_FLOW_CTR_INFO),
        _refused(
            "updateColdDataFlowCtrGroupConfig",
            "-b {broker} -g {group} -v 1",
            Code.UPDATE_COLD_DATA_FLOW_CTR_CONFIG,
        ),
        _refused(
            "removeColdDataFlowCtrGroupConfig",
            "-b {broker} -g {group}",
            Code.REMOVE_COLD_DATA_FLOW_CTR_CONFIG,
        ),
        _refused("setCommitLogReadAheadMode", "-b {broker} -m 0", Code.SET_COMMITLOG_READ_MODE),
        _refused("switchTimerEngine", "-b {broker} -e F", Code.SWITCH_TIMER_ENGINE),
        _refused("getBrokerLiteInfo", "-b {broker}", Code.GET_BROKER_LITE_INFO),
        _lite("getParentTopicInfo", "-p {topic}", Code.GET_PARENT_TOPIC_INFO),
        _lite("getLiteTopicInfo", "-p {topic} -l lite", Code.GET_LITE_TOPIC_INFO),
        _lite("getLiteClientInfo", "-p {topic} -g {group} -c m1", Code.GET_LITE_CLIENT_INFO),
        _lite("getLiteGroupInfo", "-p {topic} -g {group}", Code.GET_LITE_GROUP_INFO),
        _lite("triggerLiteDispatch", "-p {topic} -g {group}", Code.TRIGGER_LITE_DISPATCH),
        _refused("getSyncStateSet", "-a {namesrv} -b {name}", Code.CONTROLLER_GET_METADATA_INFO),
        _refused("getBrokerEpoch", "-b {name}", Code.GET_BROKER_EPOCH_CACHE),
        _refused("getControllerMetaData", "-a {namesrv}", Code.CONTROLLER_GET_METADATA_INFO),
        _refused("getControllerConfig", "-a {namesrv}", Code.GET_CONTROLLER_CONFIG),
        _refused(
            "updateControllerConfig", "-a {namesrv} -k key -v value", Code.UPDATE_CONTROLLER_CONFIG
        ),
        _refused(
            "electMaster", "-a {namesrv} -b 0 -bn {name} -c {cluster}", Code.CONTROLLER_ELECT_MASTER
        ),
        _refused(
            "cleanBrokerMetadata", "-a {namesrv} -bn {name} -c {cluster} -l", Code.CLEAN_BROKER_DATA
        ),
        _refused("rocksDBConfigToJson", "-c {cluster}", Code.EXPORT_ROCKSDB_CONFIG_TO_JSON),
        Case(
            "exportMetadataInRocksDB",
            "-p {dir}/none -t topics",
            "RocksDB path is invalid",
            (5,),
            local=True,
            note="there is no RocksDB here",
        ),
    ),
)
