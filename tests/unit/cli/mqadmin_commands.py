"""List the commands of mqadmin 4.9.8, 5.3.3 and 5.5.0 with their options.

Each option is `letter/name`, with a * if it takes no value. `-n` is common to all and left out. Names
that have blanks in mqadmin (`print log`) are as `cometmq admin` has them. The flag `-c/--cplus` of
resetOffsetByTime has no letter: 5.3.3 uses it for the cluster.
"""

from __future__ import annotations

from typing import Final, NamedTuple

_LIST: Final = """
updateTopic b/brokerAddr c/clusterName t/topic r/readQueueNums w/writeQueueNums p/perm
    o/order u/unit s/hasUnitSub a/attributes
deleteTopic t/topic c/clusterName
updateSubGroup b/brokerAddr c/clusterName g/groupName s/consumeEnable m/consumeFromMinEnable
    d/consumeBroadcastEnable q/retryQueueNums r/retryMaxTimes i/brokerId
    w/whichBrokerWhenConsumeSlowly a/notifyConsumerIdsChanged o/consumeMessageOrderly
    p/groupRetryPolicy attributes
deleteSubGroup b/brokerAddr c/clusterName g/groupName r/removeOffset
updateBrokerConfig b/brokerAddr c/clusterName k/key v/value a/updateAllBroker
updateTopicPerm b/brokerAddr c/clusterName t/topic p/perm
topicRoute t/topic l/list*
topicStatus t/topic c/cluster
topicClusterList t/topic
brokerStatus b/brokerAddr c/clusterName
queryMsgById i/msgId g/consumerGroup d/clientId s/sendMessage u/unitName t/topic
    f/bodyFormat c/cluster
queryMsgByKey t/topic k/msgKey b/beginTimestamp e/endTimestamp m/maxNum c/cluster
    p/keyType l/lastKey
queryMsgByUniqueKey i/msgId g/consumerGroup d/clientId t/topic a/showAll* c/cluster
    s/startTime e/endTime
queryMsgByOffset t/topic b/brokerName i/queueId o/offset f/bodyFormat r/routeTopic
queryMsgTraceById i/msgId t/traceTopic b/beginTimestamp e/endTimestamp c/maxNum
printMsg t/topic c/charsetName s/subExpression b/beginTimestamp e/endTimestamp d/printBody
    l/lmqParentTopic
printMsgByQueue t/topic a/brokerName i/queueId c/charsetName s/subExpression
    b/beginTimestamp e/endTimestamp p/print d/printBody f/calculate
sendMsgStatus b/brokerName s/messageSize c/count
brokerConsumeStats b/brokerAddr t/timeoutMillis l/level o/order
producerConnection g/producerGroup t/topic
consumerConnection g/consumerGroup b/brokerAddr
consumerProgress g/groupName s/showClientIP t/topicName c/cluster
consumerStatus g/consumerGroup i/clientId b/brokerAddr s/jstack*
cloneGroupOffset s/srcGroup d/destGroup t/topic o/offline
producer b/broker
clusterList m/moreStats* i/interval c/clusterName
topicList c/clusterModel*
updateKvConfig s/namespace k/key v/value
deleteKvConfig s/namespace k/key
wipeWritePerm b/brokerName
addWritePerm b/brokerName
resetOffsetByTime g/group t/topic s/timestamp f/force cplus* b/broker q/queue o/offset
    c/cluster
skipAccumulatedMessage g/group t/topic f/force c/cluster
updateOrderConf t/topic v/orderConf m/method
cleanExpiredCQ b/brokerAddr c/cluster
deleteExpiredCommitLog b/brokerAddr c/cluster
cleanUnusedTopic b/brokerAddr c/cluster
startMonitoring
statsAll a/activeTopic* t/topic
allocateMQ t/topic i/ipList
checkMsgSendRT t/topic a/amount s/size
clusterRT a/amount s/size c/cluster p/printLog m/machineRoom i/interval
getNamesrvConfig
updateNamesrvConfig k/key v/value
getBrokerConfig b/brokerAddr c/clusterName
getConsumerConfig g/groupName
queryCq t/topic q/queue i/index c/count b/broker g/consumer
sendMessage t/topic p/body k/key c/tags b/broker i/qid m/msgTraceEnable
consumeMessage t/topic b/brokerName i/queueId o/offset g/consumerGroup s/beginTimestamp
    e/endTimestamp c/MessageNumber
updateAclConfig b/brokerAddr c/clusterName a/accessKey s/secretKey w/whiteRemoteAddress
    i/defaultTopicPerm u/defaultGroupPerm t/topicPerms g/groupPerms m/admin
deleteAclConfig b/brokerAddr c/clusterName a/accessKey
clusterAclConfigVersion b/brokerAddr c/clusterName
updateGlobalWhiteAddr b/brokerAddr c/clusterName g/globalWhiteRemoteAddresses
    p/aclFileFullPath
exportMetadata c/clusterName b/brokerAddr f/filePath t/topic* g/subscriptionGroup*
    s/specialTopic*
exportConfigs c/clusterName f/filePath
exportMetrics c/clusterName f/filePath
updateTopicList b/brokerAddr c/clusterName f/filename
updateSubGroupList b/brokerAddr c/clusterName f/filename
setConsumeMode b/brokerAddr c/clusterName t/topicName g/groupName m/mode q/popShareQueueNum
addBroker c/brokerContainerAddr b/brokerConfigPath
removeBroker c/brokerContainerAddr b/brokerIdentity
resetMasterFlushOffset b/brokerAddr o/offset
updateStaticTopic c/clusters b/brokers t/topic qn/totalQueueNum mf/mapFile fr/forceReplace
remappingStaticTopic c/clusters b/brokers t/topic mf/mapFile fr/forceReplace
exportMetadataInRocksDB p/path t/configType j/jsonEnable
exportPopRecord c/clusterName b/brokerAddr d/dryRun
haStatus c/clusterName b/brokerAddr i/interval
getSyncStateSet a/controllerAddress c/clusterName b/brokerName i/interval
getBrokerEpoch c/clusterName b/brokerName i/interval
getControllerMetaData a/controllerAddress
getControllerConfig a/controllerAddress
updateControllerConfig a/controllerAddress k/key v/value
electMaster a/controllerAddress b/brokerId bn/brokerName c/clusterName
cleanBrokerMetadata a/controllerAddress b/brokerControllerIdsToClean bn/brokerName
    c/clusterName l/cleanLivingBroker*
dumpCompactionLog f/file
getColdDataFlowCtrInfo b/brokerAddr c/clusterName
updateColdDataFlowCtrGroupConfig b/brokerAddr c/clusterName g/consumerGroup v/threshold
removeColdDataFlowCtrGroupConfig b/brokerAddr c/clusterName g/consumerGroup
setCommitLogReadAheadMode b/brokerAddr c/clusterName m/commitLogReadAheadMode
createUser c/clusterName b/brokerAddr u/username p/password t/userType
updateUser c/clusterName b/brokerAddr u/username p/password t/userType s/userStatus
deleteUser c/clusterName b/brokerAddr u/username
getUser b/brokerAddr c/clusterName u/username
listUser b/brokerAddr c/clusterName f/filter
copyUser f/fromBroker t/toBroker u/usernames
createAcl c/clusterName b/brokerAddr s/subject r/resources a/actions i/sourceIp d/decision
updateAcl c/clusterName b/brokerAddr s/subject r/resources a/actions d/decision i/sourceIp
deleteAcl c/clusterName b/brokerAddr s/subject r/resources
getAcl b/brokerAddr c/clusterName s/subject
listAcl b/brokerAddr c/clusterName s/subject r/resource
copyAcl f/fromBroker t/toBroker s/subjects
rocksDBConfigToJson t/configType p/configPath e/exportFile j/jsonEnable c/cluster
    b/brokerAddr
checkRocksdbCqWriteProgress c/cluster t/topic cf/checkFrom
switchTimerEngine b/brokerAddr c/clusterName e/engineType
getBrokerLiteInfo b/brokerAddr c/cluster d/showDetail
getParentTopicInfo p/parentTopic
getLiteTopicInfo p/parentTopic l/liteTopic s/showClientId
getLiteClientInfo p/parentTopic g/group c/clientId s/showDetail
getLiteGroupInfo p/parentTopic g/group l/liteTopic k/topK
triggerLiteDispatch p/parentTopic g/group c/clientId b/brokerName
"""


class Option(NamedTuple):
    names: tuple[str, ...]
    is_flag: bool


def _option(text: str) -> Option:
    *letter, name = text.rstrip("*").split("/")
    return Option((*(f"-{each}" for each in letter), f"--{name}"), text.endswith("*"))


def _commands() -> dict[str, list[Option]]:
    lines = _LIST.replace("\n    ", " ").strip().splitlines()
    return {
        name: [_option(option) for option in options]
        for name, *options in (line.split() for line in lines)
    }


COMMANDS: Final = _commands()
