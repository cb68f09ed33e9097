package cometmq.golden;

import io.netty.buffer.ByteBuf;
import io.netty.channel.embedded.EmbeddedChannel;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.Map;
import org.apache.rocketmq.remoting.CommandCustomHeader;
import org.apache.rocketmq.remoting.netty.NettyEncoder;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;
import org.apache.rocketmq.remoting.protocol.SerializeType;

/** Whole frames as NettyEncoder puts them on the wire, in both header serializations. */
final class Frames {
    private static final byte[] TEXT = "hello \u20ac".getBytes(StandardCharsets.UTF_8);

    private final Golden golden;
    private int opaque = 100;

    Frames(Golden golden) {
        this.golden = golden;
    }

    void write() throws Exception {
        sending();
        pulling();
        clients();
        offsets();
        nameServer();
        special();
    }

    private void sending() throws Exception {
        Object[] send = {
            "producerGroup", "producer-group", "topic", "TopicA", "defaultTopic", "TBW102",
            "defaultTopicQueueNums", 4, "queueId", 3, "sysFlag", 0, "bornTimestamp", 1_700_000_000_123L,
            "flag", 7, "properties", "TAGS\u0001TagA\u0002KEYS\u0001k1 k2\u0002WAIT\u0001true\u0002",
            "reconsumeTimes", 0, "unitMode", false, "batch", false, "maxReconsumeTimes", 16,
            "brokerName", "broker-a"};
        Object v1 = Kit.make("SendMessageRequestHeader", send);
        request("send-message", 10, v1, TEXT);
        Object v2 = Kit.call(Kit.find("SendMessageRequestHeaderV2"), "createSendMessageRequestHeaderV2", v1);
        request("send-message-v2", 310, v2, TEXT);
        Kit.set(v1, "batch", true);
        Object batch = Kit.call(Kit.find("SendMessageRequestHeaderV2"), "createSendMessageRequestHeaderV2", v1);
        request("send-batch", 320, batch, Texts.batchBody());
        Object minimal = Kit.make("SendMessageRequestHeaderV2", "a", "g", "b", "T", "c", "TBW102", "d", 4,
            "e", 0, "f", 0, "g", 0L, "h", 0);
        request("send-message-v2-minimal", 310, minimal, new byte[] {0});
        response("send-message", 0, null, Kit.make("SendMessageResponseHeader",
            "msgId", "7F00000100002A9F0000000000000000", "queueId", 3, "queueOffset", 42L,
            "transactionId", "AC11000100002A9F0000000000010000"), null);
        response("send-message-refused", 17, "topic[TopicX] not exist, apply first please!\n \u00fcber",
            null, null);
    }

    private void pulling() throws Exception {
        request("pull-message", 11, Kit.make("PullMessageRequestHeader",
            "consumerGroup", "consumer-group", "topic", "TopicA", "queueId", 1, "queueOffset", 5_000_000_000L,
            "maxMsgNums", 32, "sysFlag", 7, "commitOffset", 41L, "suspendTimeoutMillis", 15000L,
            "subscription", "TagA || TagB", "subVersion", 1_700_000_000_123L, "expressionType", "TAG",
            "maxMsgBytes", 262144, "brokerName", "broker-a"), null);
        request("pull-message-minimal", 11, Kit.make("PullMessageRequestHeader",
            "consumerGroup", "g", "topic", "T", "queueId", 0, "queueOffset", 0L, "maxMsgNums", 1,
            "sysFlag", 0, "commitOffset", 0L, "suspendTimeoutMillis", 0L, "subVersion", 0L), null);
        response("pull-message", 0, "FOUND", Kit.make("PullMessageResponseHeader",
            "suggestWhichBrokerId", 0L, "nextBeginOffset", 43L, "minOffset", 0L, "maxOffset", 100L), TEXT);
        response("pull-message-none", 19, "OFFSET_OVERFLOW_ONE", Kit.make("PullMessageResponseHeader",
            "suggestWhichBrokerId", 0L, "nextBeginOffset", 100L, "minOffset", 0L, "maxOffset", 100L), null);
    }

