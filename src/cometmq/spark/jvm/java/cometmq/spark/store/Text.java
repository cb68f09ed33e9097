package cometmq.spark.store;

import java.util.Arrays;

/** Checks UTF-8 and replaces what is none, byte for byte as Python's {@code decode("utf-8", "replace")}. */
final class Text {
    private static final byte[] REPLACEMENT = {(byte) 0xEF, (byte) 0xBF, (byte) 0xBD};

    private Text() {}

    static boolean isValid(byte[] bytes, int from, int end) {
        for (int at = from; at < end; ) {
            if (bytes[at] >= 0) {
                at++;
                continue;
            }
            int length = length(bytes, at, end);
            if (length < 0) {
                return false;
            }
            at += length;
        }
        return true;
    }

    /**
     * Return the text with U+FFFD for each longest run of bytes that cannot be a character. (Java's own
     * decoder takes three bytes of a surrogate together, Python's one by one.)
     */
    static byte[] cleaned(byte[] bytes, int from, int end) {
        byte[] made = new byte[3 * (end - from)];
        int size = 0;
        for (int at = from; at < end; ) {
            int length = length(bytes, at, end);
            if (length > 0) {
                System.arraycopy(bytes, at, made, size, length);
                size += length;
            } else {
                System.arraycopy(REPLACEMENT, 0, made, size, REPLACEMENT.length);
                size += REPLACEMENT.length;
            }
            at += Math.abs(length);
        }
        return Arrays.copyOf(made, size);
    }

    /** Return the length of the character at a place; negative, of the bytes to replace, if it is none. */
    private static int length(byte[] bytes, int at, int end) {
        int first = bytes[at] & 0xFF;
        if (first < 0x80) {
            return 1;
        }
        int wanted = first < 0xC2 || first > 0xF4 ? 0 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
        if (wanted == 0) {
            return -1;
        }
        int low = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
        int high = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
        for (int done = 1; done < wanted; done++) {
            if (at + done >= end) {
                return -done;
            }
            int next = bytes[at + done] & 0xFF;
            if (next < low || next > high) {
                return -done;
            }
            low = 0x80;
            high = 0xBF;
        }
        return wanted;
    }
}
