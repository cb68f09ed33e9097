package cometmq.spark.store;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.List;
import org.apache.spark.sql.catalyst.InternalRow;

/** Reads a part of a store (Python: {@code cometmq.spark.stores.reading}, which says what is damage). */
abstract class StoreReader implements AutoCloseable {
    static final int CHUNK = 256 * 1024;
    // Brokers of Java's take up to 4 MiB unless told otherwise, and a row is a copy of the record. What is
    // larger would end the executor, with all its tasks, before it ended the read.
    static final int MAX_RECORD = 128 * 1024 * 1024;

    final Part part;
    final StoreOptions options;
    final Record record = new Record();
    LogWindow window;

    private final TaskFiles task;
    private final Bounds bounds;
    private final Properties properties = new Properties();
    private final boolean looksAtProperties;
    private final RowMaker rows;
    private InternalRow row;
    private long rowsMade;
    private long rowsPassedOver;
    private long bytesRead;
    private long gaps;

    private StoreReader(Job job, Part part, TaskFiles task) {
        this.part = part;
        this.task = task;
        options = job.options();
        bounds = job.bounds();
        looksAtProperties = bounds.needsProperties();
        Column[] columns =
                Arrays.stream(job.columns()).map(Column::of).toArray(Column[]::new);
        rows = new RowMaker(columns, options.broker, options.decompresses, properties);
    }

    static StoreReader of(Job job, Part part, TaskFiles task) throws IOException {
        return part.queue() != null ? new OfQueue(job, part, task) : new OfLog(job, part, task);
    }

    /** Go to the next record that is wanted, into {@code record}. */
    abstract boolean advance() throws IOException;

    /** Go to the next row that filters let pass, which {@code get} returns; false behind the last one. */
    boolean next() throws IOException {
        while (advance()) {
            if (looksAtProperties) {
                properties.take(record);
            }
            if (bounds.takes(record, properties)) {
                row = rows.row(record, looksAtProperties);
                rowsMade++;
                return true;
            }
            rowsPassedOver++;
        }
        return false;
    }

    InternalRow get() {
        return row;
    }

    void open(StoreFiles.LogFile file) throws IOException {
        closeWindow();
        window = task.window(file);
    }

    void leaveOut(long start, long end, String path) throws IOException {
        options.gaps.bytes(start, end, path);
        gaps++;
    }

    void leaveOut(long start, long end, String path, long place) throws IOException {
        StoreFiles.QueueFiles queue = part.queue();
        options.gaps.offsets(queue.topic(), queue.queueId(), start, end, path, place);
        gaps++;
    }

    /**
     * Take the record of {@code size} bytes at a place of the open file, all of which the file has to have;
     * return false if it is none. What is in memory is bounded by what a record's fields say, not by its
     * declared size alone. Throw IOException for a record larger than MAX_RECORD.
     */
    boolean take(long place, long size, long offset, long ahead) throws IOException {
        if (size < Record.MIN_SIZE || size > Integer.MAX_VALUE) {
            return false;
        }
        if (size > CHUNK && !fieldsFit(place, (int) size, offset)) {
            return false;
        }
        if (size > MAX_RECORD) {
            throw new IOException(
                    options.path + ": the record at offset " + offset + " of the log has " + size
                            + " bytes, more than the " + MAX_RECORD + " that the JVM's reader takes; the "
                            + "option reader=python reads it");
        }
        return window.holds(place, (int) size, ahead)
                && record.take(window.bytes, window.index(place), (int) size, offset)
                && (!options.checksCrc || record.crcHolds());
    }

    /** Say of a large record whether its fields make up its size, without having all of it in memory. */
    private boolean fieldsFit(long place, int size, long offset) throws IOException {
        if (!window.holds(place, Record.MIN_SIZE + 24, CHUNK)) {
            return false;
        }
        int at = window.index(place);
        // Before anything is read for it: bytes that are searched may look like many large records.
        if (Record.longAt(window.bytes, at + 28) != offset) {
            return false;
        }
        int flags = Record.intAt(window.bytes, at + 36);
        int bodyAt = 88 + 12 * Integer.bitCount(flags & 0x30);
        int width = Record.intAt(window.bytes, at + 4) == Record.MAGIC_V2 ? 2 : 1;
        long bodyEnd = bodyAt + (long) Record.intAt(window.bytes, at + bodyAt - 4);
        if (bodyEnd < bodyAt || bodyEnd + width + 2 > size || !window.holds(place + bodyEnd, width, 64)) {
            return false;
        }
        at = window.index(place + bodyEnd);
        int topic = width == 2 ? Record.shortAt(window.bytes, at) : window.bytes[at] & 0xFF;
        long topicEnd = bodyEnd + width + topic;
        if (topicEnd + 2 > size || !window.holds(place + topicEnd, 2, 2)) {
            return false;
        }
        return topicEnd + 2 + Record.shortAt(window.bytes, window.index(place + topicEnd)) == size;
    }

