package cometmq.spark.store;

import java.io.IOException;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.sources.DataSourceRegister;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The source {@code rocketmq-store} where this jar is in the session: Spark prefers it to the one in Python,
 * and it leaves to that one what it does not read itself.
 */
public final class StoreSource implements TableProvider, DataSourceRegister {
    static final String NAME = "rocketmq-store";

    private static final Logger LOG = LoggerFactory.getLogger(StoreSource.class);

    private PythonReader python;

    /**
     * Return the checksum of the sources that this jar was made of, by which a program in Python knows whether
     * it belongs to its own installation.
     */
    public static String stamp() throws IOException {
        try (InputStream in = StoreSource.class.getResourceAsStream("/META-INF/cometmq-sources")) {
            return in == null ? "" : new String(in.readAllBytes(), StandardCharsets.US_ASCII);
        }
    }

    @Override
    public String shortName() {
        return NAME;
    }

    @Override
    public StructType inferSchema(CaseInsensitiveStringMap given) {
        List<String> names;
        try {
            names = new StoreOptions(lowered(given)).columns;
        } catch (Unfit reason) {
            return python(given.asCaseSensitiveMap()).inferSchema();
        }
        StructType schema = new StructType();
        for (String name : names == null ? Column.standard() : names) {
            schema = schema.add(name, Column.of(name).type);
        }
        return schema;
    }

    @Override
    public Table getTable(StructType schema, Transform[] partitioning, Map<String, String> given) {
        try {
            StoreOptions options = new StoreOptions(lowered(given));
            check(schema);
            if (options.columns != null && !options.columns.equals(List.of(schema.fieldNames()))) {
                throw new Unfit("the option columns and the schema differ");
            }
            PythonReader fallback = new PythonReader(NAME, given);
            fallback.setSchema(schema);
            LOG.info("{} {}: read in the JVM", NAME, options.path);
            return new StoreTable(options, schema, fallback);
        } catch (Unfit reason) {
            if (reason.isAsked) {
                LOG.info("{}: left to the Python reader, {}", NAME, reason.getMessage());
            } else {
                LOG.warn("{}: left to the Python reader, {}", NAME, reason.getMessage());
            }
            return Measured.table(python(given).table(schema));
        }
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

    private static Map<String, String> lowered(Map<String, String> given) {
        Map<String, String> lowered = new HashMap<>();
        given.forEach((name, value) -> lowered.put(name.toLowerCase(Locale.ROOT), value));
        return lowered;
    }

    private static void check(StructType schema) throws Unfit {
        if (schema.isEmpty()) {
            throw new Unfit("the schema is empty");
        }
        for (StructField field : schema.fields()) {
            Column column = Column.of(field.name());
            if (column == null || !column.type.simpleString().equals(field.dataType().simpleString())) {
                throw new Unfit("the schema has a column " + field.name() + " that messages do not have");
            }
            if (!field.nullable()) {
                throw new Unfit("the schema has a column " + field.name() + " without nulls");
            }
        }
    }
}
