package cometmq.spark.store;

import java.lang.reflect.InvocationHandler;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.util.LinkedHashSet;
import java.util.Optional;
import java.util.Set;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.connector.read.streaming.Offset;
import org.apache.spark.sql.connector.read.streaming.ReportsSourceMetrics;

/**
 * Stands in front of an object of Spark's Python sources and has all of its interfaces. Each call goes to that
 * object. Results that lead from a table to its stream are wrapped in the same way, and the stream has metrics.
 */
final class Measured implements InvocationHandler {
    private final Object inner;
    private volatile Offset latest;

    private Measured(Object inner) {
        this.inner = inner;
    }

    static Table table(Table table) {
        return (Table) wrapped(table);
    }

    static MicroBatchStream stream(MicroBatchStream stream) {
        return (MicroBatchStream) wrapped(stream);
    }

    @Override
    public Object invoke(Object self, Method method, Object[] given) throws Throwable {
        if (method.getDeclaringClass() == Object.class) {
            return switch (method.getName()) {
                case "equals" -> inner.equals(unwrapped(given[0]));
                case "hashCode" -> inner.hashCode();
                default -> inner.toString();
            };
        }
        if (inner instanceof MicroBatchStream && method.getName().equals("metrics")) {
            Optional<?> consumed = (Optional<?>) given[0];
            return Lag.between((Offset) consumed.orElse(null), latest);
        }
        Object found;
        try {
            found = method.invoke(inner, given);
        } catch (InvocationTargetException error) {
            throw said(error.getCause());
        }
        if (inner instanceof MicroBatchStream) {
            if (method.getName().equals("reportLatestOffset")) {
                latest = (Offset) found;
            }
            return found;
        }
        boolean leadsToStream =
                found instanceof ScanBuilder || found instanceof Scan || found instanceof MicroBatchStream;
        return leadsToStream ? wrapped(found) : found;
    }

    /**
     * The error to throw for an error of the object. Spark is written in Scala and declares no exceptions, and a proxy
     * hides the message of a checked one that is not declared.
     */
    private static Throwable said(Throwable error) {
        boolean passes = error instanceof RuntimeException || error instanceof Error;
        return passes ? error : new RuntimeException(error.getMessage(), error);
    }

    private static Object unwrapped(Object other) {
        if (other != null
                && Proxy.isProxyClass(other.getClass())
                && Proxy.getInvocationHandler(other) instanceof Measured measured) {
            return measured.inner;
        }
        return other;
    }

    private static Object wrapped(Object inner) {
        Set<Class<?>> interfaces = new LinkedHashSet<>();
        for (Class<?> kind = inner.getClass(); kind != null; kind = kind.getSuperclass()) {
            for (Class<?> one : kind.getInterfaces()) {
                interfaces.add(one);
            }
        }
        if (inner instanceof MicroBatchStream) {
            interfaces.add(ReportsSourceMetrics.class);
        }
        // Spark's own class loader knows all of the interfaces, also interfaces that this jar does not name.
        return Proxy.newProxyInstance(
                inner.getClass().getClassLoader(),
                interfaces.toArray(new Class<?>[0]),
                new Measured(inner));
    }
}
