package cometmq.spark.store;

import com.github.luben.zstd.Zstd;
import com.github.luben.zstd.ZstdException;
import com.github.luben.zstd.ZstdInputStreamNoFinalizer;
import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.nio.BufferUnderflowException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.Arrays;
import java.util.zip.DataFormatException;
import java.util.zip.Inflater;

/**
 * Decompresses bodies (Python: {@code cometmq.protocol.messages.compression}). What a frame declares is checked before
 * anything is allocated, and no body takes more than MAX_BYTES.
 */
final class Bodies implements AutoCloseable {
    static final int COMPRESSED = 0x1;

    private static final int MAX_BYTES = 64 * 1024 * 1024;
    private static final int KIND_MASK = 0x700;
    private static final int LZ4 = 0x100;
    private static final int ZSTD = 0x200;
    private static final int ZLIB = 0x300;
    private static final int ZSTD_MAGIC = 0xFD2FB528;

    /** The content, up to {@code size}; valid until the next call. */
    byte[] content = new byte[16 * 1024];

    int size;

    private final Inflater inflater = new Inflater();

    /** Decompress a body; return false if it is damaged, too large, or of an unknown kind. */
    boolean decompress(byte[] bytes, int from, int end, int sysFlag) {
        size = 0;
        try {
            switch (sysFlag & KIND_MASK) {
                case 0, ZLIB:
                    return inflate(bytes, from, end);
                case LZ4:
                    return new Lz4Frame(this, bytes, from, end).decompress();
                case ZSTD:
                    return unzstd(bytes, from, end);
                default:
                    return false;
            }
        } catch (DataFormatException
                | IOException
                | ZstdException
                | BufferUnderflowException
                | IndexOutOfBoundsException error) {
            return false;
        }
    }

    /** Make room for so many more bytes; throw where that were too many. */
    void grow(int more) throws IOException {
        if (more < 0 || more > MAX_BYTES - size) {
            throw new IOException("more than " + MAX_BYTES + " bytes");
        }
        if (size + more > content.length) {
            content = Arrays.copyOf(content, Math.min(MAX_BYTES, Math.max(size + more, 2 * size)));
        }
    }

    private boolean inflate(byte[] bytes, int from, int end) throws DataFormatException, IOException {
        inflater.reset();
        inflater.setInput(bytes, from, end - from);
        while (true) {
            int count = inflater.inflate(content, size, content.length - size);
            size += count;
            if (inflater.finished()) {
                return true;
            }
            if (count == 0) {
                if (inflater.needsInput() || inflater.needsDictionary()) {
                    return false;
                }
                // One more byte than allowed tells a body of exactly the limit from a larger one.
                if (size == MAX_BYTES) {
                    return inflater.inflate(new byte[1]) == 0 && inflater.finished();
                }
                grow(1);
            }
        }
    }

    private boolean unzstd(byte[] bytes, int from, int end) throws IOException {
        ByteBuffer frame = ByteBuffer.wrap(bytes, from, end - from).order(ByteOrder.LITTLE_ENDIAN);
        if (end - from < 6 || frame.getInt() != ZSTD_MAGIC) {
            return false;
        }
        int form = frame.get();
        boolean single = (form & 0x20) != 0;
        if (!single) {
            frame.get();
        }
        int dictionary = form & 3;
        skip(frame, dictionary == 3 ? 4 : dictionary);
        long declared =
                switch (form >> 6 & 3) {
                    case 0 -> single ? frame.get() & 0xFF : -1;
                    case 1 -> (frame.getShort() & 0xFFFF) + 256;
                    case 2 -> frame.getInt() & 0xFFFFFFFFL;
                    default -> {
                        long read = frame.getLong();
                        yield read < 0 ? Long.MAX_VALUE : read;
                    }
                };
        if (declared == 0) {
            return true;
        }
        if (declared > MAX_BYTES) {
            return false;
        }
        int length = frameLength(frame, (form & 4) != 0) - from;
        if (declared > 0) {
            grow((int) declared);
            long made = Zstd.decompressByteArray(content, 0, (int) declared, bytes, from, length);
            size = (int) made;
            return made == declared;
        }
        try (InputStream in =
                new ZstdInputStreamNoFinalizer(new ByteArrayInputStream(bytes, from, length))) {
            while (true) {
                if (size == content.length && size < MAX_BYTES) {
                    grow(1);
                }
                int count = size < MAX_BYTES ? in.read(content, size, content.length - size) : -in.read();
                if (count == -1 || count == 1 && size == MAX_BYTES) {
                    return true;
                }
                if (size == MAX_BYTES) {
                    return false;
                }
                size += count;
            }
        }
    }

    /** Return where the frame ends whose blocks begin here: what follows it does not count. */
    private static int frameLength(ByteBuffer frame, boolean hasChecksum) throws IOException {
        while (true) {
            int header = frame.get() & 0xFF | (frame.getShort() & 0xFFFF) << 8;
            int kind = header >> 1 & 3;
            if (kind == 3) {
                throw new IOException("a block of a reserved kind");
            }
            skip(frame, kind == 1 ? 1 : header >> 3);
            if ((header & 1) != 0) {
                skip(frame, hasChecksum ? 4 : 0);
                return frame.position();
            }
        }
    }

    private static void skip(ByteBuffer frame, int count) throws IOException {
        if (count > frame.remaining()) {
            throw new IOException("the frame breaks off");
        }
        frame.position(frame.position() + count);
    }

    @Override
    public void close() {
        inflater.end();
    }
}
