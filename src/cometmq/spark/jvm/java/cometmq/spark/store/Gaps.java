package cometmq.spark.store;

import java.io.IOException;
import java.io.Serializable;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;

/**
 * Notes what a read leaves out, in the same files as Python's {@code cometmq.spark.gaps}, so that a gap that
 * both readers find counts once. Without a directory, gaps are not allowed.
 */
final class Gaps implements Serializable {
    private static final long serialVersionUID = 1;
    private static final String DAMAGE = "damage";

    private final String directory;
    private final String broker;

    Gaps(String directory, String broker) {
        this.directory = directory;
        this.broker = broker;
    }

    void check() throws Unfit {
        if (directory == null) {
            return;
        }
        try {
            Files.createDirectories(Path.of(directory));
        } catch (IOException error) {
            throw new Unfit("gapLog is no directory");
        }
        if (!Files.isWritable(Path.of(directory))) {
            throw new Unfit("gapLog cannot be written to");
        }
    }

    /** Leave out bytes of the log; throw StoreCorruptException if gaps are not allowed. */
    void bytes(long start, long end, String path) throws IOException {
        String what = (end - start) + " bytes of the commit log from " + start + " on (" + DAMAGE + ")";
        leaveOut(null, null, start, end, what, path, start);
    }

    /** Leave out offsets of a queue; throw StoreCorruptException if gaps are not allowed. */
    void offsets(String topic, int queueId, long start, long end, String path, long place)
            throws IOException {
        String at = topic + "@" + (broker == null ? "?" : broker) + ":" + queueId;
        String what = "offsets " + start + " to " + (end - 1) + " of " + at + " (" + DAMAGE + ")";
        leaveOut(topic, queueId, start, end, what, path, place);
    }

    private void leaveOut(
            String topic, Integer queueId, long start, long end, String what, String path, long place)
            throws IOException {
        if (directory == null) {
            throw new StoreCorruptException(
                    path + ": no record is at offset " + place + " where one belongs; " + what
                            + " would be left out. `cometmq store check` says more; "
                            + "failOnDataLoss=false with gapLog=<directory> reads on behind it and keeps "
                            + "a list");
        }
        String[] names = {"topic", "broker", "queue_id", "start", "end", "cause", "count"};
        String[] values = {
            text(topic), text(broker), String.valueOf(queueId), String.valueOf(start),
            String.valueOf(end), text(DAMAGE), String.valueOf(end - start)
        };
        StringBuilder line = new StringBuilder("{");
        for (int at = 0; at < names.length; at++) {
            line.append(at == 0 ? "" : ",").append(text(names[at])).append(':').append(values[at]);
        }
        line.append("}\n");
        String name = digest("[" + String.join(",", values) + "]");
        Path folder = Files.createDirectories(Path.of(directory));
        // Readers pass over names that begin with a dot.
        String writer = ProcessHandle.current().pid() + "-" + Thread.currentThread().getId();
        Path unfinished = folder.resolve("." + name + "." + writer);
        try {
            Files.writeString(unfinished, line);
            Files.move(
                    unfinished, folder.resolve(name + ".json"), StandardCopyOption.ATOMIC_MOVE);
        } finally {
            Files.deleteIfExists(unfinished);
        }
    }

    private static String digest(String text) {
        try {
            byte[] hash =
                    MessageDigest.getInstance("SHA-256").digest(text.getBytes(StandardCharsets.UTF_8));
            StringBuilder digits = new StringBuilder();
            for (int at = 0; at < 16; at++) {
                digits.append(String.format("%02x", hash[at]));
            }
            return digits.toString();
        } catch (NoSuchAlgorithmException error) {
            throw new IllegalStateException(error); // every Java has it
        }
    }

    /** Write a text as JSON, as msgspec does: the names of files are made of it. */
    private static String text(String text) {
        if (text == null) {
            return "null";
        }
        StringBuilder json = new StringBuilder("\"");
        for (int at = 0; at < text.length(); at++) {
            char letter = text.charAt(at);
            switch (letter) {
                case '"', '\\' -> json.append('\\').append(letter);
                case '\n' -> json.append("\\n");
                case '\r' -> json.append("\\r");
                case '\t' -> json.append("\\t");
                case '\b' -> json.append("\\b");
                case '\f' -> json.append("\\f");
                default -> {
                    if (letter < 0x20) {
                        json.append(String.format("\\u%04x", (int) letter));
                    } else {
                        json.append(letter);
                    }
                }
            }
        }
        return json.append('"').toString();
    }
}
