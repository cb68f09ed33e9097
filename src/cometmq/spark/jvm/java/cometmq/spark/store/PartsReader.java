package cometmq.spark.store;

import java.io.IOException;
import java.util.Arrays;
import java.util.Iterator;
import java.util.List;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.PartitionReader;

/**
 * Reads the parts of a task, one after the other: one file of the log and one buffer are open at a time. The
 * store is locked until it is closed.
 */
final class PartsReader implements PartitionReader<InternalRow> {
    private final Job job;
    private final Iterator<Part> coming;
    private final long[] done = new long[Metrics.OF_TASKS.length];
    private final AutoCloseable lock;
    private final TaskFiles task;
    private StoreReader reader;

    PartsReader(Job job, List<Part> parts) throws IOException {
        this.job = job;
        coming = parts.iterator();
        lock = StoreLocks.lock(job.options().path);
        task = new TaskFiles(job.options());
    }

    @Override
    public boolean next() throws IOException {
        while (reader == null || !reader.next()) {
            end();
            if (!coming.hasNext()) {
                return false;
            }
            reader = StoreReader.of(job, coming.next(), task);
        }
        return true;
    }

    private void end() throws IOException {
        StoreReader ended = reader;
        reader = null;
        if (ended != null) {
            ended.close();
            count(done, ended);
        }
    }

    @Override
    public InternalRow get() {
        return reader.get();
    }

    @Override
    public CustomTaskMetric[] currentMetricsValues() {
        long[] values = Arrays.copyOf(done, done.length);
        if (reader != null) {
            count(values, reader);
        }
        CustomTaskMetric[] metrics = new CustomTaskMetric[values.length];
        for (int at = 0; at < values.length; at++) {
            metrics[at] = Metrics.of(Metrics.OF_TASKS[at], values[at]);
        }
        return metrics;
    }

    private static void count(long[] values, StoreReader reader) {
        long[] own = reader.metrics();
        for (int at = 0; at < values.length; at++) {
            values[at] += own[at];
        }
    }

    @Override
    public void close() throws IOException {
        try {
            end();
        } finally {
            try {
                lock.close();
            } catch (IOException error) {
                throw error;
            } catch (Exception error) {
                throw new IOException(error);
            }
        }
    }
}
