package cometmq.spark.store;

import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.metric.CustomSumMetric;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;

/** What Spark's user interface shows of a read. Spark makes these objects by their classes' names. */
public final class Metrics {
    static final String ROWS = "cometmqRows";
    static final String PASSED_OVER = "cometmqPassedOver";
    static final String BYTES = "cometmqBytes";
    static final String GAPS = "cometmqGaps";
    static final String PRUNED = "cometmqPrunedColumns";

    /** Those that tasks count, in the order of {@code StoreReader.metrics}. */
    static final String[] OF_TASKS = {ROWS, PASSED_OVER, BYTES, GAPS};

    private Metrics() {}

    static CustomMetric[] all() {
        return new CustomMetric[] {
            new Rows(), new PassedOver(), new Bytes(), new GapsMet(), new PrunedColumns()
        };
    }

    static CustomTaskMetric of(String name, long value) {
        return new CustomTaskMetric() {
            @Override
            public String name() {
                return name;
            }

            @Override
            public long value() {
                return value;
            }
        };
    }

    /** Messages that became rows. */
    public static final class Rows extends CustomSumMetric {
        @Override
        public String name() {
            return ROWS;
        }

        @Override
        public String description() {
            return "messages";
        }
    }

    /** Messages that a pushed filter does not let pass. */
    public static final class PassedOver extends CustomSumMetric {
        @Override
        public String name() {
            return PASSED_OVER;
        }

        @Override
        public String description() {
            return "messages passed over by pushed filters";
        }
    }

    /** Bytes read of the commit log. */
    public static final class Bytes extends CustomSumMetric {
        @Override
        public String name() {
            return BYTES;
        }

        @Override
        public String description() {
            return "bytes of the commit log";
        }
    }

    /** Gaps, each of one record or more. */
    public static final class GapsMet extends CustomSumMetric {
        @Override
        public String name() {
            return GAPS;
        }

        @Override
        public String description() {
            return "gaps";
        }
    }

    /** Columns that the query does not need. */
    public static final class PrunedColumns extends CustomSumMetric {
        @Override
        public String name() {
            return PRUNED;
        }

        @Override
        public String description() {
            return "pruned columns";
        }
    }
}
