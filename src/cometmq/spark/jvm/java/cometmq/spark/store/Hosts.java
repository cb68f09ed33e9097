package cometmq.spark.store;

import java.nio.charset.StandardCharsets;
import java.util.Arrays;

/** Writes packed hosts as {@code ip:port} and as hex text, as Python does. A store has few of them. */
final class Hosts {
    private static final char[] DIGITS = "0123456789ABCDEF".toCharArray();

    private byte[] known = new byte[0];
    private byte[] text;
    private byte[] hex;

    byte[] text(byte[] bytes, int from, int end) {
        look(bytes, from, end);
        return text;
    }

    byte[] hex(byte[] bytes, int from, int end) {
        look(bytes, from, end);
        return hex;
    }

    private void look(byte[] bytes, int from, int end) {
        if (Arrays.equals(known, 0, known.length, bytes, from, end)) {
            return;
        }
        known = Arrays.copyOfRange(bytes, from, end);
        StringBuilder digits = new StringBuilder();
        for (byte one : known) {
            digits.append(DIGITS[one >> 4 & 15]).append(DIGITS[one & 15]);
        }
        hex = digits.toString().getBytes(StandardCharsets.US_ASCII);
        int address = known.length - 4;
        String host = address == 4 ? v4(known, 0) : v6(known);
        String shown = host + ":" + Integer.toUnsignedString(Record.intAt(known, address));
        text = shown.getBytes(StandardCharsets.US_ASCII);
    }

    private static String v4(byte[] bytes, int at) {
        return (bytes[at] & 0xFF) + "." + (bytes[at + 1] & 0xFF) + "." + (bytes[at + 2] & 0xFF) + "."
                + (bytes[at + 3] & 0xFF);
    }

    /** Shorten the longest run of zeros, as inet_ntop does. */
    private static String v6(byte[] bytes) {
        int best = -1;
        int longest = 1;
        for (int at = 0; at < 8; at++) {
            int run = 0;
            while (at + run < 8 && Record.shortAt(bytes, 2 * (at + run)) == 0) {
                run++;
            }
            if (run > longest) {
                best = at;
                longest = run;
            }
            at += run;
        }
        StringBuilder text = new StringBuilder();
        for (int at = 0; at < 8; at++) {
            if (at == best) {
                text.append(at == 0 ? "::" : ":");
                at += longest - 1;
                continue;
            }
            // An IPv4 address inside of an IPv6 one.
            boolean holdsV4 = longest == 6 || longest == 5 && Record.shortAt(bytes, 10) == 0xFFFF;
            if (at == 6 && best == 0 && holdsV4) {
                return text.append(v4(bytes, 12)).toString();
            }
            text.append(Integer.toHexString(Record.shortAt(bytes, 2 * at)));
            if (at < 7) {
                text.append(':');
            }
        }
        return text.toString();
    }
}
