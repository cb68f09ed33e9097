package cometmq.interop;

import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * Runs mqadmin commands one after the other in one JVM. Each line of standard input holds the
 * arguments of one command, separated by tabs. What the command prints goes out framed by
 * "#out BYTES" and "#err BYTES" lines, so that the reader can tell commands apart.
 */
public final class Admin {
    private Admin() {}

    public static void main(String[] args) throws Exception {
        PrintStream out = System.out;
        BufferedReader commands =
                new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            ByteArrayOutputStream printed = new ByteArrayOutputStream();
            ByteArrayOutputStream failed = new ByteArrayOutputStream();
            System.setOut(new PrintStream(printed, true, "UTF-8"));
            System.setErr(new PrintStream(failed, true, "UTF-8"));
            MQAdminStartup.main0(line.split("\t"), null);
            frame(out, "#out", printed);
            frame(out, "#err", failed);
        }
        // The clients' threads would keep the process for a while.
        System.exit(0);
    }

    private static void frame(PrintStream out, String name, ByteArrayOutputStream bytes)
            throws Exception {
        out.write((name + " " + bytes.size() + "\n").getBytes(StandardCharsets.UTF_8));
        bytes.writeTo(out);
        out.write('\n');
        out.flush();
    }
}
