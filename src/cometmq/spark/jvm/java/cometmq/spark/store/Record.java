package cometmq.spark.store;

import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.nio.ByteOrder;
import java.util.zip.CRC32;

/**
 * A record of the log, by its places in an array of bytes (layout: {@code cometmq.protocol.messages.record_layout}).
 *
 * <p>Every length is checked before it is used, so that no bytes lead outside of the record.
 */
final class Record {
    static final int HEAD_SIZE = 8;
    static final int MIN_SIZE = 91;
    static final int MAGIC_V1 = 0xDAA320A7;
    static final int MAGIC_V2 = 0xDAA320AB;
    static final int MAGIC_BLANK = 0xCBD43194;

    private static final int BORN_HOST_V6 = 0x10;
    private static final int STORE_HOST_V6 = 0x20;
    private static final int TRANSACTION_MASK = 0xC;
    private static final int TRANSACTION_COMMIT = 0x8;
    private static final VarHandle INT =
            MethodHandles.byteArrayViewVarHandle(int[].class, ByteOrder.BIG_ENDIAN);
    private static final VarHandle LONG =
            MethodHandles.byteArrayViewVarHandle(long[].class, ByteOrder.BIG_ENDIAN);
    private static final VarHandle SHORT =
            MethodHandles.byteArrayViewVarHandle(short[].class, ByteOrder.BIG_ENDIAN);

    byte[] bytes;
    int at;
    int end;
    int sysFlag;
    int bornHostEnd;
    int storeHostAt;
    int storeHostEnd;
    int bodyAt;
    int bodyEnd;
    int topicAt;
    int topicEnd;
    int propertiesAt;

    private final CRC32 crc = new CRC32();

    static int intAt(byte[] bytes, int place) {
        return (int) INT.get(bytes, place);
    }

    static long longAt(byte[] bytes, int place) {
        return (long) LONG.get(bytes, place);
    }

    static int shortAt(byte[] bytes, int place) {
        return (short) SHORT.get(bytes, place) & 0xFFFF;
    }

    /**
     * Take the record of {@code size} bytes at {@code at}, all of which are in the array; say whether it is
     * one, by its magic, its own offset and the lengths of its fields.
     */
    boolean take(byte[] bytes, int at, int size, long offset) {
        if (size < MIN_SIZE) {
            return false;
        }
        int magic = intAt(bytes, at + 4);
        if (magic != MAGIC_V1 && magic != MAGIC_V2 || longAt(bytes, at + 28) != offset) {
            return false;
        }
        this.bytes = bytes;
        this.at = at;
        end = at + size;
        sysFlag = intAt(bytes, at + 36);
        bornHostEnd = at + 48 + ((sysFlag & BORN_HOST_V6) != 0 ? 20 : 8);
        storeHostAt = bornHostEnd + 8;
        storeHostEnd = storeHostAt + ((sysFlag & STORE_HOST_V6) != 0 ? 20 : 8);
        bodyAt = storeHostEnd + 16;
        int width = magic == MAGIC_V2 ? 2 : 1;
        int left = end - bodyAt - width - 2;
        if (left < 0) {
            return false;
        }
        int length = intAt(bytes, bodyAt - 4);
        if (length < 0 || length > left) {
            return false;
        }
        left -= length;
        bodyEnd = bodyAt + length;
        topicAt = bodyEnd + width;
        length = width == 2 ? shortAt(bytes, bodyEnd) : bytes[bodyEnd] & 0xFF;
        if (length > left) {
            return false;
        }
        left -= length;
        topicEnd = topicAt + length;
        propertiesAt = topicEnd + 2;
        return shortAt(bytes, topicEnd) == left;
    }

    /** Say whether the body is the one that was stored; an empty one is not checked. */
    boolean crcHolds() {
        if (bodyAt == bodyEnd) {
            return true;
        }
        crc.reset();
        crc.update(bytes, bodyAt, bodyEnd - bodyAt);
        return (int) (crc.getValue() & 0x7FFFFFFF) == intAt(bytes, at + 8);
    }

    boolean textsAreValid() {
        return Text.isValid(bytes, topicAt, topicEnd) && Text.isValid(bytes, propertiesAt, end);
    }

    /** Say whether a consume queue lists the record: neither a half message nor one rolled back. */
    boolean isDispatched() {
        int kind = sysFlag & TRANSACTION_MASK;
        return kind == 0 || kind == TRANSACTION_COMMIT;
    }

    int queueId() {
        return intAt(bytes, at + 12);
    }

    long queueOffset() {
        return longAt(bytes, at + 20);
    }

    long bornTimestamp() {
        return longAt(bytes, at + 40);
    }

    long storeTimestamp() {
        return longAt(bytes, bornHostEnd);
    }
}
