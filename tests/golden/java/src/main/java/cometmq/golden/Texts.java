package cometmq.golden;

import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageClientIDSetter;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageId;

/** Properties strings, batch bodies, identifiers, tag hashes, tag expressions. */
final class Texts {
    private final Golden golden;

    Texts(Golden golden) {
        this.golden = golden;
    }

    void write() throws Exception {
        properties();
        golden.add("batch", "batch", MessageDecoder.class.getName(), batchBody(),
            Kit.map("topic", "TopicA", "messages", describe(batch())));
        uniqueIds();
        offsetIds();
        tagCodes();
        expressions();
    }

    private void properties() throws Exception {
        List<Map<String, String>> cases = new ArrayList<>();
        cases.add(new LinkedHashMap<>());
        cases.add(Collections.singletonMap("KEYS", "k1"));
        Map<String, String> several = new LinkedHashMap<>();
        several.put("TAGS", "TagA");
        several.put("KEYS", "k1 k2");
        several.put("note", "gr\u00fcn \u20ac \uD83D\uDE00");
        several.put("WAIT", "true");
        cases.add(several);
        int number = 0;
        for (Map<String, String> properties : cases) {
            byte[] bytes = MessageDecoder.messageProperties2String(properties).getBytes(StandardCharsets.UTF_8);
            golden.add("properties", "properties-" + number++, MessageDecoder.class.getName(), bytes,
                Kit.map("properties", pairs(properties)));
        }
        String[] texts = {"a\u0001b", "a\u0001b\u0002", "a\u0001b\u0002c\u0001d", "broken\u0002a\u0001b\u0002",
            "\u0001v\u0002a\u0001b\u0002", "k\u0001\u0002a\u0001b\u0002", "a\u0001b\u0001c\u0002", "\u0002\u0002", ""};
        number = 0;
        for (String text : texts) {
            golden.add("properties-parse", "properties-parse-" + number++, MessageDecoder.class.getName(),
                text.getBytes(StandardCharsets.UTF_8),
                Kit.map("properties", Kit.describe(MessageDecoder.string2messageProperties(text))));
        }
    }

    private static List<Object> pairs(Map<String, String> map) {
        List<Object> pairs = new ArrayList<>();
        map.forEach((name, value) -> pairs.add(java.util.Arrays.asList(name, value)));
        return pairs;
    }

    static byte[] batchBody() {
        return MessageDecoder.encodeMessages(batch());
    }

    private static List<Message> batch() {
        List<Message> messages = new ArrayList<>();
        for (int i = 0; i < 3; i++) {
            Message message = new Message("TopicA", ("body \u20ac " + i).getBytes(StandardCharsets.UTF_8));
            message.setFlag(i);
            if (i > 0) {
                // One property a message: the order of a Java map is not part of the format.
                message.putUserProperty("index", Integer.toString(i));
            }
            messages.add(message);
        }
        return messages;
    }

    private static List<Object> describe(List<Message> messages) throws Exception {
        List<Object> described = new ArrayList<>();
        for (Message message : messages) {
            described.add(Kit.map("flag", message.getFlag(), "body", Kit.hex(message.getBody()),
                "properties", Kit.describe(message.getProperties())));
        }
        return described;
    }

    private void uniqueIds() {
        String[] ids = {
            "7F0000014E2018B4AAC2059CE6DB0007",
            "C0A8010A000118B4AAC2000000000000",
            "FD000000000000000000000000000002407B4E0E2F2A00001F400001",
            MessageClientIDSetter.createUniqID(),
        };
        for (int i = 0; i < ids.length; i++) {
            golden.fact("unique-id", "unique-id-" + i, MessageClientIDSetter.class.getName(),
                Kit.map("id", ids[i], "ip", MessageClientIDSetter.getIPStrFromID(ids[i]),
                    "ipBytes", Kit.hex(MessageClientIDSetter.getIPFromID(ids[i])),
                    "pid", MessageClientIDSetter.getPidFromID(ids[i])));
        }
    }

    private void offsetIds() throws Exception {
        Object[][] cases = {{"127.0.0.1", 10911, 0L}, {"192.168.1.200", 65535, 123_456_789_012_345L},
            {"2001:db8::7", 10911, 42L}, {"::1", 1, Long.MAX_VALUE}};
        int number = 0;
        for (Object[] one : cases) {
            InetAddress address = InetAddress.getByName((String) one[0]);
            String id = MessageDecoder.createMessageId(
                new InetSocketAddress(address, (Integer) one[1]), (Long) one[2]);
            MessageId decoded = MessageDecoder.decodeMessageId(id);
            if (decoded.getOffset() != (Long) one[2]) {
                throw new IllegalStateException(id);
            }
            golden.fact("offset-id", "offset-id-" + number++, MessageDecoder.class.getName(),
                Kit.map("id", id, "ip", one[0], "port", one[1], "offset", one[2]));
        }
    }

    private void tagCodes() throws Exception {
        String[] tags = {"", "TagA", "TagB", "TagA || TagB", "paid", "\u6807\u7b7e", "gr\u00fcn \u20ac",
            "\uD83D\uDE00", "a\uD83D\uDE00\uD83D\uDE01z", "Aa", "BB", "polygenelubricants", " ",
            "a-very-long-tag-that-overflows-thirty-two-bits-several-times"};
        for (int i = 0; i < tags.length; i++) {
            Object code = Kit.call(Kit.find("MessageExtBrokerInner"), "tagsString2tagsCode", null, tags[i]);
            golden.fact("tag-code", "tag-code-" + i, Kit.find("MessageExtBrokerInner").getName(),
                Kit.map("tag", tags[i], "code", code));
        }
    }

    private void expressions() throws Exception {
        String[] expressions = {null, "", "*", "TagA", "TagA||TagB", " TagA ||  TagB ", "TagA||", "||TagA",
            "TagA|| ||TagB", "||", "TagA|TagB", "TagA||TagA", " * "};
        int number = 0;
        for (String expression : expressions) {
            Map<String, Object> input = Kit.map("topic", "TopicA", "expression", expression);
            try {
                Object data = Kit.call(Kit.find("FilterAPI"), "buildSubscriptionData", "TopicA", expression);
                Kit.set(data, "subVersion", 0L);
                input.put("subscription", Kit.describe(data));
            } catch (java.lang.reflect.InvocationTargetException refused) {
                input.put("error", refused.getCause().getMessage());
            }
            golden.fact("expression", "expression-" + number++, Kit.find("FilterAPI").getName(), input);
        }
    }
}
