package cometmq.spark.store;

import java.nio.charset.StandardCharsets;
import org.apache.spark.sql.catalyst.expressions.UnsafeRow;
import org.apache.spark.sql.catalyst.expressions.codegen.UnsafeArrayWriter;
import org.apache.spark.sql.catalyst.expressions.codegen.UnsafeRowWriter;
import org.apache.spark.unsafe.Platform;

/** Makes Spark's rows of records, the same values as Python's {@code record_batches}. */
final class RowMaker implements AutoCloseable {
    private static final long MAX_MS = Long.MAX_VALUE / 1000;
    private static final byte[] HEX = "0123456789ABCDEF".getBytes(StandardCharsets.US_ASCII);
    private static final byte[][] TRANSACTION_TYPES = {
        null, ascii("prepared"), ascii("commit"), ascii("rollback")
    };

    private final Column[] columns;
    private final byte[] broker;
    private final boolean decompresses;
    private final boolean needsProperties;
    private final boolean needsBody;
    private final UnsafeRowWriter row;
    private final UnsafeArrayWriter texts;
    private final Properties properties;
    private final Bodies bodies = new Bodies();
    private final Hosts bornHosts = new Hosts();
    private final Hosts storeHosts = new Hosts();
    private final byte[] offsetId = new byte[40 + 16];

    RowMaker(Column[] columns, String broker, boolean decompresses, Properties properties) {
        this.columns = columns;
        this.broker = broker == null ? null : broker.getBytes(StandardCharsets.UTF_8);
        this.decompresses = decompresses;
        this.properties = properties;
        boolean properties_ = false;
        boolean body = false;
        for (Column column : columns) {
            properties_ |= column.needsProperties();
            body |= column.needsBody();
        }
        needsProperties = properties_;
        needsBody = body;
        row = new UnsafeRowWriter(columns.length, 1024);
        texts = new UnsafeArrayWriter(row, 8);
    }

    private static byte[] ascii(String text) {
        return text.getBytes(StandardCharsets.US_ASCII);
    }

    /** Return the row of a record, which is valid until the next one; {@code parsed}: its properties are. */
    UnsafeRow row(Record record, boolean parsed) {
        if (needsProperties && !parsed) {
            properties.take(record);
        }
        boolean opened =
                needsBody
                        && decompresses
                        && (record.sysFlag & Bodies.COMPRESSED) != 0
                        && bodies.decompress(record.bytes, record.bodyAt, record.bodyEnd, record.sysFlag);
        row.reset();
        row.zeroOutNullBytes();
        for (int at = 0; at < columns.length; at++) {
            write(at, columns[at], record, opened);
        }
        return row.getRow();
    }

    private void write(int at, Column column, Record record, boolean opened) {
        byte[] bytes = record.bytes;
        switch (column) {
            case TOPIC -> text(at, bytes, record.topicAt, record.topicEnd);
            case BROKER -> ready(at, broker);
            case QUEUE_ID -> row.write(at, record.queueId());
            case QUEUE_OFFSET -> row.write(at, record.queueOffset());
            case COMMIT_LOG_OFFSET -> row.write(at, Record.longAt(bytes, record.at + 28));
            case MSG_ID -> {
                int entry = properties.find(Names.UNIQUE_ID);
                if (entry < 0) {
                    offsetId(at, record);
                } else {
                    value(at, bytes, entry);
                }
            }
            case OFFSET_MSG_ID -> offsetId(at, record);
            case BATCH_MSG_ID -> {
                if (properties.batchIdAt < 0) {
                    row.setNullAt(at);
                } else {
                    text(at, bytes, properties.batchIdAt, properties.batchIdEnd);
                }
            }
            case KEYS -> keys(at, bytes);
            case TAGS -> value(at, bytes, properties.find(Names.TAGS));
            case BODY -> {
                if (opened) {
                    row.write(at, bodies.content, 0, bodies.size);
                } else {
                    row.write(at, bytes, record.bodyAt, record.bodyEnd - record.bodyAt);
                }
            }
            case PROPERTIES -> map(at, bytes);
            case BORN_TIME -> row.write(at, time(record.bornTimestamp()));
            case STORE_TIME -> row.write(at, time(record.storeTimestamp()));
            case BORN_HOST -> ready(at, bornHosts.text(bytes, record.at + 48, record.bornHostEnd));
            case STORE_HOST ->
                    ready(at, storeHosts.text(bytes, record.storeHostAt, record.storeHostEnd));
            case RECONSUME_TIMES -> row.write(at, Record.intAt(bytes, record.storeHostEnd));
            case FLAG -> row.write(at, Record.intAt(bytes, record.at + 16));
            case SYS_FLAG ->
                    row.write(at, opened ? record.sysFlag & ~Bodies.COMPRESSED : record.sysFlag);
            case BODY_CRC -> row.write(at, Record.intAt(bytes, record.at + 8));
            case TRANSACTION_TYPE -> ready(at, TRANSACTION_TYPES[record.sysFlag >> 2 & 3]);
            case TRANSACTION_ID -> value(at, bytes, properties.find(Names.TRANSACTION_ID));
            case PREPARED_TRANSACTION_OFFSET ->
                    row.write(at, Record.longAt(bytes, record.storeHostEnd + 4));
            case DELAY_LEVEL -> {
                long level = number(bytes, properties.find(Names.DELAY_LEVEL), 9);
                if (level < 0) {
                    row.setNullAt(at);
                } else {
                    row.write(at, (int) level);
                }
            }
            case DELIVER_TIME -> {
                int entry = properties.find(Names.TIMER_DELIVER);
                if (entry < 0) {
                    entry = properties.find(Names.TIMER_OUT);
                }
                long time = number(bytes, entry, 18);
                if (time < 0) {
                    row.setNullAt(at);
                } else {
                    row.write(at, time(time));
                }
            }
        }
    }

