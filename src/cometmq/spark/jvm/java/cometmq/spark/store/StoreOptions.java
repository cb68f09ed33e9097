package cometmq.spark.store;

import java.io.Serializable;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/**
 * The options of a read (Python: {@code cometmq.spark.stores.options.StoreOptions}). What is not plainly right
 * throws Unfit, and the Python reader explains it.
 */
final class StoreOptions implements Serializable {
    private static final long serialVersionUID = 1;
    private static final Set<String> KNOWN =
            Set.of(
                    "path", "commitlogpath", "subscribe", "subscribepattern", "minpartitions", "checkcrc",
                    "columns", "decompress", "brokername", "failondataloss", "gaplog", "reader",
                    // Filters are always pushed here, and each scan has its own.
                    "pushfilters");
    private static final Set<String> OF_STREAMS =
            Set.of("startingoffsets", "maxmessagespertrigger", "maxbytespertrigger", "timeoutms");
    private static final Set<String> TRUE = Set.of("true", "yes", "on", "1");
    private static final Set<String> FALSE = Set.of("false", "no", "off", "0");
    private static final Pattern URI =
            Pattern.compile("([A-Za-z][A-Za-z0-9_+.-]*:)(//[^/]*)?(/.*)?", Pattern.DOTALL);
    private static final Set<String> HERE = Set.of("", "//", "//localhost");
    // What means the same in the expressions of Python and Java.
    private static final Pattern PLAIN_PATTERN =
            Pattern.compile("(?:[A-Za-z0-9_%.*+?|()-]|\\\\[.*+?|()\\\\%-]|\\[[A-Za-z0-9_%.-]+])*");
    private static final int MAX_PARTITIONS = 100_000;
    private static final int MAX_PATTERN = 500;

    final String path;
    final List<String> commitLogs;
    final String broker;
    final boolean checksCrc;
    final boolean decompresses;
    final int minPartitions;
    final Gaps gaps;

    /** The columns that the option names, null if it is not given. */
    final List<String> columns;

    final Set<String> topics;
    final Pattern pattern;

    StoreOptions(Map<String, String> given) throws Unfit {
        for (String name : given.keySet()) {
            if (OF_STREAMS.contains(name)) {
                throw new Unfit("the option " + name + " is for streams, which are read in Python", true);
            }
            if (!KNOWN.contains(name)) {
                throw new Unfit("the option " + name + " is for the Python reader, or unknown");
            }
        }
        String reader = text(given, "reader");
        if (reader != null && !reader.equals("auto") && !reader.equals("jvm")) {
            throw new Unfit("the option reader is " + reader, reader.equals("python"));
        }
        path = path(need(given, "path"));
        List<String> logs = new ArrayList<>();
        String several = text(given, "commitlogpath");
        for (String one : several == null ? new String[0] : several.split(",")) {
            if (!one.isBlank()) {
                logs.add(path(one.strip()));
            }
        }
        commitLogs = List.copyOf(logs);
        topics = topics(text(given, "subscribe"));
        pattern = pattern(text(given, "subscribepattern"));
        if (topics != null && pattern != null) {
            throw new Unfit("subscribe and subscribePattern are given");
        }
        minPartitions = number(given, "minpartitions");
        checksCrc = flag(given, "checkcrc", false);
        decompresses = flag(given, "decompress", true);
        columns = columns(text(given, "columns"));
        broker = text(given, "brokername");
        String directory = text(given, "gaplog");
        if (flag(given, "failondataloss", true) == (directory != null)) {
            throw new Unfit("failOnDataLoss and gapLog do not fit together");
        }
        gaps = new Gaps(directory == null ? null : path(directory), broker);
    }

    boolean byTopic() {
        return topics != null || pattern != null;
    }

    private static Set<String> topics(String text) throws Unfit {
        if (text == null) {
            return null;
        }
        Set<String> names = new TreeSet<>();
        for (String name : text.split(",", -1)) {
            if (name.isBlank()) {
                throw new Unfit("subscribe has an empty name");
            }
            names.add(name.strip());
        }
        return names;
    }

    private static List<String> columns(String text) throws Unfit {
        if (text == null) {
            return null;
        }
        List<String> names = new ArrayList<>();
        for (String word : text.split(",", -1)) {
            switch (word.strip()) {
                case "all" -> names.addAll(Column.all());
                case "default" -> names.addAll(Column.standard());
                default -> names.add(word.strip());
            }
        }
        if (!Column.all().containsAll(names) || names.size() != Set.copyOf(names).size()) {
            throw new Unfit("columns names no column, or one twice");
        }
        return List.copyOf(names);
    }

    private static Pattern pattern(String text) throws Unfit {
        if (text == null) {
            return null;
        }
        // Neither possessive nor lazy repetitions, nor (? with a meaning of its own.
        boolean special = text.contains("(?") || text.contains("*+") || text.contains("++")
                || text.contains("?+") || text.contains("**") || text.contains("+*") || text.contains("?*");
        if (special || text.length() > MAX_PATTERN || !PLAIN_PATTERN.matcher(text).matches()) {
            throw new Unfit("subscribePattern may mean something else to Java than to Python");
        }
        try {
            return Pattern.compile(text);
        } catch (IllegalArgumentException error) {
            throw new Unfit("subscribePattern is no regular expression");
        }
    }

    private static String text(Map<String, String> given, String name) throws Unfit {
        String value = given.get(name);
        if (value == null) {
            return null;
        }
        if (value.isBlank()) {
            throw new Unfit("the option " + name + " is empty");
        }
        return value.strip();
    }

    private static String need(Map<String, String> given, String name) throws Unfit {
        String value = text(given, name);
        if (value == null) {
            throw new Unfit("the option " + name + " is missing");
        }
        return value;
    }

    private static boolean flag(Map<String, String> given, String name, boolean standard) throws Unfit {
        String value = text(given, name);
        if (value == null) {
            return standard;
        }
        String lower = value.toLowerCase(java.util.Locale.ROOT);
        if (!TRUE.contains(lower) && !FALSE.contains(lower)) {
            throw new Unfit("the option " + name + " is neither true nor false");
        }
        return TRUE.contains(lower);
    }

    private static int number(Map<String, String> given, String name) throws Unfit {
        String value = text(given, name);
        if (value == null) {
            return 1;
        }
        if (!value.matches("[0-9]{1,6}")) {
            throw new Unfit("the option " + name + " is no plain number");
        }
        int number = Integer.parseInt(value);
        if (number < 1 || number > MAX_PARTITIONS) {
            throw new Unfit("the option " + name + " is out of range");
        }
        return number;
    }

    private static String path(String text) throws Unfit {
        Matcher uri = URI.matcher(text);
        String local = text;
        if (uri.matches()) {
            String host = uri.group(2) == null ? "" : uri.group(2);
            if (!uri.group(1).equalsIgnoreCase("file:") || !HERE.contains(host) || uri.group(3) == null) {
                throw new Unfit(text + " is no path of this machine");
            }
            local = uri.group(3);
        }
        // The JVM writes names of files in the encoding of the locale, Python in UTF-8.
        String encoding = System.getProperty("sun.jnu.encoding", "");
        boolean ascii = StandardCharsets.US_ASCII.newEncoder().canEncode(local);
        if (!ascii && !encoding.equalsIgnoreCase("UTF-8") || local.indexOf('\0') >= 0) {
            throw new Unfit("this JVM cannot write the path " + text);
        }
        return Path.of(local).toAbsolutePath().toString();
    }
}
