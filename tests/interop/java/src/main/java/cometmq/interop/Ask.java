package cometmq.interop;

import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.RequestCallback;
import org.apache.rocketmq.common.message.Message;

/**
 * Sends {@code count} requests, one after the other, and prints the reply to each, or the failure
 * after {@code ttl-ms}. With a callback: the blocking form of 5.3.3 waits for the broker's answer
 * instead of the reply, and even the callback is told of that first, without a message.
 */
final class Ask {
    private final Args args;

    Ask(Args args) {
        this.args = args;
    }

    void run() throws Exception {
        Produce messages = new Produce(args);
        DefaultMQProducer producer = new DefaultMQProducer(
            args.text("group", "interop-requester"), Access.hook(args));
        Access.reach(producer, args);
        producer.setInstanceName(args.text("member", "requester"));
        producer.start();
        int failed = 0;
        int first = args.number("first", 0);
        int count = args.number("count", 10);
        try {
            for (int i = first; i < first + count; i++) {
                try {
                    Message reply = ask(producer, messages.message(i));
                    new Event("replied").with("index", i).withContent(reply).print();
                } catch (Exception failure) {
                    failed++;
                    new Event("failed").with("index", i).with("error", failure).print();
                }
            }
        } finally {
            producer.shutdown();
        }
        new Event("summary").with("sent", count - failed).with("failed", failed).print();
    }

    private Message ask(DefaultMQProducer producer, Message message) throws Exception {
        long ttlMs = args.millis("ttl-ms", 10_000);
        CompletableFuture<Message> replied = new CompletableFuture<>();
        producer.request(message, new RequestCallback() {
            @Override
            public void onSuccess(Message reply) {
                if (reply != null) {
                    replied.complete(reply);
                }
            }

            @Override
            public void onException(Throwable cause) {
                replied.completeExceptionally(cause);
            }
        }, ttlMs);
        return replied.get(ttlMs + 30_000, TimeUnit.MILLISECONDS);
    }
}
