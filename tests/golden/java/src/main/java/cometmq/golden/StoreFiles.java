package cometmq.golden;

import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.store.AppendMessageResult;
import org.apache.rocketmq.store.StoreCheckpoint;
import org.apache.rocketmq.store.index.IndexFile;

/** Files of a store: commit log with its end-of-file record, consume queue, checkpoint, index. */
final class StoreFiles {
    private static final int COMMIT_LOG_FILE = 2048;
    private static final int UNIT = 20;

    private final Golden golden;

    StoreFiles(Golden golden) {
        this.golden = golden;
    }

    void write() throws Exception {
        rolling();
        checkpoint();
        index();
    }

    private void rolling() throws Exception {
        LocalStore store = new LocalStore(COMMIT_LOG_FILE);
        List<Object> messages = new ArrayList<>();
        List<Object> units = new ArrayList<>();
        String[] tags = {"TagA", "", "\u6807\u7b7e", "polygenelubricants"};
        for (int i = 0; i < 12; i++) {
            String properties = tags[i % 4].isEmpty() ? "KEYS\u0001k" + i + "\u0002"
                : "TAGS\u0001" + tags[i % 4] + "\u0002KEYS\u0001k" + i + "\u0002";
            byte[] body = new byte[300 + 7 * i];
            Arrays.fill(body, (byte) ('a' + i));
            Object message = Kit.make("MessageExtBrokerInner", "topic", "TopicA", "queueId", 0,
                "bornTimestamp", 1_700_000_000_000L + i,
                "bornHost", new InetSocketAddress(InetAddress.getByName("10.0.0.9"), 40000),
                "storeHost", new InetSocketAddress(InetAddress.getByName("10.0.0.1"), 10911),
                "propertiesString", properties, "body", body);
            Kit.call(Kit.find("MessageAccessor"), "setProperties", (Message) message,
                new HashMap<>(MessageDecoder.string2messageProperties(properties)));
            AppendMessageResult appended = store.put(message);
            byte[] record = store.read(appended.getWroteOffset(), appended.getWroteBytes());
            messages.add(Records.describe(record, properties));
            units.add(Kit.map("offset", appended.getWroteOffset(), "size", appended.getWroteBytes(),
                "tagsCode", (long) tags[i % 4].hashCode()));
        }
        store.awaitDispatch();
        for (int file = 0; file < 3; file++) {
            long start = (long) file * COMMIT_LOG_FILE;
            golden.add("commit-log-file", "commit-log-" + file, "org.apache.rocketmq.store.CommitLog",
                store.file(String.format("commitlog/%020d", start)),
                Kit.map("start", start, "size", COMMIT_LOG_FILE, "messages", messages));
        }
        byte[] queue = store.file("consumequeue/TopicA/0/00000000000000000000");
        golden.add("consume-queue", "consume-queue", "org.apache.rocketmq.store.ConsumeQueue",
            Arrays.copyOf(queue, UNIT * 12), Kit.map("fileSize", queue.length, "units", units));
        store.close();
        store.delete();
    }

    private void checkpoint() throws Exception {
        Path path = Files.createTempDirectory("golden").resolve("checkpoint");
        StoreCheckpoint checkpoint = new StoreCheckpoint(path.toString());
        checkpoint.setPhysicMsgTimestamp(1_700_000_000_001L);
        checkpoint.setLogicsMsgTimestamp(1_700_000_000_002L);
        checkpoint.setIndexMsgTimestamp(1_700_000_000_003L);
        Kit.set(checkpoint, "masterFlushedOffset", 4_000_000_004L);
        Kit.set(checkpoint, "confirmPhyOffset", 5_000_000_005L);
        checkpoint.flush();
        checkpoint.shutdown();
        boolean five = !golden.version.startsWith("4");
        golden.add("checkpoint", "checkpoint", StoreCheckpoint.class.getName(), Files.readAllBytes(path),
            Kit.map("physicMsgTimestamp", 1_700_000_000_001L, "logicsMsgTimestamp", 1_700_000_000_002L,
                "indexMsgTimestamp", 1_700_000_000_003L,
                "masterFlushedOffset", five ? 4_000_000_004L : 0L, "confirmPhyOffset", five ? 5_000_000_005L : 0L,
                "minTimestamp", checkpoint.getMinTimestamp()));
    }

    private void index() throws Exception {
        String[] texts = {"TopicA#k1", "TopicA#k2", "TopicB#\u20ac", "TopicA#k1", "TopicA#polygenelubricants", "x"};
        index("index", texts, 16, 40, 1500, 0, 0);
        // The file after a full one: it begins where that ended, and its slots get long chains.
        String[] more = new String[9];
        for (int i = 0; i < more.length; i++) {
            more[i] = "TopicA#k" + i % 4;
        }
        index("index-next", more, 3, 10, 700, 900, 1_699_999_990_000L);
    }

    private void index(String name, String[] texts, int slots, int entries, long stepMs,
        long previousEndOffset, long previousEndTimestamp) throws Exception {
        Path path = Files.createTempDirectory("golden").resolve("20231114221320123");
        IndexFile index = new IndexFile(path.toString(), slots, entries, previousEndOffset, previousEndTimestamp);
        List<Object> keys = new ArrayList<>();
        for (int i = 0; i < texts.length; i++) {
            long offset = 1000L * (i + 1);
            long storeTimestamp = 1_700_000_000_123L + stepMs * i;
            if (!index.putKey(texts[i], offset, storeTimestamp)) {
                throw new IllegalStateException("index full");
            }
            keys.add(Kit.map("key", texts[i], "hash", index.indexKeyHashMethod(texts[i]),
                "offset", offset, "storeTimestamp", storeTimestamp));
        }
        index.flush();
        byte[] bytes = Files.readAllBytes(path);
        ByteBuffer header = ByteBuffer.wrap(bytes);
        golden.add("index", name, IndexFile.class.getName(), bytes,
            Kit.map("slots", slots, "maxEntries", entries, "keys", keys,
                "previousEndOffset", previousEndOffset, "previousEndTimestamp", previousEndTimestamp,
                "beginTimestamp", header.getLong(0), "endTimestamp", header.getLong(8),
                "beginOffset", header.getLong(16), "endOffset", header.getLong(24),
                "usedSlots", header.getInt(32), "indexCount", header.getInt(36)));
    }
}
