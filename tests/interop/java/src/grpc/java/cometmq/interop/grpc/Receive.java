package cometmq.interop.grpc;

import java.time.Duration;
import java.util.Collections;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.MessageView;

/**
 * A simple consumer that receives until it has acknowledged {@code expected} messages. Of
 * {@code fail-times}, which take turns by a message's index, each says how often the message is made
 * visible again after {@code hide-s} in place of an acknowledgement. With {@code extend-s} each other
 * message is hidden for so long anew, and held for {@code hold-ms}, before its acknowledgement.
 */
final class Receive {
    private final Main args;

    Receive(Main args) {
        this.args = args;
    }

    void run() throws Exception {
        int expected = args.number("expected", 1);
        Duration hidden = Duration.ofSeconds(args.number("invisible-s", 30));
        int done = 0;
        try (SimpleConsumer consumer = ClientServiceProvider.loadService().newSimpleConsumerBuilder()
                .setClientConfiguration(args.configuration())
                .setConsumerGroup(args.text("group"))
                .setAwaitDuration(Duration.ofSeconds(args.number("await-s", 5)))
                .setSubscriptionExpressions(
                    Collections.singletonMap(args.text("topic"), Push.filter(args)))
                .build()) {
            new Line("started").print();
            while (done < expected) {
                for (MessageView message : consumer.receive(16, hidden)) {
                    new Line("message").with(message).print();
                    if (Push.fails(args, message)) {
                        consumer.changeInvisibleDuration(
                            message, Duration.ofSeconds(args.number("hide-s", 1)));
                        continue;
                    }
                    if (args.number("extend-s", 0) > 0) {
                        consumer.changeInvisibleDuration(
                            message, Duration.ofSeconds(args.number("extend-s", 0)));
                        Thread.sleep(args.number("hold-ms", 0));
                    }
                    consumer.ack(message);
                    new Line("acknowledged").with("msgId", message.getMessageId()).print();
                    done++;
                }
            }
        }
        new Line("summary").with("received", done).print();
    }
}
