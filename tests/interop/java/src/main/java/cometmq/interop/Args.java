package cometmq.interop;

import java.util.HashMap;
import java.util.Map;

/** A scenario and its arguments of the form {@code --name=value}. */
final class Args {
    /** What a call may take on a machine that is busy with something else. */
    static final int PATIENCE_MS = 60_000;

    private final Map<String, String> values = new HashMap<>();
    private final String scenario;

    Args(String[] argv) {
        scenario = argv[0];
        for (int i = 1; i < argv.length; i++) {
            int equals = argv[i].indexOf('=');
            if (!argv[i].startsWith("--") || equals < 0) {
                throw new IllegalArgumentException("not --name=value: " + argv[i]);
            }
            values.put(argv[i].substring(2, equals), argv[i].substring(equals + 1));
        }
    }

    String scenario() {
        return scenario;
    }

    String text(String name) {
        String value = values.get(name);
        if (value == null) {
            throw new IllegalArgumentException("missing --" + name);
        }
        return value;
    }

    String text(String name, String otherwise) {
        return values.getOrDefault(name, otherwise);
    }

    int number(String name, int otherwise) {
        String value = values.get(name);
        return value == null ? otherwise : Integer.parseInt(value);
    }

    long millis(String name, long otherwise) {
        String value = values.get(name);
        return value == null ? otherwise : Long.parseLong(value);
    }

    boolean flag(String name) {
        return "true".equals(values.get(name));
    }

    /** A client that is shut down gives its traces half a second, and drops what is left by then. */
    static void letTracesLeave(Args args) throws InterruptedException {
        if (args.flag("trace")) {
            Thread.sleep(1500);
        }
    }
}
