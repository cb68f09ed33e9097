package cometmq.interop;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.Predicate;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Push consumers of one group, printing every message. They run until {@code expected} messages
 * came, until {@code timeout-ms} passed, or, with {@code until-stdin=true}, until the line that
 * ends the scenario. Of {@code fail-times}, which take turns by a message's index, each says how
 * often the message fails. With {@code reply=true} each message is replied to with the pattern of
 * the next index.
 */
final class Consume {
    private static final int REPLY_SIZE = 64;

    private final Args args;
    private final String[] failTimes;
    private DefaultMQProducer replier;
    private final AtomicInteger received = new AtomicInteger();
    private final CountDownLatch done = new CountDownLatch(1);

    Consume(Args args) {
        this.args = args;
        failTimes = args.text("fail-times", "0").split(",");
    }

    void run() throws Exception {
        List<DefaultMQPushConsumer> members = new ArrayList<>();
        int count = args.number("members", 1);
        try {
            if (args.flag("reply")) {
                replier = new DefaultMQProducer(
                    args.text("group") + "-replies", Access.hook(args));
                Access.reach(replier, args);
                replier.setInstanceName("replier");
                replier.start();
            }
            for (int i = 0; i < count; i++) {
                String name = args.text("member", "member") + (count > 1 ? "-" + i : "");
                members.add(start(name));
                new Event("started").with("member", name).print();
            }
            await();
            for (DefaultMQPushConsumer member : members) {
                settle(member);
            }
            Args.letTracesLeave(args);
        } finally {
            members.forEach(DefaultMQPushConsumer::shutdown);
            if (replier != null) {
                replier.shutdown();
            }
        }
        new Event("summary").with("received", received.get()).print();
    }

    private void await() throws Exception {
        if (args.flag("until-stdin")) {
            Main.awaitEnd();
        } else {
            done.await(args.millis("timeout-ms", 60_000), TimeUnit.MILLISECONDS);
        }
    }

    /**
     * The listener counts a message before its client has noted it as consumed: a shutdown in
     * between would leave an older offset at the broker. A message leaves its queue before the offset
     * is noted, so a shutdown waits for the threads of listeners, too.
     */
    private static void settle(DefaultMQPushConsumer member) throws InterruptedException {
        long deadline = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(Args.PATIENCE_MS);
        while (System.nanoTime() < deadline) {
            boolean idle = member.getDefaultMQPushConsumerImpl().getRebalanceImpl()
                .getProcessQueueTable().values().stream()
                .allMatch(queue -> queue.getMsgCount().get() == 0);
            if (idle && Pop.isIdle(member)) {
                return;
            }
            Thread.sleep(10);
        }
    }

    private DefaultMQPushConsumer start(String member) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(
            args.text("namespace", null), args.text("group"), Access.hook(args),
            new AllocateMessageQueueAveragely(), args.flag("trace"), null);
        Access.reach(consumer, args);
        consumer.setInstanceName(member);
        consumer.setConsumeFromWhere("last".equals(args.text("from", "first"))
            ? ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET
            : ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setPersistConsumerOffsetInterval(1000);
        consumer.setAwaitTerminationMillisWhenShutdown(Args.PATIENCE_MS);
        consumer.setMaxReconsumeTimes(args.number("max-reconsume-times", -1));
        Pop.configure(consumer, args);
        String classFilter = args.text("class-filter", null);
        if (classFilter == null) {
            consumer.subscribe(args.text("topic"), args.text("expression", "*"));
        } else {
            consumer.subscribe(args.text("topic"), classFilter, "");
        }
        int expected = args.number("expected", Integer.MAX_VALUE);
        long delayMs = args.millis("delay-ms", 0);
        Predicate<List<MessageExt>> listener = messages -> {
            boolean failed = false;
            for (MessageExt message : messages) {
                new Event("message").with("member", member).with(message).print();
                pause(delayMs);
                reply(message);
                failed |= fails(message);
                if (received.incrementAndGet() >= expected) {
                    done.countDown();
                }
            }
            return !failed;
        };
        listen(consumer, listener);
        consumer.start();
        return consumer;
    }

    private void listen(DefaultMQPushConsumer consumer, Predicate<List<MessageExt>> listener) {
        if (args.flag("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) ->
                listener.test(messages)
                    ? ConsumeOrderlyStatus.SUCCESS
                    : ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT);
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) ->
                listener.test(messages)
                    ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS
                    : ConsumeConcurrentlyStatus.RECONSUME_LATER);
        }
    }

    private boolean fails(MessageExt message) {
        int index = index(message);
        return message.getReconsumeTimes() < Integer.parseInt(failTimes[index % failTimes.length]);
    }

    private void reply(MessageExt message) {
        if (replier != null) {
            byte[] body = Produce.body(index(message) + 1, REPLY_SIZE);
            try {
                replier.send(
                    MessageUtil.createReplyMessage(message, body), Args.PATIENCE_MS);
            } catch (Exception failure) {
                new Event("reply-failed").with("index", index(message)).with("error", failure).print();
            }
        }
    }

    private static int index(MessageExt message) {
        String index = message.getUserProperty("index");
        return index == null ? 0 : Integer.parseInt(index);
    }

    private static void pause(long delayMs) {
        if (delayMs > 0) {
            try {
                Thread.sleep(delayMs);
            } catch (InterruptedException interrupted) {
                Thread.currentThread().interrupt();
            }
        }
    }
}
