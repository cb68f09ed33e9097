package cometmq.spark.store;

import java.io.IOException;
import java.io.InputStream;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.DirectoryStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.List;

/** Finds the files of a store directory (Python: {@code cometmq.store.reading.files}). */
final class StoreFiles {
    static final int UNIT_SIZE = 20;

    private static final int PLACEHOLDER_SIZE = 0x7FFFFFFF;
    private static final int SAMPLES = 1024;

    /** A file of the commit log; {@code base} is the offset of its first byte. */
    record LogFile(String path, long base, long size) implements java.io.Serializable {
        long end() {
            return base + size;
        }
    }

    /** A consume queue: its files, oldest first. */
    record QueueFiles(String topic, int queueId, List<String> paths) implements java.io.Serializable {
        /** Say whether it holds messages of other queues, which keep their own topics and offsets. */
        boolean isBorrowed() {
            return topic.startsWith("%LMQ%");
        }
    }

    private final Path root;
    private final List<Path> commitLogs;

    StoreFiles(String root, List<String> commitLogs) {
        this.root = Path.of(root);
        this.commitLogs = commitLogs.stream().map(Path::of).toList();
    }

    /** Throw Unfit for a directory that the Python reader has something to say about. */
    void check() throws Unfit, IOException {
        boolean holdsLog = !commitLogs.isEmpty() || Files.isDirectory(root.resolve("commitlog"));
        if (!Files.isDirectory(root) || !holdsLog) {
            throw new Unfit("there is no commit log");
        }
        if (Files.exists(root.resolve("consumequeue").resolve("CURRENT"))) {
            throw new Unfit("its consume queues are in RocksDB");
        }
        for (Path path : commitLogs) {
            if (!Files.isDirectory(path)) {
                throw new Unfit(path + " is no directory");
            }
        }
        for (Path path : listed(root)) {
            if (path.getFileName().toString().startsWith("dledger-")) {
                throw new Unfit("it is the store of a DLedger broker");
            }
        }
    }

    boolean isClean() {
        return !Files.exists(root.resolve("abort"));
    }

    /** Return the files of the log oldest first, without those at the end made ahead of need. */
    List<LogFile> logFiles() throws IOException {
        List<LogFile> files = new ArrayList<>();
        List<Path> directories = commitLogs.isEmpty() ? List.of(root.resolve("commitlog")) : commitLogs;
        for (Path directory : directories) {
            for (Path path : numbered(directory)) {
                long size = Files.size(path);
                if (size > 0) {
                    files.add(new LogFile(path.toString(), offset(path), size));
                }
            }
        }
        files.sort(Comparator.comparingLong(LogFile::base));
        while (!files.isEmpty() && isUnwritten(files.get(files.size() - 1))) {
            files.remove(files.size() - 1);
        }
        return files;
    }

    List<QueueFiles> queues() throws IOException, Unfit {
        List<QueueFiles> queues = new ArrayList<>();
        Path parent = root.resolve("consumequeue");
        if (!Files.isDirectory(parent)) {
            return queues;
        }
        for (Path topic : listed(parent)) {
            String name = topic.getFileName().toString();
            if (name.indexOf('\uFFFD') >= 0 || name.indexOf('?') >= 0) {
                throw new Unfit("this JVM cannot read the name of the directory " + topic);
            }
            for (Path queue : Files.isDirectory(topic) ? listed(topic) : List.<Path>of()) {
                String id = queue.getFileName().toString();
                if (id.matches("[0-9]{1,9}")) {
                    List<String> paths = numbered(queue).stream().map(Path::toString).toList();
                    queues.add(new QueueFiles(name, Integer.parseInt(id), paths));
                } else if (!id.isEmpty() && id.chars().allMatch(Character::isDigit)) {
                    throw new Unfit("the queue " + queue + " has an unusual number");
                }
            }
        }
        return queues;
    }

    /**
     * Return the queue offset of the first message that lies in the log from {@code logBase} on, and the one
     * behind the last message; equal when there is none. If the queue reaches {@code below}, that is its end
     * here, and offsets from there on are not read.
     */
    static long[] bounds(QueueFiles queue, long logBase, long below, Tails tails)
            throws IOException {
        // A written unit before `below` is enough: to find the end, the whole unwritten part would be read.
        boolean reaches = below < Long.MAX_VALUE && isWritten(queue, below - 1);
        long end = reaches ? below : end(queue, tails);
        for (String path : queue.paths()) {
            long first = firstUnit(path);
            try (UnitFile file = new UnitFile(path)) {
                for (long at = 0; at < Math.min(file.count, end - first); at++) {
                    if (isMessage(file.size(at)) && file.offset(at) >= logBase) {
                        return new long[] {first + at, end};
                    }
                }
            }
        }
        return new long[] {end, end};
    }

    private static boolean isWritten(QueueFiles queue, long offset) throws IOException {
        for (String path : queue.paths()) {
            long unit = offset - firstUnit(path);
            if (unit < 0) {
                break;
            }
            try (FileChannel channel = FileChannel.open(Path.of(path), StandardOpenOption.READ)) {
                if (unit < channel.size() / UNIT_SIZE) {
                    ByteBuffer size = ByteBuffer.allocate(4);
                    return channel.read(size, unit * UNIT_SIZE + 8) == 4 && size.getInt(0) > 0;
                }
            }
        }
        return false;
    }

    private static long end(QueueFiles queue, Tails tails) throws IOException {
        List<String> paths = queue.paths();
        for (int file = paths.size() - 1; file >= 0; file--) {
            try (UnitFile units = new UnitFile(paths.get(file))) {
                long written = units.written(tails);
                if (written > 0) {
                    return firstUnit(paths.get(file)) + written;
                }
            }
        }
        return 0;
    }

