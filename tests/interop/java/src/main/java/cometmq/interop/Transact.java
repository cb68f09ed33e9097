package cometmq.interop;

import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * A transaction producer: sends {@code count} messages whose verdicts take turns through
 * {@code verdicts}, and answers every check with {@code check}, until the line that ends the
 * scenario.
 */
final class Transact {
    private final Args args;
    private final String[] verdicts;
    private final AtomicInteger checked = new AtomicInteger();

    Transact(Args args) {
        this.args = args;
        verdicts = args.text("verdicts", "commit").split(",");
    }

    void run() throws Exception {
        Produce messages = new Produce(args);
        TransactionMQProducer producer = new TransactionMQProducer(
            args.text("group"), Access.hook(args));
        Access.reach(producer, args);
        producer.setInstanceName(args.text("member", "transact"));
        producer.setSendMsgTimeout(Args.PATIENCE_MS);
        producer.setTransactionListener(new Listener());
        producer.start();
        try {
            new Event("started").with("member", args.text("member", "transact")).print();
            int first = args.number("first", 0);
            for (int i = first; i < first + args.number("count", 0); i++) {
                TransactionSendResult result =
                    producer.sendMessageInTransaction(messages.message(i), i);
                Produce.sent(i, 1, result);
                new Event("state").with("index", i)
                    .with("state", result.getLocalTransactionState()).print();
            }
            new Event("all-sent").print();
            Main.awaitEnd();
        } finally {
            producer.shutdown();
        }
        new Event("summary").with("checked", checked.get()).print();
    }

    private static LocalTransactionState state(String verdict) {
        switch (verdict) {
            case "commit":
                return LocalTransactionState.COMMIT_MESSAGE;
            case "rollback":
                return LocalTransactionState.ROLLBACK_MESSAGE;
            case "raise":
                throw new IllegalStateException("the listener was told to fail");
            default:
                return LocalTransactionState.UNKNOW;
        }
    }

    private final class Listener implements TransactionListener {
        @Override
        public LocalTransactionState executeLocalTransaction(Message message, Object index) {
            return state(verdicts[(Integer) index % verdicts.length]);
        }

        @Override
        public LocalTransactionState checkLocalTransaction(MessageExt message) {
            checked.incrementAndGet();
            new Event("checked").with(message)
                .with("transactionId", message.getTransactionId()).print();
            return state(args.text("check", "unknown"));
        }
    }
}
