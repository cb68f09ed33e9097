package cometmq.spark.store;

import java.io.Serializable;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import org.apache.spark.sql.sources.EqualTo;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.sources.GreaterThan;
import org.apache.spark.sql.sources.GreaterThanOrEqual;
import org.apache.spark.sql.sources.In;
import org.apache.spark.sql.sources.LessThan;
import org.apache.spark.sql.sources.LessThanOrEqual;

/**
 * What Spark's filters leave of a read (Python: {@code cometmq.spark.ranges.pushdown}). Spark applies every filter
 * again, so these only narrow. A set that is null admits all; offsets run from min to below end.
 */
final class Bounds implements Serializable {
    private static final long serialVersionUID = 1;

    final Set<String> topics;
    final Set<Integer> queueIds;
    final byte[][] tags;
    final long minOffset;
    final long endOffset;
    final String shown;

    private Bounds(
            Set<String> topics, Set<Integer> queueIds, Set<String> tags, long min, long end, String shown) {
        this.topics = topics;
        this.queueIds = queueIds;
        this.tags = tags == null
                ? null
                : tags.stream().map(tag -> tag.getBytes(StandardCharsets.UTF_8)).toArray(byte[][]::new);
        this.minOffset = min;
        this.endOffset = end;
        this.shown = shown;
    }

    static Bounds of(List<Filter> filters) {
        Set<String> topics = null;
        Set<Integer> queueIds = null;
        Set<String> tags = null;
        long min = 0;
        long end = Long.MAX_VALUE;
        List<String> shown = new ArrayList<>();
        for (Filter filter : filters) {
            String column = null;
            Object[] values = null;
            if (filter instanceof EqualTo equal) {
                column = equal.attribute();
                values = new Object[] {equal.value()};
            } else if (filter instanceof In in) {
                column = in.attribute();
                values = in.values();
            } else if (filter instanceof GreaterThan over && isOffset(over.attribute(), over.value())) {
                long value = (Long) over.value();
                min = Math.max(min, value == Long.MAX_VALUE ? value : value + 1);
            } else if (filter instanceof GreaterThanOrEqual over
                    && isOffset(over.attribute(), over.value())) {
                min = Math.max(min, (Long) over.value());
            } else if (filter instanceof LessThan under && isOffset(under.attribute(), under.value())) {
                end = Math.min(end, (Long) under.value());
            } else if (filter instanceof LessThanOrEqual under
                    && isOffset(under.attribute(), under.value())) {
                long value = (Long) under.value();
                end = Math.min(end, value == Long.MAX_VALUE ? value : value + 1);
            } else {
                continue;
            }
            if (values != null) {
                switch (column) {
                    case "topic" -> topics = within(topics, values, String.class);
                    case "tags" -> tags = within(tags, values, String.class);
                    case "queue_id" -> queueIds = within(queueIds, values, Integer.class);
                    case "queue_offset" -> {
                        Set<Long> offsets = within(null, values, Long.class);
                        long low = Long.MAX_VALUE;
                        long high = -1;
                        for (long offset : offsets) {
                            low = Math.min(low, offset);
                            high = Math.max(high, offset);
                        }
                        min = Math.max(min, low);
                        end = Math.min(end, high == Long.MAX_VALUE ? high : high + 1);
                    }
                    default -> {
                        continue;
                    }
                }
            }
            shown.add(filter.toString());
        }
        return new Bounds(topics, queueIds, tags, min, end, String.join(", ", shown));
    }

    private static boolean isOffset(String column, Object value) {
        return column.equals("queue_offset") && value instanceof Long;
    }

    private static <T> Set<T> within(Set<T> before, Object[] values, Class<T> kind) {
        Set<T> chosen = new HashSet<>();
        for (Object value : values) {
            // A comparison with null lets nothing pass.
            if (value != null && (before == null || before.contains(value))) {
                chosen.add(kind.cast(value));
            }
        }
        return chosen;
    }

    boolean takes(String topic, int queueId) {
        return (topics == null || topics.contains(topic)) && (queueIds == null || queueIds.contains(queueId));
    }

    boolean needsProperties() {
        return tags != null;
    }

    /** Say whether a record may pass all filters; its properties are only looked at for tags. */
    boolean takes(Record record, Properties properties) {
        if (queueIds != null && !queueIds.contains(record.queueId())) {
            return false;
        }
        if (tags == null) {
            return true;
        }
        int entry = properties.find(Names.TAGS);
        if (entry < 0) {
            return false;
        }
        if (!properties.isAscii) {
            return true; // what is no text is replaced in the row, and may equal a filter's value then
        }
        int from = properties.valueAt(entry);
        int end = properties.valueEnd(entry);
        for (byte[] tag : tags) {
            if (Arrays.equals(tag, 0, tag.length, record.bytes, from, end)) {
                return true;
            }
        }
        return false;
    }
}
