package cometmq.interop.grpc;

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.TreeMap;
import java.util.zip.CRC32;
import org.apache.rocketmq.client.apis.message.MessageView;

/** One JSON line of output: an event. */
final class Line {
    private final Map<String, Object> fields = new LinkedHashMap<>();

    Line(String event) {
        fields.put("event", event);
    }

    Line with(String name, Object value) {
        fields.put(name, value);
        return this;
    }

    /** Add everything that a test compares of a received message; the body as size and CRC-32. */
    Line with(MessageView message) {
        ByteBuffer body = message.getBody().duplicate();
        int size = body.remaining();
        CRC32 crc = new CRC32();
        crc.update(body);
        return with("topic", message.getTopic())
            .with("tags", message.getTag().orElse(null))
            .with("keys", String.join(" ", message.getKeys()))
            .with("properties", new TreeMap<>(message.getProperties()))
            .with("size", size)
            .with("crc32", crc.getValue())
            .with("msgId", message.getMessageId())
            .with("group", message.getMessageGroup().orElse(null))
            .with("deliveryTimestamp", message.getDeliveryTimestamp().orElse(null))
            .with("priority", message.getPriority().orElse(null))
            .with("bornHost", message.getBornHost())
            .with("bornTimestamp", message.getBornTimestamp())
            .with("attempt", message.getDeliveryAttempt())
            .with("at", System.currentTimeMillis());
    }

    void print() {
        StringBuilder line = new StringBuilder();
        write(line, fields);
        byte[] bytes = line.append('\n').toString().getBytes(StandardCharsets.UTF_8);
        synchronized (System.out) {
            System.out.write(bytes, 0, bytes.length);
            System.out.flush();
        }
    }

    private static void write(StringBuilder out, Object value) {
        if (value == null || value instanceof Number || value instanceof Boolean) {
            out.append(value);
        } else if (value instanceof Map) {
            String separator = "";
            out.append('{');
            for (Map.Entry<?, ?> entry : ((Map<?, ?>) value).entrySet()) {
                out.append(separator);
                quote(out, entry.getKey().toString());
                out.append(':');
                write(out, entry.getValue());
                separator = ",";
            }
            out.append('}');
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