    /** Return the values of {@code Metrics.OF_TASKS}, of this part. */
    long[] metrics() {
        long bytes = bytesRead + (window == null ? 0 : window.read);
        return new long[] {rowsMade, rowsPassedOver, bytes, gaps};
    }

    private void closeWindow() throws IOException {
        if (window != null) {
            bytesRead += window.read;
            task.close(window);
            window = null;
        }
    }

    @Override
    public void close() throws IOException {
        rows.close();
        closeWindow();
    }

    /** Reads a file of the log, or a part of one, from record to record. */
    private static final class OfLog extends StoreReader {
        private final StoreFiles.LogFile file;
        private final boolean isClean;
        private final byte[][] topics;
        private long offset;

        OfLog(Job job, Part part, TaskFiles task) throws IOException {
            super(job, part, task);
            file = part.file();
            offset = part.start();
            isClean = task.store.isClean();
            topics = job.topics() == null
                    ? null
                    : job.topics().stream()
                            .map(topic -> topic.getBytes(StandardCharsets.UTF_8))
                            .toArray(byte[][]::new);
            open(file);
        }

        @Override
        boolean advance() throws IOException {
            while (offset < part.end()) {
                long place = offset - file.base();
                long left = part.end() - offset;
                long size = 0;
                int magic = 0;
                if (left >= Record.HEAD_SIZE) {
                    if (!window.holds(place, Record.HEAD_SIZE, CHUNK)) {
                        throw new IOException(file.path() + " has become shorter than it was");
                    }
                    int at = window.index(place);
                    size = Record.intAt(window.bytes, at) & 0xFFFFFFFFL;
                    magic = Record.intAt(window.bytes, at + 4);
                }
                if (size <= left && take(place, size, offset, CHUNK)) {
                    offset += size;
                    if (isChosen()) {
                        return true;
                    }
                    continue;
                }
                long rest = file.end() - offset;
                if (rest < Record.MIN_SIZE || magic == Record.MAGIC_BLANK && size == rest) {
                    break;
                }
                long following = afterDamage(size == 0 && magic == 0);
                if (following < 0) {
                    break;
                }
                offset = following;
            }
            offset = part.end();
            return false;
        }

        private boolean isChosen() {
            if (topics == null) {
                return true;
            }
            if (!record.isDispatched()) {
                return false;
            }
            for (byte[] topic : topics) {
                if (Arrays.equals(
                        topic, 0, topic.length, record.bytes, record.topicAt, record.topicEnd)) {
                    return true;
                }
            }
            return false;
        }

        /** Return where to go on behind bytes that are no record, -1 at the end of the log. */
        private long afterDamage(boolean unwritten) throws IOException {
            boolean isTail = part.isLastFile() && part.end() == file.end();
            if (unwritten && isTail && isClean) {
                return -1; // without reading the rest, which may be most of a gigabyte
            }
            long following = nextRecord(offset + 1);
            if (following < 0 && isTail && !isClean) {
                return -1;
            }
            leaveOut(offset, following < 0 ? part.end() : following, file.path());
            return following;
        }

