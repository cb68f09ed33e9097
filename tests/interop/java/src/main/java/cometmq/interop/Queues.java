package cometmq.interop;

import java.util.Set;
import java.util.TreeSet;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Looks at the queues of topics without a group's rebalance: their offsets, all their messages. */
final class Queues {
    private static final int BATCH = 32;

    private final Args args;

    Queues(Args args) {
        this.args = args;
    }

    /** Minimum, maximum and committed offset and the one at {@code timestamp}, of each queue. */
    void offsets() throws Exception {
        DefaultMQPullConsumer consumer = start();
        try {
            for (MessageQueue queue : queues(consumer)) {
                new Event("queue")
                    .with(queue)
                    .with("min", consumer.minOffset(queue))
                    .with("max", consumer.maxOffset(queue))
                    .with("searched", consumer.searchOffset(queue, args.millis("timestamp", 0)))
                    .with("committed", consumer.fetchConsumeOffset(queue, true))
                    .print();
            }
        } finally {
            consumer.shutdown();
        }
        new Event("summary").print();
    }

    /** Every message of every queue from its minimum offset. */
    void pull() throws Exception {
        DefaultMQPullConsumer consumer = start();
        int received = 0;
        try {
            for (MessageQueue queue : queues(consumer)) {
                received += pull(consumer, queue);
            }
        } finally {
            consumer.shutdown();
        }
        new Event("summary").with("received", received).print();
    }

    private int pull(DefaultMQPullConsumer consumer, MessageQueue queue) throws Exception {
        long offset = consumer.minOffset(queue);
        long end = consumer.maxOffset(queue);
        int received = 0;
        while (offset < end) {
            PullResult result = consumer.pull(queue, args.text("expression", "*"), offset, BATCH);
            new Event("pulled")
                .with("queueId", queue.getQueueId())
                .with("status", result.getPullStatus())
                .with("next", result.getNextBeginOffset())
                .print();
            if (result.getPullStatus() == PullStatus.FOUND) {
                for (MessageExt message : result.getMsgFoundList()) {
                    new Event("message").with(message).print();
                    received++;
                }
            }
            if (result.getNextBeginOffset() <= offset) {
                throw new IllegalStateException("no progress at " + offset + ": " + result);
            }
            offset = result.getNextBeginOffset();
        }
        return received;
    }

    private DefaultMQPullConsumer start() throws Exception {
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(args.text("group", "interop-pull"));
        consumer.setNamesrvAddr(args.text("namesrv"));
        consumer.setInstanceName(args.text("member", "pull"));
        consumer.start();
        return consumer;
    }

    /** The queues of every topic named, a comma between topics. */
    private Set<MessageQueue> queues(DefaultMQPullConsumer consumer) throws Exception {
        Set<MessageQueue> queues = new TreeSet<>();
        for (String topic : args.text("topic").split(",")) {
            queues.addAll(consumer.fetchSubscribeMessageQueues(topic));
        }
        return queues;
    }
}
