package cometmq.golden;

import com.alibaba.fastjson.serializer.SerializerFeature;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;

/** JSON bodies, as RemotingSerializable writes them, and the register-broker body. */
final class Bodies {
    private final Golden golden;

    Bodies(Golden golden) {
        this.golden = golden;
    }

    void write() throws Exception {
        json("heartbeat", heartbeat());
        json("heartbeat-empty", Kit.make("HeartbeatData", "clientID", "10.0.0.9@1#2"));
        routes();
        json("cluster-info", clusterInfo());
        json("topic-list", Kit.make("TopicList", "topicList", ordered("TopicA", "%RETRY%group", "TBW102")));
        HashMap<String, String> table = new HashMap<>();
        table.put("orders", "broker-a:4;broker-b:4");
        table.put("k\u00fcrzel", "\u20ac \"quoted\"");
        json("kv-table", Kit.make("KVTable", "table", table));
        json("lock-request", Kit.make("LockBatchRequestBody", "consumerGroup", "group", "clientId",
            "10.0.0.9@1#2", "mqSet", queues()));
        json("lock-response", Kit.make("LockBatchResponseBody", "lockOKMQSet", queues()));
        json("unlock-request", Kit.make("UnlockBatchRequestBody", "consumerGroup", "group", "clientId",
            "10.0.0.9@1#2", "mqSet", queues()));
        json("consumer-list", Kit.make("GetConsumerListByGroupResponseBody", "consumerIdList",
            Arrays.asList("10.0.0.9@1#2", "10.0.0.9@1#3")));
        json("data-version", dataVersion());
        json("topic-config-wrapper", Kit.make("TopicConfigSerializeWrapper", "topicConfigTable",
            topicConfigs(), "dataVersion", dataVersion()));
        ConcurrentHashMap<String, Object> groups = new ConcurrentHashMap<>();
        groups.put("group", Kit.make("SubscriptionGroupConfig", "groupName", "group", "retryMaxTimes", 3,
            "consumeFromMinEnable", false));
        json("subscription-group-wrapper", Kit.make("SubscriptionGroupWrapper", "subscriptionGroupTable",
            groups, "dataVersion", dataVersion()));
        json("consumer-offsets", Kit.make("ConsumerOffsetSerializeWrapper", "offsetTable", offsets(),
            "dataVersion", dataVersion()));
        Map<MessageQueue, Long> reset = new LinkedHashMap<>();
        reset.put(new MessageQueue("TopicA", "broker-a", 0), 12L);
        reset.put(new MessageQueue("TopicA", "broker-a", 1), 5_000_000_000L);
        json("reset-offset", Kit.make("ResetOffsetBody", "offsetTable", reset));
        json("check-client", Kit.make("CheckClientRequestBody", "clientId", "10.0.0.9@1#2", "group", "group",
            "subscriptionData", subscription("TopicA", "a > 5 AND b = 'x'", "SQL92")));
        registerBroker(false);
        registerBroker(true);
    }

    private void json(String name, Object bean) throws Exception {
        write(name, bean, RemotingSerializable.encode(bean), false);
    }

    private void write(String name, Object bean, byte[] bytes, boolean strict) throws Exception {
        golden.add("body", "body-" + name, bean.getClass().getName(), bytes,
            Kit.map("shape", bean.getClass().getSimpleName(), "strict", strict, "value", Kit.describe(bean)));
    }

    private void routes() throws Exception {
        Object route = route();
        json("route", route);
        // What ClientRequestProcessor passes for callers that want standard JSON.
        byte[] strict = ((RemotingSerializable) route).encode(SerializerFeature.BrowserCompatible,
            SerializerFeature.QuoteFieldNames, SerializerFeature.SkipTransientField,
            SerializerFeature.MapSortField);
        write("route-strict", route, strict, true);
        Object ordered = route();
        Kit.set(ordered, "orderTopicConf", "broker-a:4;\u00fcber-b:2");
        json("route-ordered", ordered);
        strict = ((RemotingSerializable) ordered).encode(SerializerFeature.BrowserCompatible,
            SerializerFeature.QuoteFieldNames, SerializerFeature.SkipTransientField,
            SerializerFeature.MapSortField);
        write("route-ordered-strict", ordered, strict, true);
    }

    private static Object route() throws Exception {
        List<Object> queueDatas = new ArrayList<>();
        queueDatas.add(Kit.make("QueueData", "brokerName", "broker-a", "readQueueNums", 8,
            "writeQueueNums", 4, "perm", 6, "topicSysFlag", 0));
        queueDatas.add(Kit.make("QueueData", "brokerName", "broker-b", "readQueueNums", 4,
            "writeQueueNums", 4, "perm", 4, "topicSysFlag", 1));
        List<Object> brokerDatas = new ArrayList<>();
        brokerDatas.add(brokerData("broker-a", "10.0.0.1:10911", "10.0.0.2:10911"));
        brokerDatas.add(brokerData("broker-b", "10.0.0.3:10911", null));
        HashMap<String, List<String>> filterServers = new HashMap<>();
        filterServers.put("10.0.0.1:10911", new ArrayList<>());
        return Kit.make("TopicRouteData", "queueDatas", queueDatas, "brokerDatas", brokerDatas,
            "filterServerTable", filterServers);
    }

