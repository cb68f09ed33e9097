package cometmq.spark.store;

/**
 * Says that the Python reader should take a read: because it has an error to raise, or can do what this one
 * cannot.
 */
final class Unfit extends Exception {
    private static final long serialVersionUID = 1;

    /** Whether the user asked for the Python reader, so that nothing has to be told. */
    final boolean isAsked;

    Unfit(String reason) {
        this(reason, false);
    }

    Unfit(String reason, boolean isAsked) {
        super(reason);
        this.isAsked = isAsked;
    }
}
