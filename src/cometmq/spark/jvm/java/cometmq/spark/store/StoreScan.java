package cometmq.spark.store;

import java.util.Arrays;
import java.util.List;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.SupportsPushDownFilters;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.types.StructType;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** A read of a store in the JVM: which columns, narrowed by which filters. */
final class StoreScan implements Scan, Batch {
    private static final Logger LOG = LoggerFactory.getLogger(StoreScan.class);

    private final StoreTable table;
    private final StructType schema;
    private final Bounds bounds;
    private Job job;
    private InputPartition[] parts;

    private StoreScan(StoreTable table, StructType schema, Bounds bounds) {
        this.table = table;
        this.schema = schema;
        this.bounds = bounds;
    }

    @Override
    public StructType readSchema() {
        return schema;
    }

    @Override
    public String description() {
        StoreOptions options = table.options();
        String topics = options.topics != null
                ? "topics " + String.join(", ", options.topics)
                : options.pattern != null ? "topics like " + options.pattern : "all topics";
        String pushed = bounds.shown.isEmpty() ? "" : "; pushed: " + bounds.shown;
        return table.name() + " " + options.path + " (JVM), " + topics + "; columns: "
                + String.join(", ", schema.fieldNames()) + pushed;
    }

    @Override
    public Batch toBatch() {
        return this;
    }

    /** Streams are read in Python. */
    @Override
    public MicroBatchStream toMicroBatchStream(String checkpoint) {
        return table.python().stream(schema, checkpoint);
    }

    /** Plan the parts once: Spark asks twice, when it plans adaptively, and all queues are looked at for it. */
    @Override
    public synchronized InputPartition[] planInputPartitions() {
        if (parts == null) {
            parts = planned();
        }
        return parts;
    }

    private InputPartition[] planned() {
        try {
            StorePlan plan = new StorePlan(table.options(), schema.fieldNames(), bounds);
            InputPartition[] found = plan.parts();
            job = plan.job();
            return found;
        } catch (Unfit | java.nio.file.FileSystemException | StoreLockedException fault) {
            // The Python reader raises the error, which so is the same with and without this one.
            LOG.warn("{}: left to the Python reader, {}", table.name(), fault.getMessage());
            table.python().plan();
            throw new IllegalStateException(
                    "the store cannot be read in the JVM (" + fault.getMessage()
                            + "); the option reader=python reads it otherwise",
                    fault);
        } catch (RuntimeException error) {
            throw error;
        } catch (Exception error) {
            throw new IllegalStateException(error.getMessage(), error);
        }
    }

    /** Return what tasks read by. Spark sends it to them once, and asks for it when the parts are planned. */
    @Override
    public PartitionReaderFactory createReaderFactory() {
        if (job == null) {
            planInputPartitions();
        }
        return new Readers(job);
    }

    @Override
    public CustomMetric[] supportedCustomMetrics() {
        return Metrics.all();
    }

    @Override
    public CustomTaskMetric[] reportDriverMetrics() {
        int pruned = table.schema().length() - schema.length();
        return new CustomTaskMetric[] {Metrics.of(Metrics.PRUNED, pruned)};
    }

    private static final class Readers implements PartitionReaderFactory {
        private static final long serialVersionUID = 1;

        private final Job job;

        Readers(Job job) {
            this.job = job;
        }

        @Override
        public PartitionReader<InternalRow> createReader(InputPartition partition) {
            try {
                return new PartsReader(job, ((Part.Several) partition).parts());
            } catch (java.io.IOException error) {
                throw new java.io.UncheckedIOException(error.getMessage(), error);
            }
        }
    }

    /** Takes the columns and filters of a query. */
    static final class Builder
            implements ScanBuilder, SupportsPushDownRequiredColumns, SupportsPushDownFilters {
        private final StoreTable table;
        private StructType schema;
        private Filter[] filters = {};

        Builder(StoreTable table) {
            this.table = table;
            this.schema = table.schema();
        }

        @Override
        public void pruneColumns(StructType required) {
            schema = required;
        }

        /** Take all filters, and have Spark apply all of them again. */
        @Override
        public Filter[] pushFilters(Filter[] filters) {
            this.filters = filters;
            return filters;
        }

        @Override
        public Filter[] pushedFilters() {
            return new Filter[0];
        }

        @Override
        public Scan build() {
            return new StoreScan(table, schema, Bounds.of(List.of(Arrays.copyOf(filters, filters.length))));
        }
    }
}
