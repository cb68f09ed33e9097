package cometmq.spark.store;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import net.jpountz.xxhash.XXHash32;
import net.jpountz.xxhash.XXHashFactory;

/**
 * Decompresses one frame of LZ4. (lz4-java, which Spark brings, refuses frames whose blocks build on one
 * another, as Python's lz4 makes them by default.)
 *
 * <pre>
 * magic 4, flags 1, block size 1, [content size 8], [dictionary 4], checksum of these 1
 * blocks: size 4 (the highest bit: not compressed), data, [checksum 4]; a size of 0 ends them
 * [checksum of the content 4]
 * </pre>
 */
final class Lz4Frame {
    private static final int MAGIC = 0x184D2204;
    private static final XXHash32 HASH = XXHashFactory.fastestJavaInstance().hash32();

    private final Bodies made;
    private final byte[] bytes;
    private final ByteBuffer frame;

    Lz4Frame(Bodies made, byte[] bytes, int from, int end) {
        this.made = made;
        this.bytes = bytes;
        this.frame = ByteBuffer.wrap(bytes, from, end - from).order(ByteOrder.LITTLE_ENDIAN);
    }

    boolean decompress() throws IOException {
        if (frame.remaining() < 7 || frame.getInt() != MAGIC) {
            return false;
        }
        int described = frame.position();
        int flags = frame.get();
        int sizes = frame.get();
        if ((flags >> 6 & 3) != 1 || (flags & 2) != 0 || (sizes & 0x8F) != 0 || sizes >> 4 < 4) {
            return false;
        }
        int maxBlock = 1 << 8 + 2 * (sizes >> 4);
        boolean linked = (flags & 0x20) == 0;
        boolean checksBlocks = (flags & 0x10) != 0;
        boolean checksContent = (flags & 4) != 0;
        need(8 * (flags >> 3 & 1) + 4 * (flags & 1) + 1);
        long declared = (flags & 8) != 0 ? frame.getLong() : -1;
        if ((flags & 1) != 0) {
            frame.getInt();
        }
        int hash = HASH.hash(bytes, described, frame.position() - described, 0);
        if ((hash >> 8 & 0xFF) != (frame.get() & 0xFF)) {
            return false;
        }
        while (true) {
            need(4);
            int head = frame.getInt();
            int length = head & 0x7FFFFFFF;
            if (head == 0) {
                break;
            }
            if (length > maxBlock) {
                return false;
            }
            need(length + (checksBlocks ? 4 : 0));
            int at = frame.position();
            frame.position(at + length);
            if (checksBlocks && frame.getInt() != HASH.hash(bytes, at, length, 0)) {
                return false;
            }
            if (head < 0) {
                made.grow(length);
                System.arraycopy(bytes, at, made.content, made.size, length);
                made.size += length;
            } else if (!block(at, at + length, linked ? 0 : made.size, maxBlock)) {
                return false;
            }
        }
        if (checksContent) {
            need(4);
            if (frame.getInt() != HASH.hash(made.content, 0, made.size, 0)) {
                return false;
            }
        }
        // A declared size of 0 counts as none, as in the library.
        return declared <= 0 || declared == made.size;
    }

    private void need(int count) throws IOException {
        if (frame.remaining() < count) {
            throw new IOException("the frame breaks off");
        }
    }

    /** Decompress a block; matches reach back to {@code oldest} at most. */
    private boolean block(int at, int end, int oldest, int maxBlock) throws IOException {
        int limit = made.size + maxBlock;
        while (at < end) {
            int token = bytes[at++] & 0xFF;
            int literals = token >> 4;
            if (literals == 15) {
                int more;
                do {
                    if (at >= end) {
                        return false;
                    }
                    more = bytes[at++] & 0xFF;
                    literals += more;
                } while (more == 255);
            }
            if (literals > end - at || literals > limit - made.size) {
                return false;
            }
            made.grow(literals);
            System.arraycopy(bytes, at, made.content, made.size, literals);
            made.size += literals;
            at += literals;
            if (at == end) {
                return true;
            }
            if (end - at < 2) {
                return false;
            }
            int distance = bytes[at] & 0xFF | (bytes[at + 1] & 0xFF) << 8;
            at += 2;
            int length = token & 15;
            if (length == 15) {
                int more;
                do {
                    if (at >= end) {
                        return false;
                    }
                    more = bytes[at++] & 0xFF;
                    length += more;
                } while (more == 255);
            }
            length += 4;
            if (distance == 0 || distance > made.size - oldest || length > limit - made.size) {
                return false;
            }
            made.grow(length);
            byte[] content = made.content;
            // A match may overlap what it makes, so it is copied from its beginning.
            for (int to = made.size, done = to + length; to < done; to++) {
                content[to] = content[to - distance];
            }
            made.size += length;
        }
        // A block ends with literals.
        return false;
    }
}
