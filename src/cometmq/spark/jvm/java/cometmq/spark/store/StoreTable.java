package cometmq.spark.store;

import java.util.EnumSet;
import java.util.Set;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** A store as a table: the JVM reads it in batches, and Python as a stream. */
final class StoreTable implements SupportsRead {
    private final StoreOptions options;
    private final StructType schema;
    private final PythonReader python;

    StoreTable(StoreOptions options, StructType schema, PythonReader python) {
        this.options = options;
        this.schema = schema;
        this.python = python;
    }

    StoreOptions options() {
        return options;
    }

    PythonReader python() {
        return python;
    }

    @Override
    public String name() {
        return StoreSource.NAME;
    }

    @Override
    @SuppressWarnings("deprecation") // what stands in its place came with Spark 3.4 and calls this
    public StructType schema() {
        return schema;
    }

    @Override
    public Set<TableCapability> capabilities() {
        return EnumSet.of(TableCapability.BATCH_READ, TableCapability.MICRO_BATCH_READ);
    }

    @Override
    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap given) {
        return new StoreScan.Builder(this);
    }
}
