package cometmq.interop;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.common.ClientErrorCode;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * Sends {@code count} messages in one mode and prints the result of each send; {@code delays} take
 * turns ({@code level:2}, {@code sec:1}, {@code ms:1500}, {@code at:2000} for so many ms from now,
 * nothing). Afterwards recalls those whose indexes {@code recall} names.
 */
final class Produce {
    private static final int ASYNC_IN_FLIGHT = 64;

    private final Args args;
    private final String topic;
    private final String prefix;
    private final String[] tags;
    private final int first;
    private final int count;
    private final int size;
    private final String[] delays;
    private final Map<Integer, String> recallHandles = new ConcurrentHashMap<>();
    private final AtomicInteger failed = new AtomicInteger();

    Produce(Args args) {
        this.args = args;
        topic = args.text("topic");
        prefix = args.text("prefix", "m");
        tags = args.text("tags", "").split(",");
        first = args.number("first", 0);
        count = args.number("count", 10);
        size = args.number("size", 64);
        delays = args.text("delays", "").split(",", -1);
    }

    void run() throws Exception {
        String group = args.text("group", "interop-producer");
        DefaultMQProducer producer = new DefaultMQProducer(
            args.text("namespace", null), group, Access.hook(args), args.flag("trace"), null);
        Access.reach(producer, args);
        producer.setInstanceName(args.text("member", "producer"));
        producer.setSendMsgTimeout(Args.PATIENCE_MS);
        producer.start();
        try {
            send(producer, args.text("mode", "sync"));
            recall(producer);
            if (args.flag("until-stdin")) {
                Main.awaitEnd();
            } else {
                Args.letTracesLeave(args);
            }
        } finally {
            producer.shutdown();
        }
        new Event("summary").with("sent", count - failed.get()).with("failed", failed.get()).print();
    }

    private void send(DefaultMQProducer producer, String mode) throws Exception {
        switch (mode) {
            case "sync":
                for (int i = first; i < first + count; i++) {
                    SendResult result = sendOne(producer, message(i));
                    String handle = recallHandle(result);
                    if (handle != null) {
                        recallHandles.put(i, handle);
                    }
                    sent(i, 1, result);
                }
                break;
            case "async":
                sendAsync(producer);
                break;
            case "oneway":
                for (int i = first; i < first + count; i++) {
                    producer.sendOneway(message(i));
                    new Event("sent").with("index", i).with("count", 1).print();
                }
                // Nothing answers a one-way request: give the sockets time before they close.
                Thread.sleep(1000);
                break;
            case "batch":
                sendBatches(producer, args.number("batch", 10));
                break;
            default:
                throw new IllegalArgumentException("unknown mode " + mode);
        }
    }

    private SendResult sendOne(DefaultMQProducer producer, Message message) throws Exception {
        long deadline = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(Args.PATIENCE_MS);
        while (true) {
            try {
                return sendOnce(producer, message);
            } catch (MQClientException failure) {
                // Nothing was sent: the client gives its name server three seconds at some places.
                boolean routeIsMissing =
                    failure.getResponseCode() == ClientErrorCode.NOT_FOUND_TOPIC_EXCEPTION;
                if (!routeIsMissing || args.flag("may-fail") || System.nanoTime() > deadline) {
                    throw failure;
                }
                Thread.sleep(200);
            }
        }
    }

    private SendResult sendOnce(DefaultMQProducer producer, Message message) throws Exception {
        int queueId = args.number("queue", -1);
        if (queueId < 0) {
            return producer.send(message);
        }
        return producer.send(message, (List<MessageQueue> queues, Message sending, Object wanted) -> {
            for (MessageQueue queue : queues) {
                if (queue.getQueueId() == (Integer) wanted) {
                    return queue;
                }
            }
            throw new IllegalStateException("no queue " + wanted);
        }, queueId);
    }

