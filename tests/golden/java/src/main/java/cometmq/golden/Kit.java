package cometmq.golden;

import java.lang.reflect.Field;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.util.ArrayList;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.atomic.AtomicLong;

/**
 * Finds and fills the beans of either release line: the same classes live in different packages
 * in 4.9 and 5.x, and some properties exist in one line only.
 */
final class Kit {
    private static final String[] PACKAGES = {
        "org.apache.rocketmq.remoting.protocol.header.",
        "org.apache.rocketmq.remoting.protocol.header.namesrv.",
        "org.apache.rocketmq.remoting.protocol.body.",
        "org.apache.rocketmq.remoting.protocol.heartbeat.",
        "org.apache.rocketmq.remoting.protocol.route.",
        "org.apache.rocketmq.remoting.protocol.subscription.",
        "org.apache.rocketmq.remoting.protocol.filter.",
        "org.apache.rocketmq.remoting.protocol.",
        "org.apache.rocketmq.common.protocol.header.",
        "org.apache.rocketmq.common.protocol.header.namesrv.",
        "org.apache.rocketmq.common.protocol.body.",
        "org.apache.rocketmq.common.protocol.heartbeat.",
        "org.apache.rocketmq.common.protocol.route.",
        "org.apache.rocketmq.common.subscription.",
        "org.apache.rocketmq.common.filter.",
        "org.apache.rocketmq.common.message.",
        "org.apache.rocketmq.common.",
        "org.apache.rocketmq.store.",
    };

    private Kit() {
    }

    static boolean has(String simpleName) {
        return lookUp(simpleName) != null;
    }

    static Class<?> find(String simpleName) {
        Class<?> found = lookUp(simpleName);
        if (found == null) {
            throw new IllegalArgumentException("no class " + simpleName);
        }
        return found;
    }

    private static Class<?> lookUp(String simpleName) {
        for (String prefix : PACKAGES) {
            try {
                return Class.forName(prefix + simpleName);
            } catch (ClassNotFoundException absent) {
                continue;
            }
        }
        return null;
    }

    /** A bean filled from name, value, name, value ...; properties the line lacks are left out. */
    static Object make(String simpleName, Object... properties) throws Exception {
        Object bean = find(simpleName).getDeclaredConstructor().newInstance();
        for (int i = 0; i < properties.length; i += 2) {
            set(bean, (String) properties[i], properties[i + 1]);
        }
        return bean;
    }

    static boolean set(Object bean, String property, Object value) throws Exception {
        String setter = "set" + Character.toUpperCase(property.charAt(0)) + property.substring(1);
        for (Method method : bean.getClass().getMethods()) {
            if (method.getName().equals(setter) && method.getParameterCount() == 1) {
                method.invoke(bean, convert(value, method.getParameterTypes()[0]));
                return true;
            }
        }
        return false;
    }

    static Object call(Object target, String name, Object... arguments) throws Exception {
        Class<?> type = target instanceof Class ? (Class<?>) target : target.getClass();
        for (Method method : type.getMethods()) {
            if (method.getName().equals(name) && matches(method.getParameterTypes(), arguments)) {
                return method.invoke(target instanceof Class ? null : target, arguments);
            }
        }
        throw new IllegalArgumentException("no " + type + "." + name);
    }

    private static boolean matches(Class<?>[] types, Object[] arguments) {
        if (types.length != arguments.length) {
            return false;
        }
        for (int i = 0; i < types.length; i++) {
            boolean fits = types[i].isPrimitive() || arguments[i] == null || types[i].isInstance(arguments[i]);
            if (!fits) {
                return false;
            }
        }
        return true;
    }

    @SuppressWarnings({"unchecked", "rawtypes"})
    private static Object convert(Object value, Class<?> type) {
        if (type.isEnum() && value instanceof String) {
            return Enum.valueOf((Class<? extends Enum>) type, (String) value);
        }
        if (value instanceof Number && (type == long.class || type == Long.class)) {
            return ((Number) value).longValue();
        }
        return value;
    }

    /**
     * A bean as plain maps, lists and texts, read from its fields without any JSON library, so
     * that a manifest does not repeat a serializer's mistake. A map whose keys are not texts
     * becomes a list of {key, value}; null fields are left out.
     */
    static Object describe(Object value) throws Exception {
        if (value == null || value instanceof String || value instanceof Number && !(value instanceof AtomicLong)
            || value instanceof Boolean) {
            return value;
        }
        if (value instanceof AtomicLong) {
            return ((AtomicLong) value).get();
        }
        if (value instanceof Enum) {
            return ((Enum<?>) value).name();
        }
        if (value instanceof byte[]) {
            return hex((byte[]) value);
        }
        if (value instanceof Map) {
            return describeMap((Map<?, ?>) value);
        }
        if (value instanceof Collection) {
            List<Object> list = new ArrayList<>();
            for (Object item : (Collection<?>) value) {
                list.add(describe(item));
            }
            return list;
        }
        if (value.getClass().getName().startsWith("java.")) {
            // A helper object, such as BrokerData's random number generator.
            return null;
        }
        Map<String, Object> fields = new TreeMap<>();
        for (Class<?> type = value.getClass(); type != Object.class; type = type.getSuperclass()) {
            for (Field field : type.getDeclaredFields()) {
                int modifiers = field.getModifiers();
                if (!Modifier.isStatic(modifiers) && !Modifier.isTransient(modifiers)) {
                    field.setAccessible(true);
                    Object described = describe(field.get(value));
                    if (described != null) {
                        fields.put(field.getName(), described);
                    }
                }
            }
        }
        return fields;
    }

    private static Object describeMap(Map<?, ?> map) throws Exception {
        boolean texts = map.keySet().stream().allMatch(key -> key instanceof String);
        Map<String, Object> object = new TreeMap<>();
        List<Object> pairs = new ArrayList<>();
        for (Map.Entry<?, ?> entry : map.entrySet()) {
            if (texts) {
                object.put((String) entry.getKey(), describe(entry.getValue()));
            } else {
                Map<String, Object> pair = new LinkedHashMap<>();
                pair.put("key", describe(entry.getKey()));
                pair.put("value", describe(entry.getValue()));
                pairs.add(pair);
            }
        }
        return texts ? object : pairs;
    }

    static String hex(byte[] bytes) {
        StringBuilder text = new StringBuilder();
        for (byte b : bytes) {
            text.append(String.format("%02x", b));
        }
        return text.toString();
    }

    /** An ordered map from name, value, name, value ... */
    static Map<String, Object> map(Object... pairs) {
        Map<String, Object> map = new LinkedHashMap<>();
        for (int i = 0; i < pairs.length; i += 2) {
            map.put((String) pairs[i], pairs[i + 1]);
        }
        return map;
    }
}
