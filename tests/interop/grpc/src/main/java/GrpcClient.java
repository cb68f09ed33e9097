import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.HashMap;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/** Does what grpc_client.py does, and prints the same lines: GrpcClient ENDPOINT GROUP. */
public class GrpcClient {
    private static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    private static final long DEADLINE_MS = 60_000;

    public static void main(String[] arguments) throws Exception {
        ClientConfiguration configuration =
            ClientConfiguration.newBuilder().setEndpoints(arguments[0]).enableSsl(false).build();
        Producer producer = PROVIDER.newProducerBuilder().setClientConfiguration(configuration)
            .setTopics("n", "f", "d", "t")
            .setTransactionChecker(message -> {
                say("checked", "\"body\": \"" + body(message) + "\"");
                return TransactionResolution.COMMIT;
            }).build();
        producer.send(message("n", "fails once").setTag("a").build());
        for (int number = 0; number < 3; number++) {
            producer.send(message("f", "in order " + number).setMessageGroup("G").build());
        }
        long now = System.currentTimeMillis();
        producer.send(message("d", "delayed").setDeliveryTimestamp(now + 2000).build());
        SendReceipt recalled =
            producer.send(message("d", "recalled").setDeliveryTimestamp(now + 8000).build());
        Object id = producer.recallMessage("d", recalled.getRecallHandle()).getMessageId();
        say("recalled", "\"same\": " + id.toString().equals(recalled.getMessageId().toString()));
        Transaction committed = producer.beginTransaction();
        producer.send(message("t", "committed").build(), committed);
        committed.commit();
        Transaction rolledBack = producer.beginTransaction();
        producer.send(message("t", "rolled back").build(), rolledBack);
        rolledBack.rollback();
        producer.send(message("t", "nobody ended").build(), producer.beginTransaction());
        receive(configuration, arguments[1] + "-simple");
        push(configuration, arguments[1] + "-push");
        producer.close();
        System.exit(0);
    }

    private static void receive(ClientConfiguration configuration, String group) throws Exception {
        SimpleConsumer consumer = PROVIDER.newSimpleConsumerBuilder()
            .setClientConfiguration(configuration).setConsumerGroup(group)
            .setAwaitDuration(Duration.ofSeconds(5))
            .setSubscriptionExpressions(Map.of("n", FilterExpression.SUB_ALL)).build();
        long until = System.currentTimeMillis() + DEADLINE_MS;
        boolean isDone = false;
        while (!isDone && System.currentTimeMillis() < until) {
            for (MessageView each : consumer.receive(4, Duration.ofSeconds(15))) {
                int attempt = each.getDeliveryAttempt();
                say("received", "\"body\": \"" + body(each) + "\", \"attempt\": " + attempt);
                if (attempt == 1) {
                    consumer.changeInvisibleDuration(each, Duration.ofSeconds(1));
                } else {
                    consumer.ack(each);
                    isDone = true;
                }
            }
        }
        say("left", "\"count\": " + consumer.receive(4, Duration.ofSeconds(15)).size());
        consumer.close();
    }

    private static void push(ClientConfiguration configuration, String group) throws Exception {
        Set<String> done = ConcurrentHashMap.newKeySet();
        Map<String, FilterExpression> topics = new HashMap<>();
        for (String topic : new String[] {"n", "f", "d", "t"}) {
            topics.put(topic, FilterExpression.SUB_ALL);
        }
        PushConsumer consumer = PROVIDER.newPushConsumerBuilder()
            .setClientConfiguration(configuration).setConsumerGroup(group)
            .setSubscriptionExpressions(topics)
            .setMessageListener(message -> {
                String body = body(message);
                int attempt = message.getDeliveryAttempt();
                say("pushed", "\"topic\": \"" + message.getTopic() + "\", \"body\": \"" + body
                    + "\", \"attempt\": " + attempt);
                if (body.equals("fails once") && attempt < 2) {
                    return ConsumeResult.FAILURE;
                }
                done.add(body);
                return ConsumeResult.SUCCESS;
            }).build();
        long until = System.currentTimeMillis() + DEADLINE_MS;
        while (done.size() < 7 && System.currentTimeMillis() < until) {
            Thread.sleep(200);
        }
        consumer.close();
    }

    private static MessageBuilder message(String topic, String body) {
        return PROVIDER.newMessageBuilder().setTopic(topic)
            .setBody(body.getBytes(StandardCharsets.UTF_8));
    }

    private static String body(MessageView message) {
        ByteBuffer buffer = message.getBody().duplicate();
        byte[] bytes = new byte[buffer.remaining()];
        buffer.get(bytes);
        return new String(bytes, StandardCharsets.UTF_8);
    }

    private static synchronized void say(String what, String fields) {
        System.out.println("{\"what\": \"" + what + "\", " + fields + "}");
    }
}
