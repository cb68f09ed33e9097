package cometmq.spark.store;

import java.io.Serializable;
import java.util.Set;

/**
 * All that tasks need beside their parts. Spark sends it once, not with each of them.
 *
 * @param topics whose records are wanted of a log that is read in place of its queues, null for all
 */
record Job(StoreOptions options, String[] columns, Bounds bounds, Set<String> topics)
        implements Serializable {}