    private void clients() throws Exception {
        request("heart-beat", 34, null, RemotingSerializable.encode(Bodies.heartbeat()));
        response("heart-beat", 0, null, null, null);
        request("unregister-client", 35, Kit.make("UnregisterClientRequestHeader",
            "clientID", "10.0.0.9@1234#5678", "producerGroup", "producer-group",
            "consumerGroup", "consumer-group"), null);
        request("unregister-client-producer", 35, Kit.make("UnregisterClientRequestHeader",
            "clientID", "10.0.0.9@1234#5678", "producerGroup", "producer-group"), null);
        request("get-consumer-list", 38, Kit.make("GetConsumerListByGroupRequestHeader",
            "consumerGroup", "consumer-group"), null);
        oneway("notify-consumer-ids-changed", 40, Kit.make("NotifyConsumerIdsChangedRequestHeader",
            "consumerGroup", "consumer-group"), null);
        request("lock-batch", 41, null, TEXT);
        request("check-client", 46, null, TEXT);
    }

    private void offsets() throws Exception {
        request("query-consumer-offset", 14, Kit.make("QueryConsumerOffsetRequestHeader",
            "consumerGroup", "consumer-group", "topic", "TopicA", "queueId", 1, "setZeroIfNotFound", false,
            "brokerName", "broker-a"), null);
        response("query-consumer-offset", 0, null,
            Kit.make("QueryConsumerOffsetResponseHeader", "offset", 42L), null);
        response("query-consumer-offset-missing", 22, "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first",
            null, null);
        oneway("update-consumer-offset", 15, Kit.make("UpdateConsumerOffsetRequestHeader",
            "consumerGroup", "consumer-group", "topic", "TopicA", "queueId", 1, "commitOffset", 43L,
            "brokerName", "broker-a"), null);
        Object[] queue = {"topic", "TopicA", "queueId", 1, "brokerName", "broker-a"};
        request("get-max-offset", 30, Kit.make("GetMaxOffsetRequestHeader", queue), null);
        response("get-max-offset", 0, null, Kit.make("GetMaxOffsetResponseHeader", "offset", 100L), null);
        request("get-min-offset", 31, Kit.make("GetMinOffsetRequestHeader", queue), null);
        response("get-min-offset", 0, null, Kit.make("GetMinOffsetResponseHeader", "offset", 0L), null);
        Object search = Kit.make("SearchOffsetRequestHeader", queue);
        Kit.set(search, "timestamp", 1_700_000_000_123L);
        request("search-offset", 29, search, null);
        if (Kit.has("BoundaryType")) {
            Object upper = Kit.make("SearchOffsetRequestHeader", queue);
            Kit.set(upper, "timestamp", 1_700_000_000_123L);
            Kit.set(upper, "boundaryType", "UPPER");
            request("search-offset-upper", 29, upper, null);
        }
        response("search-offset", 0, null, Kit.make("SearchOffsetResponseHeader", "offset", 12L), null);
        request("get-earliest-store-time", 32, Kit.make("GetEarliestMsgStoretimeRequestHeader", queue), null);
    }

    private void nameServer() throws Exception {
        request("register-broker", 103, Kit.make("RegisterBrokerRequestHeader",
            "brokerName", "broker-a", "brokerAddr", "10.0.0.1:10911", "clusterName", "DefaultCluster",
            "haServerAddr", "10.0.0.1:10912", "brokerId", 0L, "compressed", false, "bodyCrc32", 123456789,
            "heartbeatTimeoutMillis", 120000L, "enableActingMaster", false), TEXT);
        response("register-broker", 0, null, Kit.make("RegisterBrokerResponseHeader",
            "haServerAddr", "10.0.0.1:10912", "masterAddr", "10.0.0.1:10911"), null);
        request("unregister-broker", 104, Kit.make("UnRegisterBrokerRequestHeader",
            "brokerName", "broker-a", "brokerAddr", "10.0.0.1:10911", "clusterName", "DefaultCluster",
            "brokerId", 0L), null);
        request("get-route-info", 105, Kit.make("GetRouteInfoRequestHeader", "topic", "TopicA",
            "acceptStandardJsonOnly", true), null);
        response("get-route-info", 0, null, null, TEXT);
        request("get-cluster-info", 106, null, null);
        request("get-all-topic-list", 206, null, null);
        request("put-kv-config", 100, Kit.make("PutKVConfigRequestHeader",
            "namespace", "ORDER_TOPIC_CONFIG", "key", "TopicA", "value", "broker-a:4;broker-b:4"), null);
        request("get-kv-config", 101, Kit.make("GetKVConfigRequestHeader",
            "namespace", "ORDER_TOPIC_CONFIG", "key", "TopicA"), null);
        response("get-kv-config", 0, null,
            Kit.make("GetKVConfigResponseHeader", "value", "broker-a:4;broker-b:4"), null);
        request("delete-kv-config", 102, Kit.make("DeleteKVConfigRequestHeader",
            "namespace", "ORDER_TOPIC_CONFIG", "key", "TopicA"), null);
        request("get-kv-list", 219, Kit.make("GetKVListByNamespaceRequestHeader",
            "namespace", "ORDER_TOPIC_CONFIG"), null);
        request("query-data-version", 322, Kit.make("QueryDataVersionRequestHeader",
            "brokerName", "broker-a", "brokerAddr", "10.0.0.1:10911", "clusterName", "DefaultCluster",
            "brokerId", 0L), TEXT);
        response("query-data-version", 0, null,
            Kit.make("QueryDataVersionResponseHeader", "changed", true), TEXT);
    }

