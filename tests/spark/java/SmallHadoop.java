import java.io.OutputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.hdfs.MiniDFSCluster;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.server.MiniYARNCluster;

/**
 * Runs HDFS and YARN, each with one node, and writes the configuration for their clients into a file once both are
 * ready. Arguments: the file, and settings NAME=VALUE.
 */
final class SmallHadoop {
    public static void main(String[] arguments) {
        try {
            start(arguments);
        } catch (Throwable fault) {
            // Threads of what runs already keep the process alive.
            fault.printStackTrace();
            System.exit(1);
        }
    }

    private static void start(String[] arguments) throws Exception {
        Configuration settings = new YarnConfiguration();
        for (int at = 1; at < arguments.length; at++) {
            String[] pair = arguments[at].split("=", 2);
            settings.set(pair[0], pair[1]);
        }
        MiniDFSCluster files = new MiniDFSCluster.Builder(settings).numDataNodes(1).build();
        files.waitActive();
        FileSystem.setDefaultUri(settings, files.getURI());
        MiniYARNCluster yarn = new MiniYARNCluster("yarn", 1, 1, 1);
        yarn.init(settings);
        yarn.start();
        if (!yarn.waitForNodeManagersToConnect(60_000)) {
            throw new IllegalStateException("the node manager does not connect");
        }
        Path file = Path.of(arguments[0]);
        Path unfinished = file.resolveSibling("unfinished");
        try (OutputStream written = Files.newOutputStream(unfinished)) {
            Configuration clients = new Configuration(yarn.getConfig());
            // A class of the cluster, which its clients do not have.
            clients.unset("net.topology.node.switch.mapping.impl");
            clients.writeXml(written);
        }
        Files.move(unfinished, file, StandardCopyOption.ATOMIC_MOVE);
    }
}
