package cometmq.golden;

import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.common.compression.CompressionType;
import org.apache.rocketmq.common.compression.Compressor;
import org.apache.rocketmq.common.compression.CompressorFactory;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageExtBatch;
import org.apache.rocketmq.store.AppendMessageResult;

/** Stored message records, appended by DefaultMessageStore and read back from its commit log. */
final class Records {
    private static final String PLAIN = "TAGS\u0001TagA\u0002KEYS\u0001k1 k2\u0002WAIT\u0001true\u0002";
    private static final long BORN = 1_700_000_000_123L;

    private final Golden golden;
    private LocalStore store;

    Records(Golden golden) {
        this.golden = golden;
    }

    void write() throws Exception {
        store = new LocalStore(1 << 20);
        byte[] text = "hello \u20ac".getBytes(StandardCharsets.UTF_8);
        put("plain", "sysFlag", 0, "body", text);
        put("queue-offset", "sysFlag", 0, "body", new byte[] {0, -1, 127, -128});
        put("no-properties", "queueId", 1, "propertiesString", "", "body", text);
        put("unicode-properties", "propertiesString",
            "note\u0001gr\u00fcn \u20ac \uD83D\uDE00\u0002TAGS\u0001\u6807\u7b7e\u0002", "body", text);
        put("properties-without-terminator", "propertiesString", "TAGS\u0001TagA\u0002a\u0001b", "body", text);
        put("born-host-v6", "bornHost", host("2001:db8::7", 40000), "body", text);
        put("store-host-v6", "storeHost", host("2001:db8::1", 10911), "body", text);
        put("both-hosts-v6", "bornHost", host("2001:db8::7", 40000), "storeHost", host("::1", 10911), "body", text);
        put("reconsumed", "topic", "%RETRY%group", "reconsumeTimes", 3, "flag", -5, "body", text);
        put("transaction-prepared", "sysFlag", 4, "body", text);
        put("transaction-commit", "sysFlag", 8, "preparedTransactionOffset", 123_456L, "body", text);
        put("transaction-rollback", "sysFlag", 12, "preparedTransactionOffset", 123_456L, "body", text);
        compressed("compressed-zlib", 0x301, CompressionType.ZLIB);
        compressed("compressed-zlib-untyped", 0x001, CompressionType.ZLIB);
        compressed("compressed-lz4", 0x101, CompressionType.LZ4);
        compressed("compressed-zstd", 0x201, CompressionType.ZSTD);
        put("topic-127", "topic", topic(127), "body", text);
        if (!golden.version.startsWith("4")) {
            put("topic-128-v2", "topic", topic(128), "body", text);
            put("topic-200-v2-v6", "topic", topic(200), "bornHost", host("2001:db8::7", 40000), "body", text);
        }
        batch();
        store.close();
        store.delete();
    }

    private void compressed(String name, int sysFlag, CompressionType type) throws Exception {
        byte[] body = new byte[5000];
        for (int j = 0; j < body.length; j++) {
            body[j] = (byte) (j * 7 + j / 256);
        }
        Compressor compressor = CompressorFactory.getCompressor(type);
        put(name, "sysFlag", sysFlag, "body", compressor.compress(body, 5));
    }

    private void put(String name, Object... properties) throws Exception {
        Object message = Kit.make("MessageExtBrokerInner", "topic", "TopicA", "queueId", 3, "flag", 7,
            "bornTimestamp", BORN, "bornHost", host("10.0.0.9", 40000), "storeHost", host("10.0.0.1", 10911),
            "propertiesString", PLAIN);
        for (int i = 0; i < properties.length; i += 2) {
            Kit.set(message, (String) properties[i], properties[i + 1]);
        }
        String text = (String) Kit.call(message, "getPropertiesString");
        Kit.call(Kit.find("MessageAccessor"), "setProperties", (Message) message,
            new HashMap<>(MessageDecoder.string2messageProperties(text)));
        AppendMessageResult appended = store.put(message);
        byte[] record = store.read(appended.getWroteOffset(), appended.getWroteBytes());
        golden.add("record", "record-" + name, "org.apache.rocketmq.store.DefaultMessageStore", record,
            describe(record, text));
    }

    private void batch() throws Exception {
        MessageExtBatch batch = new MessageExtBatch();
        Kit.set(batch, "topic", "TopicB");
        batch.setQueueId(2);
        batch.setBornTimestamp(BORN);
        batch.setBornHost(host("10.0.0.9", 40000));
        batch.setStoreHost(host("10.0.0.1", 10911));
        batch.setBody(Texts.batchBody());
        Kit.call(Kit.find("MessageAccessor"), "setProperties", (Message) batch,
            new HashMap<>(Collections.singletonMap("WAIT", "true")));
        AppendMessageResult appended = store.putBatch(batch);
        byte[] bytes = store.read(appended.getWroteOffset(), appended.getWroteBytes());
        List<Object> records = new ArrayList<>();
        ByteBuffer buffer = ByteBuffer.wrap(bytes);
        while (buffer.hasRemaining()) {
            int size = buffer.getInt(buffer.position());
            byte[] record = Arrays.copyOfRange(bytes, buffer.position(), buffer.position() + size);
            records.add(describe(record, null));
            buffer.position(buffer.position() + size);
        }
        golden.add("records", "records-batch", "org.apache.rocketmq.store.DefaultMessageStore", bytes,
            Kit.map("records", records, "batch", Kit.hex(Texts.batchBody())));
    }

    /** What MessageDecoder reads from a record, the body once as stored and once decompressed. */
    static Map<String, Object> describe(byte[] record, String properties) throws Exception {
        MessageExt stored = MessageDecoder.decode(ByteBuffer.wrap(record), true, false);
        MessageExt message = MessageDecoder.decode(ByteBuffer.wrap(record), true, true);
        if (stored == null || message == null) {
            throw new IllegalStateException("record not decodable");
        }
        return Kit.map(
            "magic", ByteBuffer.wrap(record).getInt(4),
            "topic", message.getTopic(),
            "queueId", message.getQueueId(),
            "flag", message.getFlag(),
            "queueOffset", message.getQueueOffset(),
            "commitLogOffset", message.getCommitLogOffset(),
            "sysFlag", ByteBuffer.wrap(record).getInt(36),
            "bornTimestamp", message.getBornTimestamp(),
            "bornHost", describe((InetSocketAddress) message.getBornHost()),
            "storeTimestamp", message.getStoreTimestamp(),
            "storeHost", describe((InetSocketAddress) message.getStoreHost()),
            "bodyCrc", ByteBuffer.wrap(record).getInt(8),
            "reconsumeTimes", message.getReconsumeTimes(),
            "preparedTransactionOffset", message.getPreparedTransactionOffset(),
            "storedBody", Kit.hex(stored.getBody()),
            "body", Kit.hex(message.getBody()),
            "propertiesString", properties,
            "properties", Kit.describe(message.getProperties()),
            "msgId", message.getMsgId());
    }

    private static Map<String, Object> describe(InetSocketAddress address) {
        return Kit.map("ip", address.getAddress().getHostAddress(), "port", address.getPort());
    }

    private static InetSocketAddress host(String ip, int port) throws Exception {
        return new InetSocketAddress(InetAddress.getByName(ip), port);
    }

    private static String topic(int length) {
        StringBuilder name = new StringBuilder("T");
        while (name.length() < length) {
            name.append((char) ('a' + name.length() % 26));
        }
        return name.toString();
    }
}
