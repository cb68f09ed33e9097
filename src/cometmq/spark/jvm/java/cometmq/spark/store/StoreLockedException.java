package cometmq.spark.store;

import java.io.IOException;

/** Says that a broker runs on the store (Python: StoreLockedError). */
public final class StoreLockedException extends IOException {
    private static final long serialVersionUID = 1;

    StoreLockedException(String message) {
        super(message);
    }
}
