package cometmq.interop;

/**
 * Client program of the interop suite: {@code Main <scenario> --name=value ...}, JSON lines on
 * standard output. The same source is compiled against the 4.9 and the 5.x client.
 */
public final class Main {
    private Main() {
    }

    public static void main(String[] argv) throws Exception {
        Args args = new Args(argv);
        switch (argv[0]) {
            case "produce":
                new Produce(args).run();
                break;
            case "consume":
                new Consume(args).run();
                break;
            case "request":
                new Ask(args).run();
                break;
            case "transact":
                new Transact(args).run();
                break;
            case "offsets":
                new Queues(args).offsets();
                break;
            case "traces":
                new Queues(args).traces();
                break;
            case "pull":
                new Queues(args).pull();
                break;
            case "sign":
                new Sign(args).run();
                break;
            default:
                throw new IllegalArgumentException("unknown scenario " + argv[0]);
        }
        System.out.flush();
        // Client threads that are not daemons would keep a finished scenario alive.
        System.exit(0);
    }
}
