package cometmq.spark.store;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;

/**
 * The part of a file of the log that is in memory.
 *
 * <p>Files are read, not mapped: a file that a cleaner or an operator shortens meanwhile then gives fewer
 * bytes, where a mapping would end the JVM or throw errors out of any line that looks at it.
 */
final class LogWindow implements AutoCloseable {
    static final int STANDARD = 256 * 1024;
    // What a large record needed beyond this is given back when a small one is read.
    private static final int KEPT = 4 * 1024 * 1024;

    private final FileChannel channel;
    private final long size;
    private long start;
    private int length;

    byte[] bytes;

    /** How many bytes were read. */
    long read;

    /** Read into an array of STANDARD bytes or more, which {@code bytes} replaces by a larger one if it has to. */
    LogWindow(StoreFiles.LogFile file, byte[] bytes) throws IOException {
        this.bytes = bytes;
        channel = FileChannel.open(Path.of(file.path()), StandardOpenOption.READ);
        size = file.size();
    }

    /**
     * Have these bytes of the file in memory, and read up to {@code ahead} bytes if some are not; return
     * false if the file does not have them.
     */
    boolean holds(long place, int count, long ahead) throws IOException {
        if (place >= start && place + count <= start + length) {
            return true;
        }
        if (place < 0 || count < 0 || place > size - count) {
            return false;
        }
        if (count > bytes.length || bytes.length > KEPT && count <= STANDARD) {
            bytes = new byte[Math.max(count, STANDARD)];
        }
        start = place;
        length = 0;
        int wanted = (int) Math.min(Math.max(count, Math.min(ahead, bytes.length)), size - place);
        ByteBuffer into = ByteBuffer.wrap(bytes, 0, wanted);
        while (into.hasRemaining()) {
            int got = channel.read(into, place + into.position());
            if (got < 0) {
                break;
            }
            read += got;
        }
        length = into.position();
        return length >= count;
    }

    /** Return the place in {@code bytes} of a place in the file that it holds. */
    int index(long place) {
        return (int) (place - start);
    }

    /** Return how many bytes are in memory from a place on. */
    int left(long place) {
        return (int) (start + length - place);
    }

    @Override
    public void close() throws IOException {
        channel.close();
    }
}
