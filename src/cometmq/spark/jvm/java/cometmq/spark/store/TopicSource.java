package cometmq.spark.store;

import java.util.Map;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.sources.DataSourceRegister;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * The source and sink {@code rocketmq} in a session with this jar. It calls the source in Python for everything, and
 * adds metrics to the progress of streams: Spark takes no metrics from a source in Python.
 */
public final class TopicSource implements TableProvider, DataSourceRegister {
    static final String NAME = "rocketmq";

    private PythonReader python;

    @Override
    public String shortName() {
        return NAME;
    }

    @Override
    public StructType inferSchema(CaseInsensitiveStringMap given) {
        return python(given.asCaseSensitiveMap()).inferSchema();
    }

    @Override
    public Table getTable(StructType schema, Transform[] partitioning, Map<String, String> given) {
        return Measured.table(python(given).table(schema));
    }

    @Override
    public boolean supportsExternalMetadata() {
        return true;
    }

    private PythonReader python(Map<String, String> given) {
        if (python == null) {
            python = new PythonReader(NAME, given);
        }
        return python;
    }
}
