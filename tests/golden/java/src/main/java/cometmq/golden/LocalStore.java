package cometmq.golden;

import java.io.File;
import java.lang.reflect.Constructor;
import java.lang.reflect.Proxy;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.message.MessageExtBatch;
import org.apache.rocketmq.store.AppendMessageResult;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.MessageArrivingListener;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.SelectMappedBufferResult;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/** A DefaultMessageStore in a temporary directory. */
final class LocalStore {
    final Path root;
    private final DefaultMessageStore store;

    LocalStore(int commitLogFileBytes) throws Exception {
        root = Files.createTempDirectory("golden-store");
        MessageStoreConfig config = new MessageStoreConfig();
        config.setStorePathRootDir(root.toString());
        config.setStorePathCommitLog(root.resolve("commitlog").toString());
        config.setMappedFileSizeCommitLog(commitLogFileBytes);
        config.setMappedFileSizeConsumeQueue(2000);
        config.setMaxHashSlotNum(100);
        config.setMaxIndexNum(400);
        config.setHaListenPort(0);
        Kit.set(config, "timerWheelEnable", false);
        Object listener = Proxy.newProxyInstance(LocalStore.class.getClassLoader(),
            new Class<?>[] {MessageArrivingListener.class}, (proxy, method, arguments) -> null);
        BrokerStatsManager stats = new BrokerStatsManager("golden", true);
        Constructor<?> constructor = DefaultMessageStore.class.getConstructors()[0];
        store = (DefaultMessageStore) (constructor.getParameterCount() == 4
            ? constructor.newInstance(config, stats, listener, new BrokerConfig())
            : constructor.newInstance(config, stats, listener, new BrokerConfig(), new ConcurrentHashMap<>()));
        if (!store.load()) {
            throw new IllegalStateException("load failed");
        }
        store.start();
    }

    AppendMessageResult put(Object message) throws Exception {
        return appended((PutMessageResult) Kit.call(store, "putMessage", message));
    }

    AppendMessageResult putBatch(MessageExtBatch batch) {
        return appended(store.putMessages(batch));
    }

    private static AppendMessageResult appended(PutMessageResult result) {
        if (!result.isOk()) {
            throw new IllegalStateException(result.toString());
        }
        return result.getAppendMessageResult();
    }

    byte[] read(long offset, int size) {
        SelectMappedBufferResult selected = store.selectOneMessageByOffset(offset, size);
        byte[] bytes = new byte[size];
        ByteBuffer buffer = selected.getByteBuffer();
        buffer.get(bytes);
        selected.release();
        return bytes;
    }

    void awaitDispatch() throws Exception {
        long deadline = System.currentTimeMillis() + 10_000;
        while (store.dispatchBehindBytes() > 0) {
            if (System.currentTimeMillis() > deadline) {
                throw new IllegalStateException("dispatch is behind");
            }
            Thread.sleep(10);
        }
        // The last dispatched bytes leave the counter before their consume-queue unit is written.
        Thread.sleep(200);
    }

    byte[] file(String name) throws Exception {
        return Files.readAllBytes(root.resolve(name));
    }

    void close() {
        store.shutdown();
    }

    void delete() throws Exception {
        try (java.util.stream.Stream<Path> paths = Files.walk(root)) {
            paths.sorted(java.util.Comparator.reverseOrder()).map(Path::toFile).forEach(File::delete);
        }
    }
}
