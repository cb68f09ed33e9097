package cometmq.interop;

import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;

/**
 * What the client's access-control hook puts into a request: {@code access-key secret-key token?
 * ext=name:value;name:value body?}.
 */
final class Sign {
    private final Args args;

    Sign(Args args) {
        this.args = args;
    }

    void run() {
        HashMap<String, String> ext = new HashMap<>();
        for (String entry : args.text("ext").split(";")) {
            int colon = entry.indexOf(':');
            ext.put(entry.substring(0, colon), entry.substring(colon + 1));
        }
        RemotingCommand command = RemotingCommand.createRequestCommand(10, null);
        command.setExtFields(ext);
        String body = args.text("body", null);
        if (body != null) {
            command.setBody(body.getBytes(StandardCharsets.UTF_8));
        }
        SessionCredentials credentials =
            new SessionCredentials(args.text("access-key"), args.text("secret-key"));
        credentials.setSecurityToken(args.text("token", null));
        new AclClientRPCHook(credentials).doBeforeRequest("127.0.0.1:10911", command);
        Event event = new Event("signed");
        for (Map.Entry<String, String> field : command.getExtFields().entrySet()) {
            event.with(field.getKey(), field.getValue());
        }
        event.print();
        new Event("summary").print();
    }
}
