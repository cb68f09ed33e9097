package cometmq.golden;

import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONObject;
import com.alibaba.fastjson.TypeReference;
import com.alibaba.fastjson.serializer.SerializerFeature;
import java.io.ByteArrayOutputStream;
import java.io.InputStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.filter.expression.BooleanExpression;
import org.apache.rocketmq.filter.expression.EvaluationContext;
import org.apache.rocketmq.filter.expression.MQFilterException;
import org.apache.rocketmq.filter.parser.SelectorParser;

/**
 * Reads {@code {"expressions": […], "messages": [{name: value}]}} and writes one object for each
 * expression: what parsing it fails with, or a letter for each message (true, false, null, error).
 */
public final class Sql92 {
    private Sql92() {
    }

    public static void main(String[] argv) throws Exception {
        JSONObject cases = JSON.parseObject(read(System.in));
        List<String> expressions = cases.getObject("expressions", new TypeReference<List<String>>() { });
        List<Map<String, String>> messages =
            cases.getObject("messages", new TypeReference<List<Map<String, String>>>() { });
        List<Object> results = new ArrayList<>();
        for (String expression : expressions) {
            Map<String, Object> entry = new LinkedHashMap<>();
            entry.put("expression", expression);
            try {
                entry.put("results", evaluate(SelectorParser.parse(expression), messages));
            } catch (MQFilterException refused) {
                entry.put("error", cause(refused));
            }
            results.add(entry);
        }
        System.out.print(JSON.toJSONString(results, SerializerFeature.BrowserCompatible));
        System.out.flush();
    }

    private static String evaluate(BooleanExpression expression, List<Map<String, String>> messages) {
        StringBuilder letters = new StringBuilder();
        for (Map<String, String> message : messages) {
            try {
                Object value = expression.evaluate(new Properties(message));
                letters.append(value == null ? 'N' : (Boolean) value ? 'T' : 'F');
            } catch (Throwable failed) {
                letters.append('E');
            }
        }
        return letters.toString();
    }

    private static String cause(Throwable error) {
        Throwable last = error;
        while (last.getCause() != null) {
            last = last.getCause();
        }
        String text = String.valueOf(last.getMessage());
        return last.getClass().getSimpleName() + ": " + text.split("[\r\n]")[0];
    }

    private static String read(InputStream in) throws Exception {
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        byte[] buffer = new byte[8192];
        for (int n = in.read(buffer); n >= 0; n = in.read(buffer)) {
            out.write(buffer, 0, n);
        }
        return new String(out.toByteArray(), StandardCharsets.UTF_8);
    }

    private static final class Properties implements EvaluationContext {
        private final Map<String, String> properties;

        Properties(Map<String, String> properties) {
            this.properties = properties;
        }

        @Override
        public Object get(String name) {
            return properties.get(name);
        }

        @Override
        public Map<String, Object> keyValues() {
            return new HashMap<>(properties);
        }
    }
}
