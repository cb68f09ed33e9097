package cometmq.spark.store;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.util.Map;
import java.util.TreeMap;
import org.apache.spark.sql.connector.read.streaming.Offset;

/** Computes the lag of a stream from the offset that it has reached and the latest offset. */
final class Lag {
    private static final ObjectMapper JSON = new ObjectMapper();
    // Keys of an offset. Of `rocketmq`: the marks beside the topics. Of `rocketmq-store`: the position in the log.
    private static final String MARKS = "@stored";
    private static final String LOG = "commitLog";

    private Lag() {}

    /**
     * Return the metrics. For topics: the messages behind by topic, and over all queues the metrics of Spark's Kafka
     * connector under their names. For a store: the bytes of the log. Without both offsets there are no metrics.
     */
    static Map<String, String> between(Offset reached, Offset latest) {
        Map<String, String> metrics = new TreeMap<>();
        if (reached == null || latest == null) {
            return metrics;
        }
        JsonNode from;
        JsonNode to;
        try {
            from = JSON.readTree(reached.json());
            to = JSON.readTree(latest.json());
        } catch (JsonProcessingException fault) {
            return metrics;
        }
        if (to.path(LOG).isNumber()) {
            long behind = to.path(LOG).asLong() - from.path(LOG).asLong();
            metrics.put("bytesBehindLatest", Long.toString(Math.max(0, behind)));
            return metrics;
        }
        addQueues(metrics, from, to);
        return metrics;
    }

    private static void addQueues(Map<String, String> metrics, JsonNode from, JsonNode to) {
        long most = 0;
        long least = Long.MAX_VALUE;
        long all = 0;
        long queues = 0;
        for (String topic : names(to)) {
            if (topic.equals(MARKS)) {
                continue;
            }
            long ofTopic = 0;
            for (String broker : names(to.path(topic))) {
                JsonNode ends = to.path(topic).path(broker);
                JsonNode known = from.path(topic).path(broker);
                for (String queue : names(ends)) {
                    // No batch has read this queue yet, so its beginning is not known: count no lag.
                    long end = ends.path(queue).asLong();
                    long behind = Math.max(0, end - known.path(queue).asLong(end));
                    most = Math.max(most, behind);
                    least = Math.min(least, behind);
                    ofTopic += behind;
                    queues++;
                }
            }
            metrics.put("messagesBehindLatest." + topic, Long.toString(ofTopic));
            all += ofTopic;
        }
        if (queues > 0) {
            metrics.put("messagesBehindLatest", Long.toString(all));
            metrics.put("avgOffsetsBehindLatest", Double.toString((double) all / queues));
            metrics.put("maxOffsetsBehindLatest", Long.toString(most));
            metrics.put("minOffsetsBehindLatest", Long.toString(least));
        }
    }

    private static Iterable<String> names(JsonNode node) {
        return node::fieldNames;
    }
}