    private static long time(long milliseconds) {
        return Math.max(-MAX_MS, Math.min(MAX_MS, milliseconds)) * 1000;
    }

    private void ready(int at, byte[] text) {
        if (text == null) {
            row.setNullAt(at);
        } else {
            row.write(at, text, 0, text.length);
        }
    }

    private void text(int at, byte[] bytes, int from, int end) {
        if (Text.isValid(bytes, from, end)) {
            row.write(at, bytes, from, end - from);
        } else {
            ready(at, Text.cleaned(bytes, from, end));
        }
    }

    private void value(int at, byte[] bytes, int entry) {
        if (entry < 0) {
            row.setNullAt(at);
            return;
        }
        int from = properties.valueAt(entry);
        int end = properties.valueEnd(entry);
        if (properties.isAscii) {
            row.write(at, bytes, from, end - from);
        } else {
            text(at, bytes, from, end);
        }
    }

    private void offsetId(int at, Record record) {
        byte[] host = storeHosts.hex(record.bytes, record.storeHostAt, record.storeHostEnd);
        System.arraycopy(host, 0, offsetId, 0, host.length);
        long offset = Record.longAt(record.bytes, record.at + 28);
        for (int place = host.length + 15; place >= host.length; place--) {
            offsetId[place] = HEX[(int) offset & 15];
            offset >>>= 4;
        }
        row.write(at, offsetId, 0, host.length + 16);
    }

    /** Return the number that a property of so many digits at most is, -1 for any other text. */
    private long number(byte[] bytes, int entry, int digits) {
        if (entry < 0) {
            return -1;
        }
        int from = properties.valueAt(entry);
        int end = properties.valueEnd(entry);
        if (end - from > digits) {
            return -1;
        }
        long number = 0;
        for (int at = from; at < end; at++) {
            int digit = bytes[at] - '0';
            if (digit < 0 || digit > 9) {
                return -1;
            }
            number = 10 * number + digit;
        }
        return number;
    }

    private void keys(int at, byte[] bytes) {
        int before = row.cursor();
        int entry = properties.find(Names.KEYS);
        int count = 0;
        int from = 0;
        int end = 0;
        if (entry >= 0) {
            from = properties.valueAt(entry);
            end = properties.valueEnd(entry);
            for (int place = from; place < end; place++) {
                if (bytes[place] != ' ' && (place + 1 == end || bytes[place + 1] == ' ')) {
                    count++;
                }
            }
        }
        texts.initialize(count);
        int word = from;
        for (int done = 0; done < count; done++) {
            while (bytes[word] == ' ') {
                word++;
            }
            int wordEnd = word;
            while (wordEnd < end && bytes[wordEnd] != ' ') {
                wordEnd++;
            }
            element(done, bytes, word, wordEnd);
            word = wordEnd;
        }
        row.setOffsetAndSizeFromPreviousCursor(at, before);
    }

    private void map(int at, byte[] bytes) {
        int before = row.cursor();
        int count = properties.count;
        int[] places = properties.places;
        // The length of the keys' array stands in front of it.
        row.grow(8);
        row.increaseCursor(8);
        texts.initialize(count);
        for (int entry = 0; entry < count; entry++) {
            element(entry, bytes, places[4 * entry], places[4 * entry + 1]);
        }
        int keysEnd = row.cursor();
        texts.initialize(count);
        for (int entry = 0; entry < count; entry++) {
            element(entry, bytes, places[4 * entry + 2], places[4 * entry + 3]);
        }
        Platform.putLong(row.getBuffer(), before, keysEnd - before - 8);
        row.setOffsetAndSizeFromPreviousCursor(at, before);
    }

    private void element(int at, byte[] bytes, int from, int end) {
        if (properties.isAscii || Text.isValid(bytes, from, end)) {
            texts.write(at, bytes, from, end - from);
        } else {
            byte[] cleaned = Text.cleaned(bytes, from, end);
            texts.write(at, cleaned, 0, cleaned.length);
        }
    }

    @Override
    public void close() {
        bodies.close();
    }
}
