package cometmq.golden;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.apache.rocketmq.store.ConsumeQueueExt;

/** What the filters of SQL92 subscriptions leave on disk: Bloom bit maps, extensions of queues. */
final class Filters {
    private static final int FILE_SIZE = 200;

    private final Golden golden;

    Filters(Golden golden) {
        this.golden = golden;
    }

    void write() throws Exception {
        if (!golden.version.startsWith("4")) {
            bloom();
        }
        extension();
    }

    private void bloom() throws Exception {
        String[] texts = {"", "a", "group#topic", "GROUP_A#TopicTest", "0123456789abcde", "0123456789abcdef",
            "0123456789abcdefg", "CID_\u20ac\ud83d\ude00#\u6807\u7b7e", "a-long-group-name-of-someone#%RETRY%and-topic"};
        int[][] settings = {{20, 32}, {10, 128}, {1, 1}, {99, 7}, {50, 1000}};
        // By name: the filter module of 4.9 is not compiled against.
        Class<?> type = Class.forName("org.apache.rocketmq.filter.util.BloomFilter");
        Class<?> bitsType = Class.forName("org.apache.rocketmq.filter.util.BitsArray");
        for (int[] setting : settings) {
            Object filter = Kit.call(type, "createByFn", setting[0], setting[1]);
            Object bits = Kit.call(bitsType, "create", Kit.call(filter, "getM"));
            List<Object> positions = new ArrayList<>();
            for (String text : texts) {
                List<Object> places = new ArrayList<>();
                for (int place : (int[]) Kit.call(filter, "calcBitPositions", text)) {
                    places.add(place);
                }
                positions.add(Kit.map("text", text, "positions", places));
                Kit.call(filter, "hashTo", text, bits);
            }
            golden.add("bloom", "bloom-" + setting[0] + "-" + setting[1], type.getName(),
                (byte[]) Kit.call(bits, "bytes"),
                Kit.map("errorRate", setting[0], "expected", setting[1], "bits", Kit.call(filter, "getM"),
                    "hashes", Kit.call(filter, "getK"), "texts", positions));
        }
    }

    private void extension() throws Exception {
        Path root = Files.createTempDirectory("golden");
        ConsumeQueueExt queue = new ConsumeQueueExt("TopicA", 0, root.toString(), FILE_SIZE, 112);
        queue.load();
        List<Object> units = new ArrayList<>();
        for (int i = 0; i < 12; i++) {
            byte[] bits = i % 4 == 3 ? null : new byte[14];
            if (bits != null) {
                Arrays.fill(bits, (byte) (17 * i));
            }
            long tagsCode = i % 2 == 0 ? i : -1_000_000_007L * i % Integer.MAX_VALUE;
            long storeTimestamp = 1_700_000_000_000L + i;
            long address = queue.put(new ConsumeQueueExt.CqExtUnit(tagsCode, storeTimestamp, bits));
            units.add(Kit.map("tagsCode", tagsCode, "storeTimestamp", storeTimestamp,
                "bitMap", bits == null ? "" : String.format("%02x", bits[0]), "address", address));
        }
        queue.flush(0);
        Path directory = root.resolve("TopicA").resolve("0");
        for (int file = 0; Files.exists(directory.resolve(String.format("%020d", file * FILE_SIZE))); file++) {
            golden.add("consume-queue-ext", "consume-queue-ext-" + file, ConsumeQueueExt.class.getName(),
                Files.readAllBytes(directory.resolve(String.format("%020d", file * FILE_SIZE))),
                Kit.map("start", file * FILE_SIZE, "fileSize", FILE_SIZE, "units", units));
        }
        queue.destroy();
    }
}
