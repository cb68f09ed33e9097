import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.net.InetSocketAddress;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Locale;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.GetMessageStatus;
import org.apache.rocketmq.store.PutMessageStatus;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/**
 * Java's message store, driven by lines on standard input; one line of JSON answers each. The
 * commands are those of benchmarks/store_subject.py, which does the same with our store.
 */
public final class StoreSubject {
    private static final int TOPICS = 4;
    private static final int QUEUES = 4;
    private static final Map<String, String> NO_PROPERTIES = new HashMap<>();
    private static final long WAIT_NANOS = 50_000;
    // Sixteen digits, as cheap to write as the hexadecimal unique ids of clients.
    private static final long SERIAL_BASE = 1L << 60;

    private DefaultMessageStore store;
    private final String topicPrefix = "bench-";
    private final InetSocketAddress host = new InetSocketAddress("127.0.0.1", 10911);
    private final AtomicInteger serial = new AtomicInteger();

    public static void main(String[] arguments) throws Exception {
        StoreSubject subject = new StoreSubject();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            System.out.println(subject.answer(line.split(" ")));
        }
        // Threads of a store that was not closed would keep the process.
        Runtime.getRuntime().halt(0);
    }

    private String answer(String[] words) {
        try {
            long began = System.nanoTime();
            long count = run(words);
            double seconds = (System.nanoTime() - began) / 1e9;
            return String.format(Locale.ROOT, "{\"seconds\": %.9f, \"count\": %d}", seconds, count);
        } catch (Exception error) {
            String text = error.toString().replace('"', '\'').replace('\n', ' ');
            return "{\"error\": \"" + text + "\"}";
        }
    }

    private long run(String[] words) throws Exception {
        switch (words[0]) {
            case "open":
                return open(words[1], words[2], words[3], Integer.parseInt(words[4]));
            case "append":
                return append(
                    Integer.parseInt(words[1]), Integer.parseInt(words[2]), Integer.parseInt(words[3]));
            case "read":
                return read(Long.parseLong(words[1]), Integer.parseInt(words[2]));
            case "random":
                return readAtRandom(Integer.parseInt(words[1]), Long.parseLong(words[2]));
            case "index":
                awaitDispatch();
                return 0;
            case "messages":
                return messages();
            case "close":
                store.shutdown();
                return 0;
            default:
                throw new IllegalArgumentException("no command " + words[0]);
        }
    }

    /** Until the store takes messages. */
    private long open(String root, String flush, String index, int fileMib) throws Exception {
        MessageStoreConfig config = new MessageStoreConfig();
        config.setStorePathRootDir(root);
        config.setStorePathCommitLog(root + "/commitlog");
        config.setMappedFileSizeCommitLog(fileMib << 20);
        config.setFlushDiskType(flush);
        config.setMessageIndexEnable(Boolean.parseBoolean(index));
        config.setHaListenPort(0);
        config.setTimerWheelEnable(false);
        config.setDiskMaxUsedSpaceRatio(95);
        config.setDiskSpaceWarningLevelRatio(98);
        store = new DefaultMessageStore(
            config,
            new BrokerStatsManager("bench", false),
            (topic, queueId, offset, tagsCode, timestamp, bitMap, properties) -> { },
            new BrokerConfig(),
            new ConcurrentHashMap<>());
        if (!store.load()) {
            throw new IllegalStateException("the store does not load");
        }
        store.start();
        return 0;
    }

    /** Until all messages are stored (with SYNC_FLUSH: on disk) and in their consume queues. */
    private long append(int count, int bodySize, int writers) throws Exception {
        AtomicReference<Exception> failure = new AtomicReference<>();
        AtomicInteger left = new AtomicInteger(count);
        byte[] body = body(bodySize);
        Runnable writer = () -> {
            try {
                while (left.getAndDecrement() > 0) {
                    put(body);
                }
            } catch (Exception error) {
                failure.set(error);
            }
        };
        Thread[] threads = new Thread[writers];
        for (int i = 0; i < writers; i++) {
            threads[i] = new Thread(writer);
            threads[i].start();
        }
        for (Thread thread : threads) {
            thread.join();
        }
        if (failure.get() != null) {
            throw failure.get();
        }
        awaitDispatch();
        return count;
    }

    private static byte[] body(int size) {
        byte[] body = new byte[size];
        Arrays.fill(body, (byte) 'b');
        return body;
    }

    private void put(byte[] body) {
        int number = serial.getAndIncrement();
        MessageExtBrokerInner message = new MessageExtBrokerInner();
        message.setTopic(topicPrefix + number % TOPICS);
        message.setQueueId(number / TOPICS % QUEUES);
        message.setBody(body);
        String hex = Long.toHexString(SERIAL_BASE + number);
        // The string is what is stored; the map is only asked for what these messages do not have.
        MessageAccessor.setProperties(message, NO_PROPERTIES);
        message.setPropertiesString(
            "UNIQ_KEY\u00017F0000012A9F" + hex + "\u0002KEYS\u0001K" + hex
            + "\u0002TAGS\u0001tag\u0002WAIT\u0001true\u0002");
        message.setTagsCode("tag".hashCode());
        message.setBornTimestamp(System.currentTimeMillis());
        message.setBornHost(host);
        message.setStoreHost(host);
        PutMessageStatus status = store.putMessage(message).getPutMessageStatus();
        if (status != PutMessageStatus.PUT_OK) {
            throw new IllegalStateException("a message was refused: " + status);
        }
    }

    private void awaitDispatch() {
        while (store.dispatchBehindBytes() > 0) {
            LockSupport.parkNanos(WAIT_NANOS);
        }
    }

    private long read(long limit, int batch) {
        long count = 0;
        for (int i = 0; i < TOPICS * QUEUES; i++) {
            long offset = 0;
            while (count < limit) {
                GetMessageResult result = store.getMessage(
                    "bench", topicPrefix + i % TOPICS, i / TOPICS, offset, batch, null);
                if (result.getStatus() != GetMessageStatus.FOUND) {
                    break;
                }
                count += result.getMessageCount();
                offset = result.getNextBeginOffset();
                result.release();
            }
        }
        return count;
    }

    private long readAtRandom(int count, long seed) throws Exception {
        Random random = new Random(seed);
        long[] ends = new long[TOPICS * QUEUES];
        for (int i = 0; i < ends.length; i++) {
            ends[i] = store.getMaxOffsetInQueue(topicPrefix + i % TOPICS, i / TOPICS);
        }
        long found = 0;
        for (int i = 0; i < count; i++) {
            int queue = random.nextInt(ends.length);
            long offset = (long) (random.nextDouble() * ends[queue]);
            GetMessageResult result = store.getMessage(
                "bench", topicPrefix + queue % TOPICS, queue / TOPICS, offset, 1, null);
            found += result.getMessageCount();
            result.release();
        }
        return found;
    }

    private long messages() throws Exception {
        long count = 0;
        for (int topic = 0; topic < TOPICS; topic++) {
            for (int queue = 0; queue < QUEUES; queue++) {
                count += store.getMaxOffsetInQueue(topicPrefix + topic, queue);
            }
        }
        return count;
    }
}
