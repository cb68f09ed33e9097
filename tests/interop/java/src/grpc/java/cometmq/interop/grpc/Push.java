package cometmq.interop.grpc;

import java.util.Collections;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.FilterExpressionType;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.message.MessageView;

/**
 * A push consumer that prints every message until the line that ends the scenario. Of
 * {@code fail-times}, which take turns by a message's index, each says how often the message fails, of
 * {@code delay-ms}, which do the same, for how long the listener works.
 */
final class Push {
    private final Main args;

    Push(Main args) {
        this.args = args;
    }

    void run() throws Exception {
        AtomicInteger received = new AtomicInteger();
        String member = args.text("member", "member");
        try (PushConsumer consumer = ClientServiceProvider.loadService().newPushConsumerBuilder()
                .setClientConfiguration(args.configuration())
                .setConsumerGroup(args.text("group"))
                .setSubscriptionExpressions(Collections.singletonMap(args.text("topic"), filter(args)))
                .setConsumptionThreadCount(4)
                .setMessageListener(message -> {
                    new Line("message").with("member", member).with(message).print();
                    received.incrementAndGet();
                    pause(message);
                    return fails(args, message) ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
                }).build()) {
            new Line("started").with("member", member).print();
            Main.awaitEnd();
        }
        new Line("summary").with("received", received.get()).print();
    }

    private void pause(MessageView message) {
        String delayMs = args.inTurn("delay-ms", indexOf(message));
        try {
            Thread.sleep(delayMs.isEmpty() ? 0 : Long.parseLong(delayMs));
        } catch (InterruptedException stopped) {
            Thread.currentThread().interrupt();
        }
    }

    private static int indexOf(MessageView message) {
        return Integer.parseInt(message.getProperties().getOrDefault("index", "0"));
    }

    static FilterExpression filter(Main args) {
        FilterExpressionType type = args.flag("sql") ? FilterExpressionType.SQL92 : FilterExpressionType.TAG;
        return new FilterExpression(args.text("expression", "*"), type);
    }

    static boolean fails(Main args, MessageView message) {
        String times = args.inTurn("fail-times", indexOf(message));
        return message.getDeliveryAttempt() <= (times.isEmpty() ? 0 : Integer.parseInt(times));
    }
}