        private long nextRecord(long from) throws IOException {
            for (long at = from; at < part.end(); ) {
                long place = at - file.base();
                // A record begins below the end, but its magic may lie beyond.
                if (!window.holds(place, Record.HEAD_SIZE, CHUNK)) {
                    return -1;
                }
                int index = window.index(place);
                int last = index + window.left(place) - Record.HEAD_SIZE;
                byte[] bytes = window.bytes;
                int found = index;
                while (found <= last
                        && (bytes[found + 4] != (byte) 0xDA
                                || bytes[found + 5] != (byte) 0xA3
                                || bytes[found + 6] != (byte) 0x20
                                || bytes[found + 7] != (byte) 0xA7
                                        && bytes[found + 7] != (byte) 0xAB)) {
                    found++;
                }
                at += found - index;
                if (found > last) {
                    continue;
                }
                if (at >= part.end()) {
                    return -1;
                }
                long size = Record.intAt(bytes, found) & 0xFFFFFFFFL;
                if (size <= file.end() - at
                        && take(at - file.base(), size, at, CHUNK)
                        && record.textsAreValid()) {
                    return at;
                }
                at++;
            }
            return -1;
        }
    }

    /** Reads the messages that a part of a consume queue names. */
    private static final class OfQueue extends StoreReader {
        // Records with no more than this between them are read together.
        private static final int NEAR = 4096;

        private final List<StoreFiles.LogFile> log;
        private final ByteBuffer units;
        private final int count;
        private int at;
        private int opened = -1;
        private int runEnd;
        private long runEndPlace;
        private boolean reported;

        OfQueue(Job job, Part part, TaskFiles task) throws IOException {
            super(job, part, task);
            units = StoreFiles.units(part.queue(), part.start(), part.end());
            count = units.capacity() / StoreFiles.UNIT_SIZE;
            log = task.logFiles();
        }

        @Override
        boolean advance() throws IOException {
            if (!reported) {
                reported = true;
                reportMissing();
            }
            while (at < count) {
                int unit = at++;
                int size = size(unit);
                if (!StoreFiles.isMessage(size)) {
                    continue;
                }
                long offset = offset(unit);
                int which = fileOf(offset);
                if (which != opened) {
                    open(log.get(which));
                    opened = which;
                    runEnd = 0;
                }
                StoreFiles.LogFile file = log.get(which);
                long place = offset - file.base();
                if (unit >= runEnd) {
                    findRun(unit, file);
                }
                long queueOffset = part.start() + unit;
                if (place >= 0
                        && place <= file.size() - size
                        && take(place, size, offset, runEndPlace - place)
                        && (part.queue().isBorrowed() || record.queueOffset() == queueOffset)) {
                    return true;
                }
                leaveOut(queueOffset, queueOffset + 1, file.path(), offset);
            }
            return false;
        }

        private int size(int unit) {
            return units.getInt(unit * StoreFiles.UNIT_SIZE + 8);
        }

        private long offset(int unit) {
            return units.getLong(unit * StoreFiles.UNIT_SIZE);
        }

        /** Retention may have shortened the log: places before its start count for its first file. */
        private int fileOf(long offset) throws IOException {
            if (log.isEmpty()) {
                throw new IOException(options.path + " has no commit log any more");
            }
            if (opened >= 0) {
                StoreFiles.LogFile file = log.get(opened);
                if (offset >= file.base() && offset < file.end()) {
                    return opened;
                }
            }
            int low = 0;
            int high = log.size();
            while (low < high) {
                int middle = (low + high) >>> 1;
                if (log.get(middle).base() <= offset) {
                    low = middle + 1;
                } else {
                    high = middle;
                }
            }
            return Math.max(low - 1, 0);
        }

        /** Find the units from this one on whose records lie so near to each other that one read has all. */
        private void findRun(int first, StoreFiles.LogFile file) {
            long begin = offset(first) - file.base();
            long end = begin + size(first);
            int unit = first + 1;
            while (unit < count) {
                int size = size(unit);
                long place = offset(unit) - file.base();
                if (!StoreFiles.isMessage(size)
                        || place < end
                        || place > end + NEAR
                        || place + size > begin + CHUNK) {
                    break;
                }
                end = place + size;
                unit++;
            }
            runEnd = unit;
            runEndPlace = end;
        }

        /** Report the units between messages that stand for no message. */
        private void reportMissing() throws IOException {
            int unit = 0;
            while (unit < count) {
                if (StoreFiles.isMessage(size(unit))) {
                    unit++;
                    continue;
                }
                int first = unit;
                while (unit < count && !StoreFiles.isMessage(size(unit))) {
                    unit++;
                }
                long start = part.start() + first;
                long end = part.start() + unit;
                leaveOut(start, end, part.queue().paths().get(0), start * StoreFiles.UNIT_SIZE);
            }
        }
    }
}
