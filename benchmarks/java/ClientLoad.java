import java.lang.management.ManagementFactory;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.remoting.exception.RemotingException;

/**
 * Loads a broker with Java's client, as benchmarks.client_load does with Python clients; see there.
 *
 * Arguments: job address topic group bodyBytes warmupSeconds seconds available inFlight batched moreClients
 */
public class ClientLoad {
    private static final com.sun.management.OperatingSystemMXBean SYSTEM =
        (com.sun.management.OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();

    private final String address;
    private final String topic;
    private final String group;
    private final byte[] body;
    private final long warmupNanos;
    private final long measuredNanos;
    private final long available;

    private final CountDownLatch over = new CountDownLatch(1);
    private long total;
    private long before;
    private long messages;
    private long failures;
    private long firstNanos;
    private long beganNanos;
    private long beganCpuNanos;
    private long tookNanos;
    private long tookCpuNanos;
    private long[] latencies = new long[1 << 16];
    private int measuredLatencies;

    ClientLoad(String[] given) {
        address = given[1];
        topic = given[2];
        group = given[3];
        body = new byte[Integer.parseInt(given[4])];
        Arrays.fill(body, (byte) 'm');
        warmupNanos = (long) (Double.parseDouble(given[5]) * 1e9);
        measuredNanos = (long) (Double.parseDouble(given[6]) * 1e9);
        available = Long.parseLong(given[7]);
    }

    public static void main(String[] given) {
        int status = 1;
        try {
            ClientLoad load = new ClientLoad(given);
            String job = given[0];
            if (job.equals("memory")) {
                System.out.println(load.memory(Integer.parseInt(given[10])));
            } else {
                load.run(job, Integer.parseInt(given[8]), Integer.parseInt(given[9]));
                System.out.println(load.result());
            }
            System.out.flush();
            status = 0;
        } catch (Exception error) {
            error.printStackTrace();
        }
        // Threads of open clients would keep the process alive.
        Runtime.getRuntime().halt(status);
    }

    private synchronized boolean add(int count, long latencyNanos) {
        long now = System.nanoTime();
        total += count;
        if (beganNanos == 0) {
            if (firstNanos == 0) {
                firstNanos = now;
            }
            if (available > 0 && total * 2 >= available || now - firstNanos >= warmupNanos) {
                beganNanos = now;
                beganCpuNanos = SYSTEM.getProcessCpuTime();
                before = total;
            }
            return true;
        }
        if (over.getCount() == 0) {
            return false;
        }
        if (latencyNanos >= 0) {
            if (measuredLatencies == latencies.length) {
                latencies = Arrays.copyOf(latencies, 2 * latencies.length);
            }
            latencies[measuredLatencies++] = latencyNanos;
        }
        if (available > 0 && total >= available || now - beganNanos >= measuredNanos) {
            tookNanos = now - beganNanos;
            tookCpuNanos = SYSTEM.getProcessCpuTime() - beganCpuNanos;
            messages = total - before;
            over.countDown();
            return false;
        }
        return true;
    }

    private synchronized void failed() {
        failures++;
    }

    private void run(String job, int inFlight, int batched) throws Exception {
        if (job.equals("listener")) {
            listen();
            return;
        }
        if (job.equals("polls")) {
            poll();
            return;
        }
        DefaultMQProducer producer = producer(0);
        if (job.equals("async")) {
            sendMany(producer, inFlight);
            return;
        }
        int count = job.equals("batch") ? batched : 1;
        long began;
        do {
            began = System.nanoTime();
            if (job.equals("sync")) {
                producer.send(new Message(topic, body));
            } else if (job.equals("oneway")) {
                sendOneway(producer);
            } else {
                List<Message> batch = new ArrayList<>();
                for (int n = 0; n < batched; n++) {
                    batch.add(new Message(topic, body));
                }
                producer.send(batch);
            }
        } while (add(count, System.nanoTime() - began));
        // One-way messages leave meanwhile; a shutdown after so many messages may never return.
        Thread.sleep(1000);
    }

    private DefaultMQProducer producer(int number) throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("bench-clients");
        producer.setNamesrvAddr(address);
        producer.setInstanceName("bench-" + number);
        producer.setSendMsgTimeout(10_000);
        producer.start();
        return producer;
    }

