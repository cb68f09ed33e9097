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
 * {@code fail-times}, which take turns by a message's index, each says how often the message fails.
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
                    pause();
                    return fails(args, message) ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
                }).build()) {
            new Line("started").with("member", member).print();
            Main.awaitEnd();
        }
        new Line("summary").with("received", received.get()).print();
    }

    private void pause() {
        try {
            Thread.sleep(args.number("delay-ms", 0));
        } catch (InterruptedException stopped) {
            Thread.currentThread().interrupt();
        }
    }

    static FilterExpression filter(Main args) {
        FilterExpressionType type = args.flag("sql") ? FilterExpressionType.SQL92 : FilterExpressionType.TAG;
        return new FilterExpression(args.text("expression", "*"), type);
    }

    static boolean fails(Main args, MessageView message) {
        int index = Integer.parseInt(message.getProperties().getOrDefault("index", "0"));
        String times = args.inTurn("fail-times", index);
        return message.getDeliveryAttempt() <= (times.isEmpty() ? 0 : Integer.parseInt(times));
    }
}
