package cometmq.spark.store;

import java.nio.charset.StandardCharsets;

/** The names of the properties that columns are made of (Java: MessageConst). */
final class Names {
    static final byte[] UNIQUE_ID = name("UNIQ_KEY");
    static final byte[] KEYS = name("KEYS");
    static final byte[] TAGS = name("TAGS");
    static final byte[] DELAY_LEVEL = name("DELAY");
    static final byte[] TIMER_DELIVER = name("TIMER_DELIVER_MS");
    static final byte[] TIMER_OUT = name("TIMER_OUT_MS");
    static final byte[] TRANSACTION_ID = name("__transactionId__");

    private Names() {}

    private static byte[] name(String text) {
        return text.getBytes(StandardCharsets.US_ASCII);
    }
}
