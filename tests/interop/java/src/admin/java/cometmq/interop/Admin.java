package cometmq.interop;

import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.tools.command.MQAdminStartup;
import org.apache.rocketmq.tools.command.SubCommand;

/**
 * Runs mqadmin commands one after the other in one JVM. Each line of standard input holds, separated
 * by tabs, after how many lines a command is interrupted (0: never) and its arguments. What it prints
 * goes out framed by "#out BYTES" and "#err BYTES" lines, so that the reader can tell commands apart.
 * The line "commands" prints the names of all commands.
 */
public final class Admin {
    private static final int LIMIT_S = 120;
    private static final int PAUSE_MS = 10;

    private Admin() {}

    public static void main(String[] args) throws Exception {
        PrintStream out = System.out;
        List<SubCommand> registered = registered();
        BufferedReader lines =
                new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            ByteArrayOutputStream printed = new ByteArrayOutputStream();
            ByteArrayOutputStream failed = new ByteArrayOutputStream();
            System.setOut(new PrintStream(printed, true, "UTF-8"));
            System.setErr(new PrintStream(failed, true, "UTF-8"));
            // Some commands keep their clients, so each run gets commands of its own.
            registered.clear();
            if (line.equals("commands")) {
                MQAdminStartup.initCommand();
                registered.forEach(command -> System.out.println(command.commandName()));
            } else {
                run(line.split("\t"), printed);
            }
            frame(out, "#out", printed);
            frame(out, "#err", failed);
        }
        // The clients' threads would keep the process for a while.
        System.exit(0);
    }

    private static void run(String[] words, ByteArrayOutputStream printed)
            throws InterruptedException {
        String[] command = Arrays.copyOfRange(words, 1, words.length);
        int lines = Integer.parseInt(words[0]);
        Thread thread = new Thread(() -> MQAdminStartup.main0(command, null), "command");
        thread.start();
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(LIMIT_S);
        while (thread.isAlive() && System.nanoTime() < deadline) {
            thread.join(PAUSE_MS);
            if (lines > 0 && lines(printed) >= lines) {
                thread.interrupt();
            }
            hurryShutdown(thread);
        }
        if (thread.isAlive()) {
            System.err.println(command[0] + " did not end within " + LIMIT_S + " s");
        }
    }

    private static long lines(ByteArrayOutputStream printed) {
        return printed.toString().chars().filter(each -> each == '\n').count();
    }

    /** A client that is shut down waits for a thread that polls for three seconds. */
    private static void hurryShutdown(Thread command) {
        boolean waits = Arrays.stream(command.getStackTrace())
                .anyMatch(frame -> frame.getClassName().endsWith("ServiceThread"));
        if (waits) {
            Thread.getAllStackTraces().keySet().stream()
                    .filter(other -> other.getName().contains("NettyEventExecutor"))
                    .forEach(Thread::interrupt);
        }
    }

    /** The list of commands, which 4.9 and 5.3 name differently. */
    @SuppressWarnings("unchecked")
    private static List<SubCommand> registered() throws IllegalAccessException {
        for (Field field : MQAdminStartup.class.getDeclaredFields()) {
            if (field.getType() == List.class) {
                field.setAccessible(true);
                return (List<SubCommand>) field.get(null);
            }
        }
        throw new IllegalStateException("MQAdminStartup has no list of commands");
    }

    private static void frame(PrintStream out, String name, ByteArrayOutputStream bytes)
            throws Exception {
        out.write((name + " " + bytes.size() + "\n").getBytes(StandardCharsets.UTF_8));
        bytes.writeTo(out);
        out.write('\n');
        out.flush();
    }
}
