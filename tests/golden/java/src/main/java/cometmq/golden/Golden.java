package cometmq.golden;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import java.util.Map;

/** Collects the golden files of one artifact version and their manifest. */
final class Golden {
    final String version;
    private final Path directory;
    private final String line;
    private final List<Object> entries = new ArrayList<>();

    Golden(Path root, String version) throws IOException {
        this.version = version;
        line = "java" + version.charAt(0);
        directory = root.resolve(line);
        Files.createDirectories(directory);
    }

    /** Writes {@code name.bin} and its manifest entry. */
    void add(String kind, String name, String javaClass, byte[] bytes, Map<String, Object> input)
        throws IOException {
        Path file = directory.resolve(name + ".bin");
        Files.write(file, bytes);
        entries.add(Kit.map("kind", kind, "name", name, "file", line + "/" + name + ".bin",
            "artifact", version, "class", javaClass, "input", input));
    }

    /** An entry whose expectation is in the manifest alone (hashes, parsed identifiers). */
    void fact(String kind, String name, String javaClass, Map<String, Object> input) {
        entries.add(Kit.map("kind", kind, "name", name, "artifact", version, "class", javaClass,
            "input", input));
    }

    void finish() throws IOException {
        StringBuilder out = new StringBuilder();
        write(out, entries);
        Files.write(directory.resolve("manifest.json"), out.toString().getBytes(StandardCharsets.UTF_8));
    }

    private static void write(StringBuilder out, Object value) {
        if (value == null || value instanceof Number || value instanceof Boolean) {
            out.append(value);
        } else if (value instanceof Map) {
            out.append('{');
            String separator = "";
            for (Map.Entry<?, ?> entry : ((Map<?, ?>) value).entrySet()) {
                out.append(separator);
                quote(out, (String) entry.getKey());
                out.append(": ");
                write(out, entry.getValue());
                separator = ", ";
            }
            out.append('}');
        } else if (value instanceof Collection) {
            out.append('[');
            String separator = "";
            for (Object item : (Collection<?>) value) {
                out.append(separator);
                write(out, item);
                separator = ", ";
            }
            out.append(']');
        } else {
            quote(out, (String) value);
        }
    }

    /** ASCII only, so that control and surrogate characters survive every editor. */
    private static void quote(StringBuilder out, String text) {
        out.append('"');
        for (char c : text.toCharArray()) {
            if (c == '"' || c == '\\') {
                out.append('\\').append(c);
            } else if (c < 0x20 || c > 0x7e) {
                out.append(String.format("\\u%04x", (int) c));
            } else {
                out.append(c);
            }
        }
        out.append('"');
    }
}
