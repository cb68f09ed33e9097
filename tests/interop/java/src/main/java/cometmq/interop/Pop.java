package cometmq.interop;

import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.util.Map;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.impl.consumer.RebalanceImpl;

/**
 * What only a consumer of 5.x has: it may leave the division of queues to the broker, and pop. The same source is
 * compiled against the client of 4.9, so it is reached by reflection.
 */
final class Pop {
    private Pop() {}

    /**
     * Take {@code client-rebalance}, {@code pop-invisible-ms}, and {@code pop-delays-s}: after how many seconds a
     * message that failed for the first, second … time comes again. The client has no setter for those.
     */
    static void configure(DefaultMQPushConsumer consumer, Args args) throws Exception {
        if (args.text("client-rebalance", "true").equals("false")) {
            DefaultMQPushConsumer.class.getMethod("setClientRebalance", boolean.class)
                    .invoke(consumer, false);
        }
        long invisibleMs = args.millis("pop-invisible-ms", 0);
        if (invisibleMs > 0) {
            DefaultMQPushConsumer.class.getMethod("setPopInvisibleTime", long.class)
                    .invoke(consumer, invisibleMs);
        }
        String delays = args.text("pop-delays-s", "");
        if (!delays.isEmpty()) {
            Object implementation = consumer.getDefaultMQPushConsumerImpl();
            Field field = implementation.getClass().getDeclaredField("popDelayLevel");
            field.setAccessible(true);
            int[] levels = (int[]) field.get(implementation);
            String[] seconds = delays.split(",");
            for (int i = 0; i < seconds.length; i++) {
                levels[i] = Integer.parseInt(seconds[i]);
            }
        }
    }

    /** Whether each popped message was acknowledged, or given back. */
    static boolean isIdle(DefaultMQPushConsumer consumer) {
        try {
            RebalanceImpl rebalance = consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl();
            Method table = RebalanceImpl.class.getMethod("getPopProcessQueueTable");
            for (Object queue : ((Map<?, ?>) table.invoke(rebalance)).values()) {
                if ((int) queue.getClass().getMethod("getWaiAckMsgCount").invoke(queue) > 0) {
                    return false;
                }
            }
            return true;
        } catch (NoSuchMethodException old) {
            return true; // 4.9 does not pop
        } catch (ReflectiveOperationException failure) {
            throw new IllegalStateException(failure);
        }
    }
}
