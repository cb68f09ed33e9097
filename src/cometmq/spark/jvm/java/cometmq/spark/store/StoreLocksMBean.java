package cometmq.spark.store;

import java.io.IOException;

/** The locks on stores that this JVM holds; the class loaders of all sessions share them. */
public interface StoreLocksMBean {
    /** Lock a file for reading, or count one more reader of it; return its key, null if a broker has it. */
    String take(String path) throws IOException;

    /** Count one reader less, and unlock the file behind the last one. */
    void give(String key) throws IOException;
}