    private static Object brokerData(String name, String master, String slave) throws Exception {
        HashMap<Long, String> addresses = new HashMap<>();
        addresses.put(0L, master);
        if (slave != null) {
            addresses.put(1L, slave);
        }
        return Kit.make("BrokerData", "cluster", "DefaultCluster", "brokerName", name, "brokerAddrs", addresses);
    }

    private static Object clusterInfo() throws Exception {
        HashMap<String, Object> brokers = new HashMap<>();
        brokers.put("broker-a", brokerData("broker-a", "10.0.0.1:10911", "10.0.0.2:10911"));
        brokers.put("broker-b", brokerData("broker-b", "10.0.0.3:10911", null));
        HashMap<String, Set<String>> clusters = new HashMap<>();
        clusters.put("DefaultCluster", new HashSet<>(Arrays.asList("broker-a", "broker-b")));
        return Kit.make("ClusterInfo", "brokerAddrTable", brokers, "clusterAddrTable", clusters);
    }

    static Object heartbeat() throws Exception {
        Set<Object> producers = new LinkedHashSet<>();
        producers.add(Kit.make("ProducerData", "groupName", "producer-group"));
        Set<Object> subscriptions = new LinkedHashSet<>();
        subscriptions.add(subscription("TopicA", "TagA || TagB", "TAG"));
        Set<Object> consumers = new LinkedHashSet<>();
        consumers.add(Kit.make("ConsumerData", "groupName", "consumer-group",
            "consumeType", "CONSUME_PASSIVELY", "messageModel", "CLUSTERING",
            "consumeFromWhere", "CONSUME_FROM_LAST_OFFSET", "subscriptionDataSet", subscriptions,
            "unitMode", false));
        return Kit.make("HeartbeatData", "clientID", "10.0.0.9@1234#5678", "producerDataSet", producers,
            "consumerDataSet", consumers);
    }

    private static Object subscription(String topic, String expression, String type) throws Exception {
        Object data = Kit.make("SubscriptionData", "topic", topic, "subString", expression,
            "expressionType", type, "subVersion", 1_700_000_000_123L);
        if (type.equals("TAG")) {
            Set<String> tags = new LinkedHashSet<>();
            Set<Integer> codes = new LinkedHashSet<>();
            for (String tag : expression.split("\\|\\|")) {
                tags.add(tag.trim());
                codes.add(tag.trim().hashCode());
            }
            Kit.set(data, "tagsSet", tags);
            Kit.set(data, "codeSet", codes);
        }
        return data;
    }

    private static Set<String> ordered(String... names) {
        return new LinkedHashSet<>(Arrays.asList(names));
    }

    private static Set<MessageQueue> queues() {
        Set<MessageQueue> queues = new LinkedHashSet<>();
        queues.add(new MessageQueue("TopicA", "broker-a", 0));
        queues.add(new MessageQueue("%RETRY%group", "broker-b", 3));
        return queues;
    }

    private static Object dataVersion() throws Exception {
        Object version = Kit.make("DataVersion", "timestamp", 1_700_000_000_123L);
        Kit.set(version, "counter", new AtomicLong(7));
        Kit.set(version, "stateVersion", 0L);
        return version;
    }

    private static ConcurrentMap<String, TopicConfig> topicConfigs() throws Exception {
        ConcurrentMap<String, TopicConfig> table = new ConcurrentHashMap<>();
        table.put("TopicA", new TopicConfig("TopicA", 8, 4, 6));
        TopicConfig second = new TopicConfig("%RETRY%group", 1, 1, 6);
        second.setTopicSysFlag(1);
        second.setOrder(true);
        table.put("%RETRY%group", second);
        TopicConfig third = new TopicConfig("TopicC", 2, 2, 7);
        Map<String, String> attributes = new HashMap<>();
        attributes.put("+message.type", "NORMAL");
        Kit.set(third, "attributes", attributes);
        table.put("TopicC", third);
        return table;
    }

    private static ConcurrentMap<String, ConcurrentMap<Integer, Long>> offsets() {
        ConcurrentMap<String, ConcurrentMap<Integer, Long>> table = new ConcurrentHashMap<>();
        ConcurrentMap<Integer, Long> queues = new ConcurrentHashMap<>();
        queues.put(0, 12L);
        queues.put(1, 5_000_000_000L);
        queues.put(10, 0L);
        table.put("TopicA@group", queues);
        table.put("%RETRY%group@group", new ConcurrentHashMap<>());
        return table;
    }

    private void registerBroker(boolean compress) throws Exception {
        String wrapperName = Kit.has("TopicConfigAndMappingSerializeWrapper")
            ? "TopicConfigAndMappingSerializeWrapper" : "TopicConfigSerializeWrapper";
        Object wrapper = Kit.make(wrapperName, "topicConfigTable", topicConfigs(), "dataVersion", dataVersion());
        Object body = Kit.make("RegisterBrokerBody", "topicConfigSerializeWrapper", wrapper,
            "filterServerList", new ArrayList<>(Arrays.asList("10.0.0.1:5555")));
        byte[] bytes = (byte[]) Kit.call(body, "encode", compress);
        golden.add("register-body", "register-broker" + (compress ? "-compressed" : ""),
            body.getClass().getName(), bytes, Kit.map("compressed", compress,
                "crc32", org.apache.rocketmq.common.UtilAll.crc32(bytes), "value", Kit.describe(body)));
    }
}
