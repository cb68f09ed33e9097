package cometmq.spark.store;

import java.util.Map;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.sources.DataSourceRegister;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * The source and sink {@code rocketmq} where this jar is in the session: all of it is the one in Python, and
 * the progress of its streams has metrics, which Spark takes from no source in Python.
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
