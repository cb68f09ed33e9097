package cometmq.spark.store;

import com.sun.nio.file.ExtendedOpenOption;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;

/**
 * Finds the part at the end of a file that was never written, which is most of a consume queue's file.
 *
 * <p>Java does not report the holes of a file, so this reads them, past the page cache: there a hole costs a tenth,
 * and takes no room from data that is read next.
 */
final class Tails {
    private static final int PIECE = 256 * 1024;
    private static final int LARGEST_BLOCK = 64 * 1024;

    private final ByteBuffer room = ByteBuffer.allocateDirect(PIECE + LARGEST_BLOCK);
    private final ByteBuffer zeros = ByteBuffer.allocateDirect(PIECE).asReadOnlyBuffer();
    private long block = -1;

    /**
     * Return an offset from which a file of this size has only zeros, at most a piece behind the last other byte.
     * Return the size if the file system cannot read past its cache.
     */
    long from(Path path, long size) throws IOException {
        if (block < 0) {
            block = Files.getFileStore(path).getBlockSize(); // once: it goes through the list of all mounts
        }
        if (size <= PIECE || block < 1 || block > LARGEST_BLOCK || PIECE % block != 0) {
            return size;
        }
        try (FileChannel channel =
                FileChannel.open(path, StandardOpenOption.READ, ExtendedOpenOption.DIRECT)) {
            ByteBuffer piece = room.clear().alignedSlice((int) block);
            for (long start = (size - 1) / PIECE * PIECE; start >= 0; start -= PIECE) {
                long end = Math.min(size, start + PIECE);
                piece.clear().limit(PIECE);
                int read = channel.read(piece, start);
                int wanted = (int) (end - start);
                boolean isNothing = read >= wanted
                        && piece.flip().limit(wanted).mismatch(zeros.duplicate().limit(wanted)) < 0;
                if (!isNothing) {
                    return end;
                }
            }
            return 0;
        } catch (IOException | UnsupportedOperationException error) {
            return size; // The usual read, which follows, reports any fault of the file.
        }
    }
}
