package cometmq.interop;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;

/**
 * Client program of the interop suite, JSON lines on standard output. It runs one scenario after
 * the other, as starting a JVM takes longer than most of them: each line of standard input is
 * {@code <scenario> --name=value ...}, separated by tabs, and each scenario is over when it is done
 * and a line {@code end} came; the event {@code ended} says so. With {@code may-fail=true} a scenario
 * that fails prints the event {@code failed}, else it ends the program. The same source is compiled
 * against the 4.9 and the 5.x client.
 */
public final class Main {
    private static final String END = "end";
    private static final BufferedReader IN =
        new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    private static boolean toldToEnd;

    private Main() {
    }

    public static void main(String[] none) throws Exception {
        try {
            for (String line = IN.readLine(); line != null; line = IN.readLine()) {
                toldToEnd = false;
                Args args = new Args(line.split("\t"));
                try {
                    run(args);
                } catch (Exception failure) {
                    if (!args.flag("may-fail")) {
                        throw failure;
                    }
                    new Event("failed")
                        .with("error", failure).with("cause", failure.getCause()).print();
                    new Event("summary").with("failed", 1).print();
                }
                awaitEnd();
                new Event("ended").print();
            }
        } catch (Throwable failure) {
            failure.printStackTrace();
            System.exit(1);
        }
        // Client threads that are not daemons would keep the program alive.
        System.exit(0);
    }

    /** Wait for the line that ends the scenario, or for the end of standard input. */
    static void awaitEnd() throws IOException {
        if (!toldToEnd) {
            String line = IN.readLine();
            if (line != null && !line.equals(END)) {
                throw new IllegalStateException("a scenario runs, this is no end: " + line);
            }
            toldToEnd = true;
        }
    }

    private static void run(Args args) throws Exception {
        switch (args.scenario()) {
            case "produce":
                new Produce(args).run();
                break;
            case "consume":
                new Consume(args).run();
                break;
            case "request":
                new Ask(args).run();
                break;
            case "transact":
                new Transact(args).run();
                break;
            case "offsets":
                new Queues(args).offsets();
                break;
            case "traces":
                new Queues(args).traces();
                break;
            case "pull":
                new Queues(args).pull();
                break;
            case "sign":
                new Sign(args).run();
                break;
            default:
                throw new IllegalArgumentException("unknown scenario " + args.scenario());
        }
    }
}