    /** Return the units of these queue offsets; zeros where no file has any. */
    static ByteBuffer units(QueueFiles queue, long start, long end) throws IOException {
        ByteBuffer units = ByteBuffer.allocate(Math.toIntExact((end - start) * UNIT_SIZE));
        for (String path : queue.paths()) {
            long first = firstUnit(path);
            long low = Math.max(start, first);
            if (low >= end) {
                continue;
            }
            try (FileChannel channel = FileChannel.open(Path.of(path), StandardOpenOption.READ)) {
                long written = channel.size() / UNIT_SIZE - (low - first);
                int count = (int) Math.max(0, Math.min(end - low, written));
                units.limit((int) (low - start + count) * UNIT_SIZE);
                units.position((int) (low - start) * UNIT_SIZE);
                long place = (low - first) * UNIT_SIZE;
                while (units.hasRemaining()) {
                    int read = channel.read(units, place);
                    if (read < 0) {
                        break;
                    }
                    place += read;
                }
                units.limit(units.capacity());
            }
        }
        return units;
    }

    /** Return the places in the log of some of the queue's messages, spread over its files. */
    static long[] someOffsets(QueueFiles queue, Tails tails) throws IOException {
        long[] found = new long[64];
        int size = 0;
        for (String path : queue.paths()) {
            try (UnitFile units = new UnitFile(path)) {
                long written = units.written(tails);
                long messages = 0;
                for (long at = 0; at < written; at++) {
                    messages += isMessage(units.size(at)) ? 1 : 0;
                }
                long step = Math.max(1, messages / SAMPLES);
                long passed = 0;
                for (long at = 0; at < written; at++) {
                    if (!isMessage(units.size(at)) || passed++ % step != 0) {
                        continue;
                    }
                    if (size == found.length) {
                        found = Arrays.copyOf(found, 2 * size);
                    }
                    found[size++] = units.offset(at);
                }
            }
        }
        return Arrays.copyOf(found, size);
    }

    static boolean isMessage(int size) {
        return size > 0 && size < PLACEHOLDER_SIZE;
    }

    private static long firstUnit(String path) {
        return offset(Path.of(path)) / UNIT_SIZE;
    }

    private static long offset(Path path) {
        return Long.parseLong(path.getFileName().toString());
    }

    private static boolean isUnwritten(LogFile file) throws IOException {
        try (InputStream in = Files.newInputStream(Path.of(file.path()))) {
            for (byte one : in.readNBytes(Record.HEAD_SIZE)) {
                if (one != 0) {
                    return false;
                }
            }
            return true;
        }
    }

    /** The units of a file, of which one piece is in memory: a file may be larger than that, or say so. */
    private static final class UnitFile implements AutoCloseable {
        private static final int PIECE = 4096;
        private static final ByteBuffer NOTHING = ByteBuffer.allocate(PIECE * UNIT_SIZE).asReadOnlyBuffer();

        final long count;

        private final Path path;
        private final FileChannel channel;
        private final ByteBuffer piece = ByteBuffer.allocate(PIECE * UNIT_SIZE);
        private long first = -1;

        UnitFile(String path) throws IOException {
            this.path = Path.of(path);
            channel = FileChannel.open(this.path, StandardOpenOption.READ);
            count = channel.size() / UNIT_SIZE;
        }

        int size(long unit) throws IOException {
            return piece.getInt(place(unit) + 8);
        }

        long offset(long unit) throws IOException {
            return piece.getLong(place(unit));
        }

        /** Return how many units there are up to the last one that is written. */
        long written(Tails tails) throws IOException {
            // Most of a file is empty: it is made for 300,000 messages when a queue gets its first.
            long nothingFrom = tails.from(path, count * UNIT_SIZE);
            long some = (nothingFrom + UNIT_SIZE - 1) / UNIT_SIZE;
            for (long start = (some - 1) / PIECE * PIECE; start >= 0 && some > 0; start -= PIECE) {
                read(start);
                if (piece.mismatch(NOTHING) < 0) {
                    continue;
                }
                for (long at = Math.min(some, start + PIECE) - 1; at >= start; at--) {
                    if (size(at) > 0) {
                        return at + 1;
                    }
                }
            }
            return 0;
        }

        private int place(long unit) throws IOException {
            if (first < 0 || unit < first || unit >= first + PIECE) {
                read(unit - unit % PIECE);
            }
            return (int) (unit - first) * UNIT_SIZE;
        }

        private void read(long start) throws IOException {
            first = start;
            piece.clear();
            while (piece.hasRemaining()) {
                if (channel.read(piece, first * UNIT_SIZE + piece.position()) < 0) {
                    break;
                }
            }
            // The file may have been cut meanwhile.
            Arrays.fill(piece.array(), piece.position(), piece.capacity(), (byte) 0);
            piece.clear();
        }

        @Override
        public void close() throws IOException {
            channel.close();
        }
    }

    private static List<Path> numbered(Path directory) throws IOException {
        if (!Files.isDirectory(directory)) {
            return List.of();
        }
        return listed(directory).stream()
                .filter(path -> path.getFileName().toString().matches("[0-9]{20}"))
                .toList();
    }

    private static List<Path> listed(Path directory) throws IOException {
        List<Path> paths = new ArrayList<>();
        try (DirectoryStream<Path> stream = Files.newDirectoryStream(directory)) {
            stream.forEach(paths::add);
        }
        paths.sort(Comparator.comparing(path -> path.getFileName().toString()));
        return paths;
    }
}
