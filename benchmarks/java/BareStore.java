package cometmq.benchmarks;

import java.io.File;
import java.io.FileInputStream;
import java.io.IOException;
import java.lang.invoke.MethodHandles;
import java.lang.invoke.VarHandle;
import java.nio.ByteOrder;
import java.util.Arrays;
import java.util.Map;
import java.util.Set;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.codegen.UnsafeRowWriter;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * Returns body and tags of each record of a store's log, and checks nothing: neither sizes nor offsets nor kinds. So
 * it shows the least time that a source in the JVM takes for such rows. It reads only stores that the benchmark wrote.
 */
public final class BareStore implements TableProvider {
    private static final StructType SCHEMA = new StructType().add("body", "binary").add("tags", "string");

    @Override
    public StructType inferSchema(CaseInsensitiveStringMap options) {
        return SCHEMA;
    }

    @Override
    public Table getTable(StructType schema, Transform[] partitioning, Map<String, String> properties) {
        return new Log(properties.get("path"));
    }

    private record Part(File file) implements InputPartition {}

    private record Log(String path) implements Table, SupportsRead, Scan, Batch {
        @Override
        public String name() {
            return "bare";
        }

        @Override
        public StructType schema() {
            return SCHEMA;
        }

        @Override
        public StructType readSchema() {
            return SCHEMA;
        }

        @Override
        public Set<TableCapability> capabilities() {
            return Set.of(TableCapability.BATCH_READ);
        }

        @Override
        public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
            return () -> this;
        }

        @Override
        public Batch toBatch() {
            return this;
        }

        @Override
        public InputPartition[] planInputPartitions() {
            File[] files = new File(path, "commitlog").listFiles();
            Arrays.sort(files);
            return Arrays.stream(files).map(Part::new).toArray(InputPartition[]::new);
        }

        @Override
        public PartitionReaderFactory createReaderFactory() {
            return new Readers();
        }
    }

    private record Readers() implements PartitionReaderFactory {
        @Override
        public PartitionReader<InternalRow> createReader(InputPartition part) {
            try {
                return new Reader(new FileInputStream(((Part) part).file()));
            } catch (IOException error) {
                throw new java.io.UncheckedIOException(error);
            }
        }
    }

    private static final class Reader implements PartitionReader<InternalRow> {
        private static final VarHandle INT =
                MethodHandles.byteArrayViewVarHandle(int[].class, ByteOrder.BIG_ENDIAN);
        private static final int BLANK = 0xCBD43194;
        private static final int BODY_AT = 88;

        private final FileInputStream in;
        private final UnsafeRowWriter row = new UnsafeRowWriter(2, 1024);
        private final byte[] bytes = new byte[256 * 1024];
        private int at;
        private int end;

        Reader(FileInputStream in) {
            this.in = in;
        }

        @Override
        public boolean next() throws IOException {
            int size = has(8) ? (int) INT.get(bytes, at) : 0;
            // After the last record comes a blank one up to the end of the file, or nothing.
            if (size == 0 || (int) INT.get(bytes, at + 4) == BLANK || !has(size)) {
                return false;
            }
            int bodyEnd = at + BODY_AT + (int) INT.get(bytes, at + BODY_AT - 4);
            int from = bodyEnd + 1 + bytes[bodyEnd] + 2;
            while (bytes[from] != 'T' || bytes[from + 1] != 'A' || bytes[from + 4] != 1) {
                while (bytes[from++] != 2) {}
            }
            from += 5;
            int to = from;
            while (to < at + size && bytes[to] != 2) {
                to++;
            }
            row.reset();
            row.zeroOutNullBytes();
            row.write(0, bytes, at + BODY_AT, bodyEnd - at - BODY_AT);
            row.write(1, bytes, from, to - from);
            at += size;
            return true;
        }

        /** Have this many bytes from the present place on, if the file has them and they fit into the array. */
        private boolean has(int count) throws IOException {
            if (count > end - at && count <= bytes.length) {
                System.arraycopy(bytes, at, bytes, 0, end - at);
                end -= at;
                at = 0;
                end += Math.max(0, in.readNBytes(bytes, end, bytes.length - end));
            }
            return count <= end - at;
        }

        @Override
        public InternalRow get() {
            return row.getRow();
        }

        @Override
        public void close() throws IOException {
            in.close();
        }
    }
}
