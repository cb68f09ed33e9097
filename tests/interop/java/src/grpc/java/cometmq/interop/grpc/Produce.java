package cometmq.interop.grpc;

import java.util.HashMap;
import java.util.Map;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.RecallReceipt;
import org.apache.rocketmq.client.apis.producer.SendReceipt;

/**
 * Sends {@code count} messages and prints the receipt of each; {@code groups}, {@code delays-ms} and
 * {@code priorities} take turns by the message's index. Afterwards recalls those whose indexes
 * {@code recall} names.
 */
final class Produce {
    private final Main args;
    private final String topic;

    Produce(Main args) {
        this.args = args;
        topic = args.text("topic");
    }

    void run() throws Exception {
        int first = args.number("first", 0);
        int count = args.number("count", 10);
        Map<Integer, String> handles = new HashMap<>();
        try (Producer producer = ClientServiceProvider.loadService().newProducerBuilder()
                .setClientConfiguration(args.configuration()).setTopics(topic).build()) {
            for (int i = first; i < first + count; i++) {
                SendReceipt receipt = producer.send(message(args, i).build());
                handles.put(i, receipt.getRecallHandle());
                new Line("sent").with("index", i).with("msgId", receipt.getMessageId())
                    .with("recallHandle", receipt.getRecallHandle()).print();
            }
            for (String index : args.text("recall", "").split(",")) {
                if (!index.isEmpty()) {
                    RecallReceipt receipt =
                        producer.recallMessage(topic, handles.get(Integer.valueOf(index)));
                    new Line("recalled").with("index", Integer.valueOf(index))
                        .with("msgId", receipt.getMessageId()).print();
                }
            }
        }
        new Line("summary").with("sent", count).with("failed", 0).print();
    }

    static MessageBuilder message(Main args, int index) {
        String prefix = args.text("prefix", "m");
        MessageBuilder builder = ClientServiceProvider.loadService().newMessageBuilder()
            .setTopic(args.text("topic"))
            .setKeys(prefix + "-" + index, "all-" + prefix)
            .addProperty("index", Integer.toString(index))
            .addProperty("note", "gr\u00fcn \u20ac \uD83D\uDE00")
            .setBody(body(index, args.number("size", 64)));
        String tag = args.inTurn("tags", index);
        if (!tag.isEmpty()) {
            builder.setTag(tag);
        }
        String group = args.inTurn("groups", index);
        if (!group.isEmpty()) {
            builder.setMessageGroup(group);
        }
        String delayMs = args.inTurn("delays-ms", index);
        if (!delayMs.isEmpty()) {
            builder.setDeliveryTimestamp(System.currentTimeMillis() + Long.parseLong(delayMs));
        }
        String priority = args.inTurn("priorities", index);
        if (!priority.isEmpty()) {
            builder.setPriority(Integer.parseInt(priority));
        }
        return builder;
    }

    /** The pattern every client program of the suite sends. */
    private static byte[] body(int index, int size) {
        byte[] body = new byte[size];
        for (int j = 0; j < size; j++) {
            body[j] = (byte) (index * 31 + j * 7 + j / 256);
        }
        return body;
    }
}
