package cometmq.spark.store;

import java.util.Map;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * The source of the same name in Python, which Spark would have chosen if this jar were not there.
 *
 * <p>Spark's class for it is not part of its public interface, so it is looked up by name when needed.
 */
final class PythonReader {
    private static final String CLASS =
            "org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2";

    private final String name;
    private final Map<String, String> given;
    private TableProvider provider;
    private StructType schema;

    PythonReader(String name, Map<String, String> given) {
        this.name = name;
        this.given = given;
    }

    private TableProvider provider() {
        if (provider == null) {
            try {
                Class<?> found = Class.forName(CLASS, true, TableProvider.class.getClassLoader());
                provider = (TableProvider) found.getDeclaredConstructor().newInstance();
                found.getMethod("setShortName", String.class).invoke(provider, name);
            } catch (ReflectiveOperationException error) {
                throw new IllegalStateException(
                        "this Spark has no sources in Python, and " + name + " needs them for this read",
                        error);
            }
        }
        return provider;
    }

    StructType inferSchema() {
        return provider().inferSchema(new CaseInsensitiveStringMap(given));
    }

    Table table(StructType schema) {
        return provider().getTable(schema, new Transform[0], given);
    }

    void setSchema(StructType schema) {
        this.schema = schema;
    }

    /** Return the stream of the Python reader, with metrics. */
    MicroBatchStream stream(StructType columns, String checkpoint) {
        SupportsRead table = (SupportsRead) table(columns);
        Scan scan = table.newScanBuilder(new CaseInsensitiveStringMap(given)).build();
        return Measured.stream(scan.toMicroBatchStream(checkpoint));
    }

    /** Have the Python reader plan the read, for the error that it raises. */
    void plan() {
        SupportsRead table = (SupportsRead) table(schema);
        table.newScanBuilder(new CaseInsensitiveStringMap(given)).build().toBatch().planInputPartitions();
    }
}