    private void sendMany(DefaultMQProducer producer, int inFlight) throws Exception {
        Semaphore room = new Semaphore(inFlight);
        while (over.getCount() > 0) {
            room.acquire();
            long began = System.nanoTime();
            producer.send(new Message(topic, body), new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    add(1, System.nanoTime() - began);
                    room.release();
                }

                @Override
                public void onException(Throwable error) {
                    failed();
                    room.release();
                }
            });
        }
        if (!room.tryAcquire(inFlight, 60, TimeUnit.SECONDS)) {
            throw new IllegalStateException("answers are missing");
        }
    }

    /** Waits while the client refuses messages, as it does when too many have not left yet. It may refuse
     * them for good: a message whose connection is lost keeps its permit. */
    private void sendOneway(DefaultMQProducer producer) throws Exception {
        long began = System.nanoTime();
        while (true) {
            try {
                producer.sendOneway(new Message(topic, body));
                return;
            } catch (RemotingException error) {
                if (System.nanoTime() - began > 20_000_000_000L) {
                    throw new IllegalStateException("the client refuses messages for 20 s", error);
                }
                Thread.sleep(1);
            }
        }
    }

    private void listen() throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(address);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (found, context) -> {
            add(found.size(), -1);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        if (!over.await(measuredNanos + warmupNanos + 60_000_000_000L, TimeUnit.NANOSECONDS)) {
            throw new IllegalStateException("no progress after " + total + " messages");
        }
    }

    private void poll() throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(group);
        consumer.setNamesrvAddr(address);
        consumer.subscribe(topic, "*");
        consumer.start();
        while (add(consumer.poll().size(), -1)) {
        }
    }

    private String memory(int more) throws Exception {
        DefaultMQProducer first = producer(0);
        first.send(new Message(topic, body));
        long[] one = look();
        for (int number = 1; number <= more; number++) {
            producer(number).send(new Message(topic, body));
        }
        long[] many = look();
        return String.format(Locale.ROOT,
            "{\"resident_kib\": %d, \"threads\": %d, \"each_kib\": %.1f, \"each_threads\": %.1f}",
            one[0], one[2], (many[1] - one[1]) / (double) more, (many[2] - one[2]) / (double) more);
    }

    /** Returns resident and anonymous memory in KiB, and the number of threads. */
    private static long[] look() throws Exception {
        System.gc();
        long[] found = new long[3];
        for (String line : Files.readAllLines(Paths.get("/proc/self/status"))) {
            String[] parts = line.split("\\s+");
            if (parts[0].equals("VmRSS:")) {
                found[0] = Long.parseLong(parts[1]);
            } else if (parts[0].equals("RssAnon:")) {
                found[1] = Long.parseLong(parts[1]);
            } else if (parts[0].equals("Threads:")) {
                found[2] = Long.parseLong(parts[1]);
            }
        }
        return found;
    }

    private String result() {
        String p50 = "null";
        String p99 = "null";
        if (measuredLatencies >= 100) {
            long[] sorted = Arrays.copyOf(latencies, measuredLatencies);
            Arrays.sort(sorted);
            p50 = String.format(Locale.ROOT, "%.3f", sorted[measuredLatencies / 2] / 1e6);
            p99 = String.format(Locale.ROOT, "%.3f", sorted[(int) (measuredLatencies * 0.99)] / 1e6);
        }
        return String.format(Locale.ROOT,
            "{\"messages\": %d, \"seconds\": %.4f, \"cpu_seconds\": %.4f, \"p50_ms\": %s, \"p99_ms\": %s,"
                + " \"total\": %d, \"failures\": %d}",
            messages, tookNanos / 1e9, tookCpuNanos / 1e9, p50, p99, total, failures);
    }
}
