package cometmq.interop;

import java.nio.charset.StandardCharsets;
import java.util.Set;
import java.util.TreeSet;
import java.util.function.Consumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.trace.TraceBean;
import org.apache.rocketmq.client.trace.TraceContext;
import org.apache.rocketmq.client.trace.TraceDataEncoder;
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
        pullAll(message -> new Event("message").with(message).print());
    }

    /** Every message of a trace topic, as the client's own decoder reads it. */
    void traces() throws Exception {
        pullAll(message -> {
            String text = new String(message.getBody(), StandardCharsets.UTF_8);
            for (TraceContext context : TraceDataEncoder.decoderFromTraceDataString(text)) {
                TraceBean bean = context.getTraceBeans().get(0);
                new Event("trace")
                    .with("type", context.getTraceType())
                    .with("group", context.getGroupName())
                    .with("regionId", context.getRegionId())
                    .with("timestamp", context.getTimeStamp())
                    .with("cost", context.getCostTime())
                    .with("success", context.isSuccess())
                    .with("requestId", context.getRequestId())
                    .with("contextCode", context.getContextCode())
                    .with("topic", bean.getTopic())
                    .with("msgId", bean.getMsgId())
                    .with("offsetMsgId", bean.getOffsetMsgId())
                    .with("tags", bean.getTags())
                    .with("keys", bean.getKeys())
                    .with("storeHost", bean.getStoreHost())
                    .with("bodyLength", bean.getBodyLength())
                    .with("retryTimes", bean.getRetryTimes())
                    .with("msgType", bean.getMsgType())
                    .with("state", bean.getTransactionState())
                    .with("messageKeys", message.getKeys())
                    .print();
            }
        });
    }

    private void pullAll(Consumer<MessageExt> each) throws Exception {
        DefaultMQPullConsumer consumer = start();
        int received = 0;
        try {
            for (MessageQueue queue : queues(consumer)) {
                received += pull(consumer, queue, each);
            }
        } finally {
            consumer.shutdown();
        }
        new Event("summary").with("received", received).print();
    }

    private int pull(
        DefaultMQPullConsumer consumer, MessageQueue queue, Consumer<MessageExt> each
    ) throws Exception {
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
                    each.accept(message);
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
        DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(
            args.text("group", "interop-pull"), Access.hook(args));
        Access.reach(consumer, args);
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