    private void sendAsync(DefaultMQProducer producer) throws Exception {
        CountDownLatch done = new CountDownLatch(count);
        Semaphore inFlight = new Semaphore(ASYNC_IN_FLIGHT);
        for (int i = first; i < first + count; i++) {
            int index = i;
            inFlight.acquire();
            producer.send(message(i), new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    sent(index, 1, result);
                    inFlight.release();
                    done.countDown();
                }

                @Override
                public void onException(Throwable cause) {
                    failed.incrementAndGet();
                    new Event("failed").with("index", index).with("error", cause).print();
                    inFlight.release();
                    done.countDown();
                }
            });
        }
        if (!done.await(2L * Args.PATIENCE_MS, TimeUnit.MILLISECONDS)) {
            throw new IllegalStateException(done.getCount() + " sends without an answer");
        }
    }

    private void sendBatches(DefaultMQProducer producer, int batch) throws Exception {
        for (int i = first; i < first + count; i += batch) {
            List<Message> messages = new ArrayList<>();
            for (int j = i; j < Math.min(i + batch, first + count); j++) {
                messages.add(message(j));
            }
            sent(i, messages.size(), producer.send(messages));
        }
    }

    Message message(int index) {
        Message message = new Message(topic, tags[index % tags.length], body(index, size));
        message.setKeys(prefix + "-" + index + " all-" + prefix);
        message.putUserProperty("index", Integer.toString(index));
        message.putUserProperty("note", "gr\u00fcn \u20ac \uD83D\uDE00");
        message.setFlag(index % 7);
        delay(message, delays[index % delays.length]);
        return message;
    }

    private static void delay(Message message, String delay) {
        String[] parts = delay.split(":");
        switch (parts[0]) {
            case "":
                break;
            case "level":
                message.setDelayTimeLevel(Integer.parseInt(parts[1]));
                break;
            case "sec":
                timer(message, "setDelayTimeSec", "TIMER_DELAY_SEC", Long.parseLong(parts[1]));
                break;
            case "ms":
                timer(message, "setDelayTimeMs", "TIMER_DELAY_MS", Long.parseLong(parts[1]));
                break;
            case "at":
                timer(message, "setDeliverTimeMs", "TIMER_DELIVER_MS",
                    System.currentTimeMillis() + Long.parseLong(parts[1]));
                break;
            default:
                throw new IllegalArgumentException("unknown delay " + delay);
        }
    }

    /** The 4.9 client has no such setter, but its messages carry the property. */
    private static void timer(Message message, String setter, String property, long value) {
        try {
            Message.class.getMethod(setter, long.class).invoke(message, value);
        } catch (NoSuchMethodException none) {
            MessageAccessor.putProperty(message, property, Long.toString(value));
        } catch (ReflectiveOperationException failure) {
            throw new IllegalStateException(failure);
        }
    }

    private void recall(DefaultMQProducer producer) throws Exception {
        String indexes = args.text("recall", "");
        if (indexes.isEmpty()) {
            return;
        }
        // The 4.9 client does not compile with a call of it.
        java.lang.reflect.Method recall =
            DefaultMQProducer.class.getMethod("recallMessage", String.class, String.class);
        for (String index : indexes.split(",")) {
            Object id = recall.invoke(producer, topic, recallHandles.get(Integer.valueOf(index)));
            new Event("recalled").with("index", Integer.valueOf(index)).with("msgId", id).print();
        }
    }

    private static String recallHandle(SendResult result) {
        try {
            return (String) SendResult.class.getMethod("getRecallHandle").invoke(result);
        } catch (NoSuchMethodException none) {
            return null;
        } catch (ReflectiveOperationException failure) {
            throw new IllegalStateException(failure);
        }
    }

    /** The pattern every client program of the suite sends. */
    static byte[] body(int index, int size) {
        byte[] body = new byte[size];
        for (int j = 0; j < size; j++) {
            body[j] = (byte) (index * 31 + j * 7 + j / 256);
        }
        return body;
    }

    static void sent(int index, int count, SendResult result) {
        new Event("sent")
            .with("index", index)
            .with("count", count)
            .with("status", result.getSendStatus())
            .with("msgId", result.getMsgId())
            .with("offsetMsgId", result.getOffsetMsgId())
            .with(result.getMessageQueue())
            .with("queueOffset", result.getQueueOffset())
            .with("recallHandle", recallHandle(result))
            .print();
    }
}
