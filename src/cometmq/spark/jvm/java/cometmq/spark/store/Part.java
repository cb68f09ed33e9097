package cometmq.spark.store;

import java.io.Serializable;
import java.util.List;
import org.apache.spark.sql.connector.read.InputPartition;

/**
 * Offsets from {@code start} to below {@code end}: of a queue, or of a file of the log (the other one is
 * null). Those of the log are offsets of records, or the bounds of the file.
 */
record Part(StoreFiles.QueueFiles queue, StoreFiles.LogFile file, long start, long end, boolean isLastFile)
        implements Serializable {

    long size() {
        return end - start;
    }

    /** What one task reads: a part, or many small ones in their order. */
    record Several(List<Part> parts) implements InputPartition {}
}
