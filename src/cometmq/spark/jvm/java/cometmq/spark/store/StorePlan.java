package cometmq.spark.store;

import java.io.IOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import org.apache.spark.sql.connector.read.InputPartition;

/** Splits the reading of a store among tasks (Python: {@code cometmq.spark.stores.plan}). */
final class StorePlan {
    // A task keeps the units of its part in memory, 20 bytes each, and an executor has several tasks.
    private static final long MAX_UNITS = 1_000_000;
    // The name of one file can say that a queue has more messages than any disk.
    private static final long MAX_PARTS = 100_000;
    // As in Python's splitting.
    private static final int MANY = 256;
    private static final long FEW_MESSAGES = 20_000;

    private final StoreOptions options;
    private final String[] columns;
    private final Bounds bounds;
    private Job job;

    StorePlan(StoreOptions options, String[] columns, Bounds bounds) {
        this.options = options;
        this.columns = columns;
        this.bounds = bounds;
    }

    /** Return what tasks need beside their parts, once those are planned. */
    Job job() {
        return job;
    }

    /** Return the parts. Throw Unfit where the Python reader has an error to raise. */
    InputPartition[] parts() throws Exception {
        options.gaps.check();
        StoreFiles files = new StoreFiles(options.path, options.commitLogs);
        files.check();
        List<Part> parts;
        try (AutoCloseable ignored = StoreLocks.lock(options.path)) {
            List<StoreFiles.QueueFiles> queues = files.queues();
            Set<String> topics = null;
            boolean byQueue = false;
            if (options.byTopic()) {
                queues = chosen(queues);
                // After a crash, queues may lack messages of the log.
                byQueue = files.isClean();
                topics = new HashSet<>();
                for (StoreFiles.QueueFiles queue : queues) {
                    topics.add(queue.topic());
                }
            }
            List<StoreFiles.LogFile> log = files.logFiles();
            job = new Job(options, columns, bounds, byQueue ? null : topics);
            if (byQueue) {
                long base = log.isEmpty() ? Long.MAX_VALUE : log.get(0).base();
                parts = queueParts(queues, base);
            } else {
                leaveOutMissingFiles(log);
                parts = logParts(log, queues);
            }
            return byQueue ? grouped(parts, options.minPartitions) : grouped(parts, Integer.MAX_VALUE);
        }
    }

    /** Give parts of few messages together to a task where there are many (Python: {@code grouped}). */
    private static InputPartition[] grouped(List<Part> parts, int minPartitions) {
        int tasks = Math.max(MANY, minPartitions);
        long total = 0;
        for (Part part : parts) {
            total += part.size();
        }
        long most = parts.size() > tasks ? Math.min(FEW_MESSAGES, total / tasks) : 0;
        List<Part.Several> groups = new ArrayList<>();
        List<Part> group = new ArrayList<>();
        long size = 0;
        for (Part part : parts) {
            if (!group.isEmpty() && size + part.size() > most) {
                groups.add(new Part.Several(group));
                group = new ArrayList<>();
                size = 0;
            }
            group.add(part);
            size += part.size();
        }
        if (!group.isEmpty()) {
            groups.add(new Part.Several(group));
        }
        if (groups.size() < minPartitions && most > 0) {
            groups = parts.stream().map(part -> new Part.Several(List.of(part))).toList();
        }
        return groups.toArray(new InputPartition[0]);
    }

    private List<StoreFiles.QueueFiles> chosen(List<StoreFiles.QueueFiles> queues) throws Unfit {
        List<StoreFiles.QueueFiles> chosen = new ArrayList<>();
        Set<String> found = new HashSet<>();
        for (StoreFiles.QueueFiles queue : queues) {
            boolean wanted = options.topics == null
                    ? options.pattern.matcher(queue.topic()).matches()
                    : options.topics.contains(queue.topic());
            if (wanted) {
                chosen.add(queue);
                found.add(queue.topic());
            }
        }
        if (found.isEmpty() || options.topics != null && !found.containsAll(options.topics)) {
            throw new Unfit("the store has no queue of a topic");
        }
        return chosen;
    }

