"""Every key that some release of Apache RocketMQ reads, written by `scripts/java-config-keys`.

A key that stands neither here nor in a config class of ours is misspelt.
"""

from __future__ import annotations

from typing import Final

JAVA_KEYS: Final = frozenset(
    """
    accessMessageInMemoryHotRatio accessMessageInMemoryMaxRatio accountStatsEnable
    accountStatsPrintZeroValues ackMessageThreadPoolNums ackThreadPoolQueueCapacity
    aclCacheExpiredSecond aclCacheMaxNum aclCacheRefreshSecond aclEnable
    adminBrokerThreadPoolNums adminBrokerThreadPoolQueueCapacity allAckInSyncStateSet
    allowRecallWhenBrokerNotWriteable appendAckAsync appendCkAsync appendTopicForTimerDeleteKey
    asyncLearner asyncSendEnable authConfigPath authenticationEnabled
    authenticationMetadataProvider authenticationProvider authenticationStrategy
    authenticationWhitelist authorizationEnabled authorizationMetadataProvider
    authorizationProvider authorizationStrategy authorizationWhitelist
    autoCreateSubscriptionGroup autoCreateTopicEnable autoDeleteUnusedStats
    autoMessageVersionOnTopicLen batchDispatchRequestThreadPoolNums batchWriteKvCqSize
    bindAddress bitMapLengthConsumeQueueExt bottomMostCompressionTypeForConsumeQueueStore
    broadcastOffsetExpireMaxSecond broadcastOffsetExpireSecond brokerClusterName
    brokerConfigPath brokerConfigPaths brokerContainerIP brokerElectionPriority
    brokerFastFailureEnable brokerHeartbeatInterval brokerIP1 brokerIP2 brokerId brokerName
    brokerNotActiveTimeoutMillis brokerPermission brokerRole brokerTopicEnable
    cgColdReadThreshold channelExpiredTimeout channelNotActiveInterval checkCRCOnRecover
    checkCommitLogOffsetOnRecover checkSyncStateSetPeriod cleanFileForciblyEnable
    cleanOfflineBrokerInterval cleanResourceInterval cleanRocksDBDirtyCQIntervalMin
    cleanSwapedMapInterval clearRetryTopicWhenDeleteTopic clientAsyncSemaphoreValue
    clientCallbackExecutorThreads clientChannelMaxIdleTimeSeconds clientCloseSocketIfTimeout
    clientManageThreadPoolNums clientManagerThreadPoolQueueCapacity clientOnewaySemaphoreValue
    clientPooledByteBufAllocatorEnable clientRequestThreadPoolNums
    clientRequestThreadPoolQueueCapacity clientSocketRcvBufSize clientSocketSndBufSize
    clientWorkerThreads clusterName clusterTest clusterTopicEnable coldCtrStrategyEnable
    coldDataFlowControlEnable coldDataScanEnable com.rocketmq.decompress.body
    com.rocketmq.heartbeat.v2 com.rocketmq.proxy.configPath com.rocketmq.read.body
    com.rocketmq.recall.default.trace.enable
    com.rocketmq.remoting.client.channel.maxIdleTimeSeconds
    com.rocketmq.remoting.client.closeSocketIfTimeout
    com.rocketmq.remoting.client.connect.timeout com.rocketmq.remoting.client.worker.size
    com.rocketmq.remoting.clientAsyncSemaphoreValue
    com.rocketmq.remoting.clientOnewaySemaphoreValue com.rocketmq.remoting.frameMaxLength
    com.rocketmq.remoting.nettyPooledByteBufAllocatorEnable com.rocketmq.remoting.socket.backlog
    com.rocketmq.remoting.socket.rcvbuf.size com.rocketmq.remoting.socket.sndbuf.size
    com.rocketmq.remoting.write.buffer.high.water.mark
    com.rocketmq.remoting.write.buffer.low.water.mark com.rocketmq.sendLatencyEnable
    com.rocketmq.sendMessageWithVIPChannel com.rocketmq.socks.proxy.config
    com.rocketmq.startDetectorEnable combineAssignOffsetCQType combineCQEnableCheckSelf
    combineCQLoadingCQTypes combineCQMaxExtraSearchCommitLogFiles combineCQPreferCQType
    combineCQUseRocksdbForLmq commercialBaseCount commercialBigCount commercialEnable
    commercialSizePerMsg commercialTimerCount commercialTransCount commitCommitLogLeastPages
    commitCommitLogThoroughInterval commitIntervalCommitLog commitLogForceSwapMapInterval
    commitLogRecoverMaxNum commitLogRollingInterval commitLogRollingMinimumSize
    commitLogSwapMapInterval commitLogSwapMapReserveFileNum compactionCqMappedFileSize
    compactionMappedFileSize compactionScheduleInternal compactionThreadNum
    compatibleWithOldNameSrv compressedRegister configBlackList configManagerVersion configName
    configStorePath connectTimeoutMillis consumerFallbehindThreshold
    consumerManageThreadPoolNums consumerManagerThreadPoolQueueCapacity
    consumerOffsetUpdateVersionStep controllerAddr controllerDLegerGroup controllerDLegerPeers
    controllerDLegerSelfId controllerHeartBeatTimeoutMills
    controllerRequestThreadPoolQueueCapacity controllerStorePath controllerThreadPoolNums
    controllerType correctLogicMinOffsetForceInterval correctLogicMinOffsetSleepInterval
    dLegerGroup dLegerPeers dLegerSelfId dataReadAheadEnable debugLockEnable
    defaultMessageRequestMode defaultPopShareQueueNum defaultQueryMaxNum defaultThreadPoolNums
    defaultThreadPoolQueueCapacity defaultTopicQueueNums delayOffsetUpdateVersionStep
    deleteCommitLogFilesInterval deleteConsumeQueueFilesInterval deleteFileBatchMax
    deleteTopicWithBrokerRegistration deleteWhen destroyMapedFileIntervalForcibly
    disableCallbackExecutor disableConsumeIfConsumerReadSlowly disableNettyWorkerGroup
    disappearTimeAfterStart diskFallRecorded diskMaxUsedSpaceRatio diskSpaceCleanForciblyRatio
    diskSpaceWarningLevelRatio dispatchCqCacheNum dispatchCqThreads dispatchFromSenderThread
    duplicationEnable electMasterMaxRetryCount enableAcceleratedRecovery enableAllTopicList
    enableAsyncReput enableAutoInSyncReplicas enableBatchPush enableBroadcastOffsetStore
    enableBuildConsumeQueueConcurrently enableCalcFilterBitMap enableCleanExpiredOffset
    enableCompaction enableConnectionMetrics enableConsumeQueueExt enableControllerInNamesrv
    enableControllerMode enableCreateSysGroup enableDLegerCommitLog enableDetailStat
    enableElectUncleanMaster enableFastChannelEventProcess enableLagAndDlqMetrics
    enableLiteEventMode enableLitePopLog enableLmq enableLmqQuota enableLmqStats
    enableLogConsumeQueueRepeatedlyBuildWhenRecover enableMessageStoreMetrics
    enableMixedMessageType enableMultiDispatch enableNetWorkFlowControl
    enableNotifyAfterPopOrderLockRelease enableNotifyBeforePopCalculateLag enablePopBatchAck
    enablePopBufferMerge enablePopLog enablePopMessageThreshold enablePopMetrics
    enablePropertyFilter enableReconnectForGoAway enableRegisterProducer enableRemoteEscape
    enableRemotingMetrics enableRequestMetrics enableRetryTopicV2 enableRocksDBLog
    enableRunningFlagsInFlush enableScheduleAsyncDeliver enableScheduleMessageStats
    enableShutdownGracefully enableSingleTopicRegister enableSkipLongAwaitingAck
    enableSlaveActingMaster enableSplitMetadata enableSplitRegistration enableStatsMetrics
    enableTopicList enableTransactionMetrics enableTransparentRetry enabledAppendPropCRC
    endTransactionPoolQueueCapacity endTransactionThreadPoolNums estimateAccumulation
    expectConsumerNumUseFilter fastFailIfNoBufferInStorePool fetchControllerAddrByDnsLookup
    fetchNameSrvAddrByDnsLookup fetchNamesrvAddrByAddressServer fetchNamesrvAddrInterval
    fileReservedTime filterDataCleanTimeSpan filterServerNums filterSupportRetry
    flushCommitLogLeastPages flushCommitLogThoroughInterval flushCommitLogTimed
    flushConsumeQueueLeastPages flushConsumeQueueThoroughInterval
    flushConsumerOffsetHistoryInterval flushConsumerOffsetInterval flushDelayOffsetInterval
    flushDiskType flushIntervalCommitLog flushIntervalConsumeQueue
    flushLeastPagesWhenWarmMapedFile forceRegister forceVerifyPropCRC forwardTimeout
    globalColdReadThreshold haFlowControlEnable haHousekeepingInterval haListenPort
    haMasterAddress haMaxGapNotInSync haMaxTimeSlaveNotCatchup haSendHeartbeatInterval
    haSlaveFallbehindMax haTransferBatchSize heartbeatThreadPoolNums
    heartbeatThreadPoolQueueCapacity highSpeedMode inBrokerContainer inSyncReplicas
    indexFileReadEnable indexFileWriteEnable indexRocksDBEnable initAuthenticationUser
    initPopOffsetByCheckMsgInMem innerClientAuthenticationCredentials isBrokerContainer
    isEnableBatchPush isInBrokerContainer isProcessReadEvent isScanAvailableNameSrv
    isolateLogEnable iteratorWhenUseRocksdbConsumeQueue jRaftControllerRPCAddr
    jRaftElectionTimeoutMs jRaftGroupId jRaftInitConf jRaftScanWaitTimeoutMs jRaftServerId
    jRaftSnapshotIntervalSecs jraftConfig kvConfigPath listenPort liteEventCheckInterval
    liteEventFullDispatchDelayTime liteEventFullDispatchDelayTimeForWildcardGroup
    liteLagCountMetricsEnable liteLagLatencyCollectEnable liteLagLatencyMetricsEnable
    liteLagLatencyTopK litePullMessageEnable litePullMessageThreadPoolNums
    litePullThreadPoolQueueCapacity liteSubscriptionCheckInterval
    liteSubscriptionCheckTimeoutMills liteTtlCheckInterval loadBalancePollNameServerInterval
    loadBalanceProcessorThreadPoolNums loadBalanceThreadPoolQueueCapacity lockInStrictMode
    logicQueueForceSwapMapInterval logicQueueSwapMapInterval logicQueueSwapMapReserveFileNum
    logicalDiskSpaceCleanForciblyThreshold longPollingEnable mapedFileSizeCommitLog
    mapedFileSizeConsumeQueue mappedFileSize mappedFileSizeCommitLog mappedFileSizeConsumeQueue
    mappedFileSizeConsumeQueueExt mappedFileSizeTimerLog mappedFileSwapEnable
    mapperFileSizeBatchConsumeQueue maxAsyncPutMessageRequests maxBatchDeleteFilesNum
    maxChecksumRange maxClientEventCount maxCommitJitter maxConsumeQueueScan maxDelayTime
    maxErrorRateOfBloomFilter maxFilterMessageSize maxHaTransferByteInSecond maxHashSlotNum
    maxIndexNum maxLiteSubscriptionCount maxLmqConsumeQueueNum
    maxMessageFilterNumForNotification maxMessageSize maxMsgsNumBatch maxOffsetMapSize
    maxPopPollingSize maxReconnectIntervalTimeSeconds maxRecoveryCommitlogFiles
    maxRocksDBIndexQueryDays maxSlaveResendLength maxStatsIdleTimeInMinutes maxTopicLength
    maxTransferBytesOnMessageInDisk maxTransferBytesOnMessageInMemory
    maxTransferCountOnMessageInDisk maxTransferCountOnMessageInMemory memTableFlushInterval
    memTableFlushIntervalMs messageDelayLevel messageIndexEnable messageIndexSafe
    messageStorePlugIn metricGrpcExporterIntervalInMills metricGrpcExporterTimeOutInMills
    metricLoggingExporterIntervalInMills metricsExportBatchMaxDataPoints metricsExporterType
    metricsGrpcExporterHeader metricsGrpcExporterTarget metricsInDelta metricsLabel
    metricsOtelCardinalityLimit metricsPromExporterHost metricsPromExporterPort
    migrateAuthFromV1Enabled minInSyncReplicas minLiteTTl msgTraceTopicName namesrvAddr
    needWaitForService notifyBrokerRoleChanged notifyConsumerIdsChangedEnable
    notifyMinBrokerIdChanged objectStoreAccessKey objectStoreBucket objectStoreEndpoint
    objectStoreSecretKey offsetCheckInSlave orderMessageEnable osPageCacheBusyTimeOutMills
    persistConsumerOffsetIncrementally popCkMaxBufferSize popCkOffsetMaxQueueSize
    popCkStayBufferTime popCkStayBufferTimeOut popConsumerFSServiceInit
    popConsumerKVServiceEnable popConsumerKVServiceInit popConsumerKVServiceLog
    popFromRetryProbability popFromRetryProbabilityForPriority popInflightMessageThreshold
    popLongPollingForceNotifyInterval popPollingMapExpireTimeSeconds popPollingMapSize
    popPollingSize popResponseReturnActualRetryTopic popReviveConcurrency
    popReviveMaxAttemptTimes popReviveMaxReturnSizePerRead popReviveSkipIfGroupAbsent
    preferredLeaderId printChannelGroups printChannelGroupsMinNum priorityOrderAsc
    processReadEvent processReplyMessageThreadPoolNums productEnvName pullBatchMaxMessageCount
    pullMessageThreadPoolNums pullThreadPoolQueueCapacity putConsumeQueueDataByFileChannel
    putMessageFutureThreadPoolNums putMessageTimeout putMsgIndexHightWater
    putThreadPoolQueueCapacity queryMessageThreadPoolNums queryThreadPoolQueueCapacity
    readAheadCacheEnable readAheadCacheExpireDuration readAheadCacheSizeThresholdRate
    readAheadMessageCountThreshold readAheadMessageSizeThreshold readOnlyCommitLogStorePaths
    readUnCommitted realTimeNotifyConsumerChange realTimePersistRocksDBConfig
    recallMessageEnable recheckReputOffsetFromCq recordGetMessageResult recoverConcurrently
    recoverThreadPoolNums redeleteHangedFileInterval regionId registerBrokerTimeoutMills
    registerNameServerPeriod rejectPullConsumerEnable rejectTransactionMessage
    replicasPerDiskPartition replyThreadPoolQueueCapacity retrieveMessageFromPopRetryTopicV1
    returnOrderTopicConfigToBroker reviveAckWaitMs reviveInterval reviveMaxSlow reviveQueueNum
    reviveScanTime rmqAddressServerDomain rmqAddressServerSubGroup rocketmq.acl.plain.file
    rocketmq.admin.threadpool.coresize rocketmq.broker.diskSpaceCleanForciblyRatio
    rocketmq.broker.diskSpaceWarningLevelRatio rocketmq.broker.multiPathSplitter
    rocketmq.broker.rebalance.lockMaxLiveTime rocketmq.client.keyFile
    rocketmq.client.localOffsetStoreDir rocketmq.client.log.additive
    rocketmq.client.log.configFile rocketmq.client.log.loadconfig
    rocketmq.client.log4j.resource.fileName rocketmq.client.log4j2.resource.fileName
    rocketmq.client.logAsyncQueueSize rocketmq.client.logFileMaxIndex
    rocketmq.client.logFileMaxSize rocketmq.client.logFileName rocketmq.client.logLevel
    rocketmq.client.logRoot rocketmq.client.logUseSlf4j
    rocketmq.client.logback.resource.fileName rocketmq.client.maxTimeConsumeContinuously
    rocketmq.client.name rocketmq.client.pull.pullMaxIdleTime
    rocketmq.client.rebalance.lockInterval rocketmq.client.rebalance.lockMaxLiveTime
    rocketmq.client.rebalance.minInterval rocketmq.client.rebalance.waitInterval
    rocketmq.client.unlockDelayTimeMills rocketmq.home.dir rocketmq.keys
    rocketmq.logging.inner.encoding rocketmq.message.compressLevel rocketmq.message.compressType
    rocketmq.namesrv.addr rocketmq.namesrv.domain rocketmq.namesrv.domain.subgroup
    rocketmq.remoting.version rocketmq.requestSource rocketmq.serialize.type rocketmq.success
    rocketmq.tags rocketmq.zone rocketmq.zone.mode rocketmqHome rocksdbCQDoubleWriteEnable
    rocksdbCompressionType rocksdbFlushWalFrequency rocksdbWalFileRollingThreshold
    sampleCountThreshold sampleSteps scanAvailableNameSrv scanInactiveMasterInterval
    scanNotActiveBrokerInterval scheduleAsyncDeliverMaxPendingLimit
    scheduleAsyncDeliverMaxResendNum2Blocked searchBcqByCacheEnable sendHeartbeatTimeoutMillis
    sendMessageThreadPoolNums sendThreadPoolQueueCapacity serverAsyncSemaphoreValue
    serverCallbackExecutorThreads serverChannelMaxIdleTimeSeconds serverLoadBalancerEnable
    serverLoadBalancerEnabled serverNettyWorkerGroupEnable serverOnewaySemaphoreValue
    serverPooledByteBufAllocatorEnable serverSelectorThreads serverSocketBacklog
    serverSocketRcvBufSize serverSocketSndBufSize serverWorkerThreads sharedByteBufferNum
    shortPollingTimeMills shutdownWaitTimeSeconds skipPreOnline skipWhenCKRePutReachMaxTimes
    slaveReadEnable slaveTimeout socksProxyConfig spinLockCollisionRetreatOptimalDegree
    splitMetadataSize splitRegistrationSize startAcceptSendRequestTimeStamp
    statRocksDBCQIntervalSec statefulAuthenticationCacheExpiredSecond
    statefulAuthenticationCacheMaxNum statefulAuthorizationCacheExpiredSecond
    statefulAuthorizationCacheMaxNum storePathBrokerIdentity storePathCommitLog
    storePathDLedgerCommitLog storePathEpochFile storePathRootDir storeReplyMessageEnable
    storeType subscriptionExpiredTimeout supportActingMaster syncBrokerMemberGroupPeriod
    syncBrokerMetadataPeriod syncControllerMetadataPeriod syncFlushTimeout syncFromLastFile
    syncMasterFlushOffsetWhenStartup tieredBackendServiceProvider tieredMetadataServiceProvider
    tieredStorageLevel tieredStoreCommitLogMaxSize tieredStoreConsumeQueueMaxSize
    tieredStoreCrcCheckEnable tieredStoreDeleteFileEnable tieredStoreDeleteFileInterval
    tieredStoreFilePath tieredStoreFileReservedTime tieredStoreGroupCommit
    tieredStoreGroupCommitCount tieredStoreGroupCommitSize tieredStoreGroupCommitTimeout
    tieredStoreIndexFileMaxHashSlotNum tieredStoreIndexFileMaxIndexNum
    tieredStoreIndexFileRollingIdleInterval tieredStoreMaxFallBehindSize
    tieredStoreMaxGroupCommitCount tieredStoreMaxPendingLimit timerCheckMetricsWhen
    timerColdDataCheckIntervalMs timerCongestNumEachSlot timerEnableCheckMetrics
    timerEnableDisruptor timerEnableRetryUntilSuccess timerFlushIntervalMs
    timerGetMessageThreadNum timerInterceptDelayLevel timerMaxDelaySec timerMetricSmallThreshold
    timerPrecisionMs timerProgressLogIntervalMs timerPutMessageThreadNum
    timerRecallToTimeWheelEnable timerRecallToTimelineEnable timerReputServiceCorePoolSize
    timerReputServiceMaxPoolSize timerReputServiceQueueCapacity timerRocksDBEnable
    timerRocksDBPrecisionMs timerRocksDBRollIntervalHours timerRocksDBRollMaxTps
    timerRocksDBRollRangeHours timerRocksDBStopScan timerRocksDBTimeExpiredMaxTps
    timerRollWindowSlot timerSkipUnknownError timerStopDequeue timerStopEnqueue timerWarmEnable
    timerWheelEnable timerWheelSnapshotFlush timerWheelSnapshotIntervalMs tls.client.authServer
    tls.client.certPath tls.client.keyPassword tls.client.keyPath tls.client.trustCertPath
    tls.config tls.config.file tls.enable tls.server.authClient tls.server.certPath
    tls.server.keyPassword tls.server.keyPath tls.server.mode tls.server.need.client.auth
    tls.server.trustCertPath tls.test.mode.enable topicQueueLockNum totalReplicas traceOn
    traceTopicEnable transRocksDBEnable transWriteOriginTransHalfEnable transactionCheckInterval
    transactionCheckMax transactionCheckRocksdbCoreThreads transactionCheckRocksdbMaxThreads
    transactionCheckRocksdbQueueCapacity transactionMetricFlushInterval
    transactionOpBatchInterval transactionOpMsgMaxSize transactionTimeOut
    transferMetadataJsonToRocksdb transferMsgByHeap transferOffsetJsonToRocksdb
    transientStorePoolEnable transientStorePoolSize travelCqFileNumWhenGetMessage
    unRegisterBrokerQueueCapacity updateNameServerAddrPeriod updateNamesrvAddrInterval
    useABSLock useEpollNativeSelector useMessageFilterForNotification usePIDColdCtrStrategy
    useReentrantLockWhenPutMessage useSeparateRetryQueue useSeparateStorePathForRocksdbCQ
    useServerSideResetOffset useSingleRocksDBForAllConfigs useStaticSubscription useTLS
    userCacheExpiredSecond userCacheMaxNum userCacheRefreshSecond
    validateSystemTopicWhenUpdateTopic waitSecondsForService waitTimeMillsInAckQueue
    waitTimeMillsInAdminBrokerQueue waitTimeMillsInHeartbeatQueue waitTimeMillsInLitePullQueue
    waitTimeMillsInPullQueue waitTimeMillsInSendQueue waitTimeMillsInTransactionQueue
    wakeCommitWhenPutMessage wakeFlushWhenPutMessage warmMapedFileEnable
    writeBufferHighWaterMark writeBufferLowWaterMark writeWithoutMmap
    """.split()  # noqa: SIM905 - it would be 600 lines
)