    private void special() throws Exception {
        response("not-supported", 3, " request type 9999 not supported", null, null);
        RemotingCommand free = RemotingCommand.createRequestCommand(105, null);
        free.addExtField("k\u00fcrzel", "\u20ac \uD83D\uDE00 \"q\"\\");
        free.addExtField("empty", "");
        free.setRemark("remark \u00fc");
        encode("free-ext-fields", free, null, null);
    }

    private void request(String name, int code, Object header, byte[] body) throws Exception {
        encode(name + "-request", RemotingCommand.createRequestCommand(code, (CommandCustomHeader) header),
            header, body);
    }

    private void oneway(String name, int code, Object header, byte[] body) throws Exception {
        RemotingCommand command = RemotingCommand.createRequestCommand(code, (CommandCustomHeader) header);
        command.markOnewayRPC();
        encode(name + "-request", command, header, body);
    }

    private void response(String name, int code, String remark, Object header, byte[] body) throws Exception {
        RemotingCommand command = RemotingCommand.createResponseCommand(code, remark);
        Kit.call(command, "writeCustomHeader", (CommandCustomHeader) header);
        encode(name + "-response", command, header, body);
    }

    private void encode(String name, RemotingCommand command, Object header, byte[] body) throws Exception {
        command.setOpaque(opaque++);
        command.setBody(body);
        HashMap<String, String> free = command.getExtFields();
        for (SerializeType type : SerializeType.values()) {
            // The JSON encoder copies the header into extFields; each encoding starts without.
            command.setExtFields(free == null ? null : new HashMap<>(free));
            command.setSerializeTypeCurrentRPC(type);
            EmbeddedChannel channel = new EmbeddedChannel(new NettyEncoder());
            channel.writeOutbound(command);
            ByteBuf out = channel.readOutbound();
            byte[] bytes = new byte[out.readableBytes()];
            out.readBytes(bytes);
            // The binary encoder writes some headers' fields straight from their getters and
            // leaves extFields alone; makeCustomHeaderToNet is what the JSON encoder runs.
            command.makeCustomHeaderToNet();
            golden.add("frame", "frame-" + name + "-" + type.name().toLowerCase(), NettyEncoder.class.getName(),
                bytes, describe(command, type, header, body));
        }
    }

    private static Map<String, Object> describe(
        RemotingCommand command, SerializeType type, Object header, byte[] body) throws Exception {
        Map<String, Object> input = new LinkedHashMap<>();
        input.put("serializeType", type.name());
        input.put("code", command.getCode());
        input.put("language", command.getLanguage().name());
        input.put("version", command.getVersion());
        input.put("opaque", command.getOpaque());
        input.put("flag", command.getFlag());
        input.put("remark", command.getRemark());
        input.put("extFields", command.getExtFields() == null ? Kit.map() : Kit.describe(command.getExtFields()));
        input.put("header", header == null ? null : header.getClass().getSimpleName());
        input.put("fields", header == null ? Kit.map() : Kit.describe(header));
        input.put("body", body == null ? "" : Kit.hex(body));
        return input;
    }
}
