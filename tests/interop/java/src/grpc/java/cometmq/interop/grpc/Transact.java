package cometmq.interop.grpc;

import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/**
 * Sends {@code count} half messages; {@code verdicts} ({@code commit}, {@code rollback}, or
 * {@code unknown} for none) take turns. The broker asks about those without one, and the answer is
 * {@code check}; about one that has its verdict, it is that verdict. It goes on until the line that
 * ends the scenario.
 */
final class Transact {
    private final Main args;

    Transact(Main args) {
        this.args = args;
    }

    void run() throws Exception {
        int count = args.number("count", 3);
        try (Producer producer = ClientServiceProvider.loadService().newProducerBuilder()
                .setClientConfiguration(args.configuration())
                .setTopics(args.text("topic"))
                .setTransactionChecker(message -> {
                    new Line("checked").with(message).print();
                    int index = Integer.parseInt(message.getProperties().get("index"));
                    String verdict = args.inTurn("verdicts", index);
                    return resolution(
                        verdict.equals("unknown") ? args.text("check", "commit") : verdict);
                }).build()) {
            for (int i = 0; i < count; i++) {
                Transaction transaction = producer.beginTransaction();
                SendReceipt receipt =
                    producer.send(Produce.message(args, i).build(), transaction);
                new Line("sent").with("index", i).with("msgId", receipt.getMessageId()).print();
                switch (args.inTurn("verdicts", i)) {
                    case "commit":
                        transaction.commit();
                        break;
                    case "rollback":
                        transaction.rollback();
                        break;
                    default:
                        break;
                }
            }
            new Line("all-sent").print();
            Main.awaitEnd();
        }
        new Line("summary").with("sent", count).print();
    }

    private static TransactionResolution resolution(String name) {
        switch (name) {
            case "commit":
                return TransactionResolution.COMMIT;
            case "rollback":
                return TransactionResolution.ROLLBACK;
            default:
                return TransactionResolution.UNKNOWN;
        }
    }
}
