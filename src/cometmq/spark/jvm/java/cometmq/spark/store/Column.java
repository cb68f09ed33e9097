package cometmq.spark.store;

import java.io.IOException;
import java.io.InputStream;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;

/**
 * The columns that this reader can make; {@code cometmq.spark.rows.columns} says what they hold. The build writes
 * that module's lists of all and of the default columns into the jar, so that both readers have the same.
 */
enum Column {
    TOPIC(DataTypes.StringType),
    BROKER(DataTypes.StringType),
    QUEUE_ID(DataTypes.IntegerType),
    QUEUE_OFFSET(DataTypes.LongType),
    COMMIT_LOG_OFFSET(DataTypes.LongType),
    MSG_ID(DataTypes.StringType),
    OFFSET_MSG_ID(DataTypes.StringType),
    BATCH_MSG_ID(DataTypes.StringType),
    KEYS(DataTypes.createArrayType(DataTypes.StringType)),
    TAGS(DataTypes.StringType),
    BODY(DataTypes.BinaryType),
    PROPERTIES(DataTypes.createMapType(DataTypes.StringType, DataTypes.StringType)),
    BORN_TIME(DataTypes.TimestampType),
    STORE_TIME(DataTypes.TimestampType),
    BORN_HOST(DataTypes.StringType),
    STORE_HOST(DataTypes.StringType),
    RECONSUME_TIMES(DataTypes.IntegerType),
    FLAG(DataTypes.IntegerType),
    SYS_FLAG(DataTypes.IntegerType),
    BODY_CRC(DataTypes.IntegerType),
    TRANSACTION_TYPE(DataTypes.StringType),
    TRANSACTION_ID(DataTypes.StringType),
    PREPARED_TRANSACTION_OFFSET(DataTypes.LongType),
    DELAY_LEVEL(DataTypes.IntegerType),
    DELIVER_TIME(DataTypes.TimestampType);

    final String label = name().toLowerCase(Locale.ROOT);
    final DataType type;

    Column(DataType type) {
        this.type = type;
    }

    boolean needsProperties() {
        return switch (this) {
            case MSG_ID, BATCH_MSG_ID, KEYS, TAGS, PROPERTIES, TRANSACTION_ID, DELAY_LEVEL, DELIVER_TIME -> true;
            default -> false;
        };
    }

    boolean needsBody() {
        return this == BODY || this == SYS_FLAG;
    }

    /** The names of all columns in their order, and which of them are read unless others are asked for. */
    private static final Map<String, Boolean> OFFERED = offered();

    static List<String> all() {
        return List.copyOf(OFFERED.keySet());
    }

    static List<String> standard() {
        return OFFERED.keySet().stream().filter(OFFERED::get).toList();
    }

    private static Map<String, Boolean> offered() {
        Map<String, Boolean> offered = new LinkedHashMap<>();
        try (InputStream in = Column.class.getResourceAsStream("columns")) {
            for (String line : new String(in.readAllBytes(), StandardCharsets.UTF_8).split("\n")) {
                String[] words = line.split(" ");
                offered.put(words[0], words.length > 1);
            }
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
        return Collections.unmodifiableMap(offered);
    }

    /** Return the column of that name, or null. */
    static Column of(String name) {
        for (Column column : values()) {
            if (column.label.equals(name) && OFFERED.containsKey(name)) {
                return column;
            }
        }
        return null;
    }
}