    private List<Part> queueParts(List<StoreFiles.QueueFiles> queues, long logBase)
            throws IOException, Unfit {
        List<StoreFiles.QueueFiles> wanted = new ArrayList<>();
        Tails tails = new Tails();
        List<long[]> ranges = new ArrayList<>();
        long total = 0;
        for (StoreFiles.QueueFiles queue : queues) {
            if (!queue.isBorrowed() && !bounds.takes(queue.topic(), queue.queueId())) {
                continue;
            }
            // Messages in borrowed queues have offsets of other queues.
            long end = queue.isBorrowed() ? Long.MAX_VALUE : bounds.endOffset;
            long[] range = StoreFiles.bounds(queue, logBase, end, tails);
            long low = queue.isBorrowed() ? range[0] : Math.max(range[0], bounds.minOffset);
            long high = Math.min(range[1], end);
            if (low < high) {
                wanted.add(queue);
                ranges.add(new long[] {low, high});
                if (high - low > MAX_PARTS * MAX_UNITS - total) {
                    throw new Unfit("the files of the queue " + queue.topic() + ":" + queue.queueId()
                            + " are named as if it had " + (high - low) + " messages");
                }
                total += high - low;
            }
        }
        List<Part> parts = new ArrayList<>();
        for (int at = 0; at < wanted.size(); at++) {
            long low = ranges.get(at)[0];
            long size = ranges.get(at)[1] - low;
            long shares = (size * options.minPartitions + total - 1) / total;
            shares = Math.max(shares, (size + MAX_UNITS - 1) / MAX_UNITS);
            long count = Math.min(size, Math.max(1, shares));
            for (long share = 0; share < count; share++) {
                long start = low + size * share / count;
                long end = low + size * (share + 1) / count;
                parts.add(new Part(wanted.get(at), null, start, end, false));
            }
        }
        return parts;
    }

    private void leaveOutMissingFiles(List<StoreFiles.LogFile> log) throws IOException {
        for (int at = 1; at < log.size(); at++) {
            StoreFiles.LogFile before = log.get(at - 1);
            if (before.end() < log.get(at).base()) {
                options.gaps.bytes(before.end(), log.get(at).base(), before.path());
            }
        }
    }

    /** Split files only where consume queues say that records begin: a body could look like a record. */
    private List<Part> logParts(
            List<StoreFiles.LogFile> log, List<StoreFiles.QueueFiles> queues) throws IOException {
        List<Part> parts = new ArrayList<>();
        int perFile = log.isEmpty() ? 0 : (options.minPartitions + log.size() - 1) / log.size();
        long[] starts = perFile > 1 ? recordStarts(queues) : new long[0];
        for (int at = 0; at < log.size(); at++) {
            StoreFiles.LogFile file = log.get(at);
            long low = file.base();
            for (long bound : boundaries(file, starts, perFile)) {
                parts.add(new Part(null, file, low, bound, at == log.size() - 1));
                low = bound;
            }
            parts.add(new Part(null, file, low, file.end(), at == log.size() - 1));
        }
        return parts;
    }

    private static long[] recordStarts(List<StoreFiles.QueueFiles> queues) throws IOException {
        long[][] each = new long[queues.size()][];
        int size = 0;
        Tails tails = new Tails();
        for (int at = 0; at < each.length; at++) {
            each[at] = StoreFiles.someOffsets(queues.get(at), tails);
            size += each[at].length;
        }
        long[] starts = new long[size];
        int done = 0;
        for (long[] one : each) {
            System.arraycopy(one, 0, starts, done, one.length);
            done += one.length;
        }
        return Arrays.stream(starts).sorted().distinct().toArray();
    }

    /** Return records that begin near even parts of what is written of a file. */
    private static List<Long> boundaries(StoreFiles.LogFile file, long[] starts, int count)
            throws IOException {
        List<Long> places = new ArrayList<>();
        long[] inside =
                Arrays.stream(starts).filter(at -> at > file.base() && at < file.end()).toArray();
        if (count < 2 || inside.length == 0) {
            return places;
        }
        double step = (double) (inside[inside.length - 1] - file.base()) / count;
        try (LogWindow window = new LogWindow(file, new byte[LogWindow.STANDARD])) {
            for (int share = 1; share < count; share++) {
                double wanted = share * step + file.base();
                int at = 0;
                int high = inside.length;
                while (at < high) {
                    int middle = (at + high) >>> 1;
                    if (inside[middle] < wanted) {
                        at = middle + 1;
                    } else {
                        high = middle;
                    }
                }
                if (at == inside.length) {
                    break;
                }
                boolean isNew = places.isEmpty() || places.get(places.size() - 1) < inside[at];
                if (isNew && isRecord(window, file, inside[at])) {
                    places.add(inside[at]);
                }
            }
        }
        return places;
    }

    private static boolean isRecord(LogWindow window, StoreFiles.LogFile file, long offset)
            throws IOException {
        long place = offset - file.base();
        if (!window.holds(place, 36, 36)) {
            return false;
        }
        int at = window.index(place);
        int magic = Record.intAt(window.bytes, at + 4);
        return (magic == Record.MAGIC_V1 || magic == Record.MAGIC_V2)
                && Record.longAt(window.bytes, at + 28) == offset;
    }
}
