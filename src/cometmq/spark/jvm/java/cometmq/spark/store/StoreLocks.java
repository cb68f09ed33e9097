package cometmq.spark.store;

import java.io.IOException;
import java.lang.management.ManagementFactory;
import java.nio.channels.FileChannel;
import java.nio.channels.FileLock;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.nio.file.attribute.BasicFileAttributes;
import java.util.HashMap;
import java.util.Map;
import javax.management.InstanceAlreadyExistsException;
import javax.management.JMException;
import javax.management.MBeanException;
import javax.management.MBeanServer;
import javax.management.ObjectName;

/**
 * Keeps brokers from a store while tasks read it, as {@code kept_from_brokers} does in Python.
 *
 * <p>Such a lock belongs to the whole process, and closing any descriptor of the file gives it up. So one
 * object of a JVM opens the file once for all tasks. Sessions may have loaded this class several times, hence
 * the object is found by its name as an MBean.
 */
public final class StoreLocks implements StoreLocksMBean {
    private static final class Held {
        final FileChannel channel;
        final FileLock lock;
        int readers = 1;

        Held(FileChannel channel, FileLock lock) {
            this.channel = channel;
            this.lock = lock;
        }
    }

    private final Map<String, Held> held = new HashMap<>();

    /** Lock the store at {@code root} until the result is closed. Throws StoreLockedException. */
    public static AutoCloseable lock(String root) throws IOException {
        Path path = Path.of(root, "lock");
        String real;
        try {
            real = path.toRealPath().toString();
        } catch (NoSuchFileException copyWithoutLock) {
            return () -> {};
        }
        Object key = call("take", real);
        if (key == null) {
            throw new StoreLockedException(
                    root + " is being written by a broker that runs: stop it first, read a copy of the "
                            + "directory, or read the broker itself with the source rocketmq");
        }
        return () -> call("give", (String) key);
    }

    private static Object call(String method, String argument) throws IOException {
        try {
            MBeanServer server = ManagementFactory.getPlatformMBeanServer();
            ObjectName name = new ObjectName("cometmq:type=StoreLocks");
            if (!server.isRegistered(name)) {
                try {
                    server.registerMBean(new StoreLocks(), name);
                } catch (InstanceAlreadyExistsException another) {
                    // Another thread was faster, and its object serves as well.
                }
            }
            String[] signature = {String.class.getName()};
            return server.invoke(name, method, new Object[] {argument}, signature);
        } catch (MBeanException error) {
            throw error.getCause() instanceof IOException cause ? cause : new IOException(error);
        } catch (JMException error) {
            throw new IOException(error);
        }
    }

    @Override
    public synchronized String take(String path) throws IOException {
        // By the file itself: it may have several paths.
        String key = key(path);
        Held known = held.get(key);
        if (known != null) {
            known.readers++;
            return key;
        }
        FileChannel channel = FileChannel.open(Path.of(path), StandardOpenOption.READ);
        FileLock lock = null;
        try {
            lock = channel.tryLock(0, 1, true);
        } finally {
            if (lock == null) {
                channel.close();
            }
        }
        if (lock == null) {
            return null;
        }
        held.put(key, new Held(channel, lock));
        return key;
    }

    @Override
    public synchronized void give(String key) throws IOException {
        Held known = held.get(key);
        if (known != null && --known.readers == 0) {
            held.remove(key);
            try {
                known.lock.release();
            } finally {
                known.channel.close();
            }
        }
    }

    private static String key(String path) throws IOException {
        Object key = Files.readAttributes(Path.of(path), BasicFileAttributes.class).fileKey();
        return key == null ? path : key.toString();
    }
}
