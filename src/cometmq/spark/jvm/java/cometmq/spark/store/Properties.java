package cometmq.spark.store;

import java.security.SecureRandom;
import java.util.Arrays;

/**
 * The properties of a record, {@code name 01 value 02} repeated, as places in its bytes.
 *
 * <p>An entry without a name or a value does not exist. Of entries with the same name the last counts, but of
 * the unique id the first: behind it, brokers write the id of the batch that the message came in.
 */
final class Properties {
    private static final byte NAME_END = 1;
    private static final byte ENTRY_END = 2;
    private static final long FACTOR = new SecureRandom().nextLong() | 1;

    /** Four places for each entry: where its name begins and ends, and its value. */
    int[] places = new int[4 * 16];

    int count;
    boolean isAscii;

    /** Where the last unique id is, if it differs from the first; -1 if it does not. */
    int batchIdAt;

    int batchIdEnd;

    private byte[] bytes;

    void take(Record record) {
        bytes = record.bytes;
        count = 0;
        int seen = 0;
        for (int at = record.topicAt; at < record.topicEnd; at++) {
            seen |= bytes[at];
            if (bytes[at] == ENTRY_END) {
                // What follows in the topic reads as entries, as everything between two 02.
                seen |= entries(at + 1, record.topicEnd);
                break;
            }
        }
        seen |= entries(record.propertiesAt, record.end);
        isAscii = seen >= 0;
        batchIdAt = -1;
        dropDoubles();
    }

    private void takeBatchId(int first, int last) {
        int from = places[4 * last + 2];
        int end = places[4 * last + 3];
        boolean same =
                Arrays.equals(
                        bytes, places[4 * first + 2], places[4 * first + 3], bytes, from, end);
        batchIdAt = same ? -1 : from;
        batchIdEnd = end;
    }

    /** Take the entries of a text; return all its bytes joined by OR, which tell whether it is ASCII. */
    private int entries(int from, int end) {
        byte[] bytes = this.bytes;
        int seen = 0;
        int start = from;
        int nameEnd = -1;
        for (int at = from; at <= end; at++) {
            byte letter = at < end ? bytes[at] : ENTRY_END;
            seen |= letter;
            if (letter > ENTRY_END || letter <= 0) {
                continue;
            }
            if (letter == NAME_END) {
                if (nameEnd < 0) {
                    nameEnd = at;
                }
                continue;
            }
            if (nameEnd > start && nameEnd + 1 < at) {
                add(start, nameEnd, at);
            }
            start = at + 1;
            nameEnd = -1;
        }
        return seen;
    }

    private void add(int start, int nameEnd, int end) {
        int at = 4 * count++;
        if (at == places.length) {
            places = Arrays.copyOf(places, 2 * at);
        }
        places[at] = start;
        places[at + 1] = nameEnd;
        places[at + 2] = nameEnd + 1;
        places[at + 3] = end;
    }

    /** Few entries are compared with one another; many go through a table, so that time stays linear. */
    private void dropDoubles() {
        if (count < 2) {
            return;
        }
        if (count > 24) {
            dropDoublesOfMany();
            return;
        }
        boolean found = false;
        for (int one = 0; one < count - 1; one++) {
            for (int other = one + 1; other < count; other++) {
                if (!sameName(one, other)) {
                    continue;
                }
                found = true;
                if (isUniqueId(one)) {
                    takeBatchId(one, other);
                    places[4 * other] = -1;
                } else {
                    places[4 * one] = -1;
                    break;
                }
            }
        }
        if (found) {
            squeeze();
        }
    }

    private void dropDoublesOfMany() {
        int mask = Integer.highestOneBit(4 * count) - 1;
        int[] table = new int[mask + 1];
        boolean found = false;
        for (int entry = 0; entry < count; entry++) {
            int slot = slot(places[4 * entry], places[4 * entry + 1]) & mask;
            while (table[slot] != 0 && !sameName(table[slot] - 1, entry)) {
                slot = slot + 1 & mask;
            }
            if (table[slot] == 0) {
                table[slot] = entry + 1;
                continue;
            }
            found = true;
            if (isUniqueId(entry)) {
                takeBatchId(table[slot] - 1, entry);
                dropped(entry);
            } else {
                dropped(table[slot] - 1);
                table[slot] = entry + 1;
            }
        }
        if (found) {
            squeeze();
        }
    }

    /**
     * Return a number for a name. Whoever writes properties does not know FACTOR, so cannot choose names
     * that all get the same place, which would take time as the square of their number.
     */
    private int slot(int from, int end) {
        long hash = end - from;
        for (int at = from; at < end; at++) {
            hash = (hash + bytes[at]) * FACTOR;
        }
        hash ^= hash >>> 32;
        return (int) (hash * FACTOR >>> 33);
    }

    /** Mark an entry, whose name must stay readable for the comparisons to come. */
    private void dropped(int entry) {
        places[4 * entry + 3] = -1;
    }

    private boolean isUniqueId(int entry) {
        return isName(entry, Names.UNIQUE_ID);
    }

    private boolean sameName(int one, int other) {
        int from = places[4 * one];
        int second = places[4 * other];
        int length = places[4 * one + 1] - from;
        return from >= 0
                && second >= 0
                && length == places[4 * other + 1] - second
                && bytes[from] == bytes[second]
                && Arrays.equals(
                        bytes, from, places[4 * one + 1], bytes, second, places[4 * other + 1]);
    }

    private void squeeze() {
        int kept = 0;
        for (int entry = 0; entry < count; entry++) {
            if (places[4 * entry] >= 0 && places[4 * entry + 3] >= 0) {
                System.arraycopy(places, 4 * entry, places, 4 * kept++, 4);
            }
        }
        count = kept;
    }

    /** Return the index of the entry with that name, -1 if there is none. */
    int find(byte[] name) {
        for (int entry = 0; entry < count; entry++) {
            if (isName(entry, name)) {
                return entry;
            }
        }
        return -1;
    }

    private boolean isName(int entry, byte[] name) {
        int from = places[4 * entry];
        int length = places[4 * entry + 1] - from;
        if (length != name.length || bytes[from] != name[0]) {
            return false;
        }
        for (int at = 1; at < length; at++) {
            if (bytes[from + at] != name[at]) {
                return false;
            }
        }
        return true;
    }

    int valueAt(int entry) {
        return places[4 * entry + 2];
    }

    int valueEnd(int entry) {
        return places[4 * entry + 3];
    }
}
