package cometmq.interop;

import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.TreeMap;
import java.util.zip.CRC32;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageClientExt;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** One JSON line of output. */
final class Event {
    private final Map<String, Object> fields = new LinkedHashMap<>();

    Event(String name) {
        fields.put("event", name);
    }

    Event with(String name, Object value) {
        fields.put(name, value);
        return this;
    }

    Event with(MessageQueue queue) {
        return with("topic", queue.getTopic())
            .with("brokerName", queue.getBrokerName())
            .with("queueId", queue.getQueueId());
    }

    /** What a message carries; the body as size and CRC-32. */
    Event withContent(Message message) {
        CRC32 crc = new CRC32();
        crc.update(message.getBody());
        return with("topic", message.getTopic())
            .with("tags", message.getTags())
            .with("keys", message.getKeys())
            .with("properties", new TreeMap<>(message.getProperties()))
            .with("size", message.getBody().length)
            .with("crc32", crc.getValue())
            .with("flag", message.getFlag());
    }

    /** Everything a test compares of a received message. */
    Event with(MessageExt message) {
        String offsetMsgId = message instanceof MessageClientExt
            ? ((MessageClientExt) message).getOffsetMsgId() : null;
        return withContent(message)
            .with("msgId", message.getMsgId())
            .with("offsetMsgId", offsetMsgId)
            .with("brokerName", message.getBrokerName())
            .with("queueId", message.getQueueId())
            .with("queueOffset", message.getQueueOffset())
            .with("commitLogOffset", message.getCommitLogOffset())
            .with("sysFlag", message.getSysFlag())
            .with("bornTimestamp", message.getBornTimestamp())
            .with("storeTimestamp", message.getStoreTimestamp())
            .with("reconsumeTimes", message.getReconsumeTimes());
    }

    void print() {
        StringBuilder line = new StringBuilder();
        write(line, fields);
        line.append('\n');
        byte[] bytes = line.toString().getBytes(StandardCharsets.UTF_8);
        synchronized (System.out) {
            System.out.write(bytes, 0, bytes.length);
            System.out.flush();
        }
    }

    private static void write(StringBuilder out, Object value) {
        if (value == null || value instanceof Number || value instanceof Boolean) {
            out.append(value);
        } else if (value instanceof Map) {
            String separator = "{";
            for (Map.Entry<?, ?> entry : ((Map<?, ?>) value).entrySet()) {
                out.append(separator);
                quote(out, entry.getKey().toString());
                out.append(':');
                write(out, entry.getValue());
                separator = ",";
            }
            out.append(((Map<?, ?>) value).isEmpty() ? "{}" : "}");
        } else {
            quote(out, value.toString());
        }
    }

    private static void quote(StringBuilder out, String text) {
        out.append('"');
        for (char c : text.toCharArray()) {
            if (c == '"' || c == '\\') {
                out.append('\\').append(c);
            } else if (c < 0x20) {
                out.append(String.format("\\u%04x", (int) c));
            } else {
                out.append(c);
            }
        }
        out.append('"');
    }
}
