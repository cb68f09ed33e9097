package cometmq.interop;

import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.remoting.RPCHook;

/**
 * How clients get in: with {@code access-key} and {@code secret-key} they sign, with {@code
 * tls=true} they talk TLS and trust whatever certificate they are shown.
 */
final class Access {
    private Access() {
    }

    /** The hook for the constructor of a client, null for one that does not sign. */
    static RPCHook hook(Args args) {
        String accessKey = args.text("access-key", null);
        return accessKey == null
            ? null
            : new AclClientRPCHook(new SessionCredentials(accessKey, args.text("secret-key")));
    }

    /** Where the name server is, and what a client needs to reach it. */
    static void reach(ClientConfig client, Args args) {
        client.setNamesrvAddr(args.text("namesrv"));
        client.setMqClientApiTimeout(Args.PATIENCE_MS);
        client.setUseTLS(args.flag("tls"));
    }
}
