package cometmq.golden;

import java.nio.file.Path;
import java.nio.file.Paths;
import org.apache.rocketmq.common.MQVersion;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;

/** {@code Generate <output directory> <artifact version>}. */
public final class Generate {
    private Generate() {
    }

    public static void main(String[] argv) throws Exception {
        Path root = Paths.get(argv[0]);
        System.setProperty(RemotingCommand.REMOTING_VERSION_KEY, Integer.toString(MQVersion.CURRENT_VERSION));
        int status = 1;
        try {
            write(new Golden(root, argv[1]));
            status = 0;
        } catch (Exception failed) {
            failed.printStackTrace();
        }
        // The in-process store leaves service threads behind.
        System.exit(status);
    }

    private static void write(Golden golden) throws Exception {
        new Bodies(golden).write();
        new Frames(golden).write();
        new Texts(golden).write();
        new Records(golden).write();
        new StoreFiles(golden).write();
        new Filters(golden).write();
        golden.finish();
    }
}
