package cometmq.spark.store;

import java.io.IOException;

/** Says that bytes are no record where one belongs (Python: StoreCorruptError). */
public final class StoreCorruptException extends IOException {
    private static final long serialVersionUID = 1;

    StoreCorruptException(String message) {
        super(message);
    }
}
