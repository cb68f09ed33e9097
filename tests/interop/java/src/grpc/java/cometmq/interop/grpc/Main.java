package cometmq.interop.grpc;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.HashMap;
import java.util.Map;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientConfigurationBuilder;
import org.apache.rocketmq.client.apis.StaticSessionCredentialsProvider;

/**
 * Client program of the interop suite over the client that speaks gRPC. Its lines and scenarios are
 * those of {@code cometmq.interop.Main}, which the README of the suite describes: a line of standard
 * input is {@code <scenario> --name=value ...}, separated by tabs, and the line {@code end} ends it.
 */
public final class Main {
    private static final String END = "end";
    private static final BufferedReader IN =
        new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    private static boolean ended;

    private final Map<String, String> values = new HashMap<>();

    private Main(String[] line) {
        for (int i = 1; i < line.length; i++) {
            int equals = line[i].indexOf('=');
            values.put(line[i].substring(2, equals), line[i].substring(equals + 1));
        }
    }

    public static void main(String[] none) throws Exception {
        try {
            for (String line = IN.readLine(); line != null; line = IN.readLine()) {
                ended = false;
                String[] parts = line.split("\t");
                Main args = new Main(parts);
                try {
                    run(parts[0], args);
                } catch (Exception failure) {
                    if (!args.flag("may-fail")) {
                        throw failure;
                    }
                    new Line("failed")
                        .with("error", failure).with("cause", failure.getCause()).print();
                    new Line("summary").with("failed", 1).print();
                }
                awaitEnd();
                new Line("ended").print();
            }
        } catch (Throwable failure) {
            failure.printStackTrace();
            System.exit(1);
        }
        System.exit(0);
    }

    private static void run(String scenario, Main args) throws Exception {
        switch (scenario) {
            case "produce":
                new Produce(args).run();
                break;
            case "transact":
                new Transact(args).run();
                break;
            case "consume":
                new Push(args).run();
                break;
            case "receive":
                new Receive(args).run();
                break;
            default:
                throw new IllegalArgumentException("unknown scenario " + scenario);
        }
    }

    /** Wait for the line that ends the scenario, or for the end of standard input. */
    static void awaitEnd() throws IOException {
        if (!ended) {
            String line = IN.readLine();
            if (line != null && !line.equals(END)) {
                throw new IllegalStateException("a scenario runs, this is no end: " + line);
            }
            ended = true;
        }
    }

    String text(String name, String otherwise) {
        return values.getOrDefault(name, otherwise);
    }

    String text(String name) {
        String value = values.get(name);
        if (value == null) {
            throw new IllegalArgumentException("missing --" + name);
        }
        return value;
    }

    int number(String name, int otherwise) {
        String value = values.get(name);
        return value == null ? otherwise : Integer.parseInt(value);
    }

    boolean flag(String name) {
        return "true".equals(values.get(name));
    }

    /** Return the value at {@code index} of a list whose values take turns. */
    String inTurn(String name, int index) {
        String[] all = text(name, "").split(",", -1);
        return all[index % all.length];
    }

    ClientConfiguration configuration() {
        ClientConfigurationBuilder builder = ClientConfiguration.newBuilder()
            .setEndpoints(text("endpoints"))
            .enableSsl(flag("tls"))
            .setRequestTimeout(Duration.ofSeconds(number("timeout-s", 20)))
            .setNamespace(text("namespace", ""));
        if (values.containsKey("access-key")) {
            builder.setCredentialProvider(new StaticSessionCredentialsProvider(
                text("access-key"), text("secret-key")));
        }
        return builder.build();
    }
}
