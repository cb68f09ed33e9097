package cometmq.spark.store;

import java.io.IOException;
import java.util.List;

/**
 * Holds for all parts of a task the list of the log's files, and the array into which they are read. A task may have
 * hundreds of small queues, and the messages of each may lie in all files.
 */
final class TaskFiles {
    final StoreFiles store;

    private List<StoreFiles.LogFile> log;
    private byte[] bytes = new byte[LogWindow.STANDARD];

    TaskFiles(StoreOptions options) {
        store = new StoreFiles(options.path, options.commitLogs);
    }

    /** Return the files of the log. The task holds the lock of the store, so no broker deletes any meanwhile. */
    List<StoreFiles.LogFile> logFiles() throws IOException {
        if (log == null) {
            log = store.logFiles();
        }
        return log;
    }

    /** Open a file of the log. One window is open at a time. */
    LogWindow window(StoreFiles.LogFile file) throws IOException {
        return new LogWindow(file, bytes);
    }

    void close(LogWindow window) throws IOException {
        bytes = window.bytes;
        window.close();
    }
}
