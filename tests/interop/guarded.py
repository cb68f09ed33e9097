"""Java servers that let in only those who prove who they are, and that talk TLS."""

from __future__ import annotations

import json
import ssl
from pathlib import Path
from typing import Any

from tests.access.actors import ACTORS_1, plain_acl_accounts
from tests.certificates import Authority, Pair
from tests.interop.peers import QUICK_JAVA, JavaBroker, JavaNamesrv
from tests.waits import WAIT_S

from cometmq import Credentials, Tls
from cometmq.protocol.command import RemotingCommand
from cometmq.remoting.client import RemotingClient

# Java wants more than six characters of both.
OWNER = Credentials("the-owner", "the-owners-secret")
GUEST = Credentials("the-guest", "the-guests-secret")
# What the guest may use; the group also reads.
GUEST_TOPIC = "guest-topic"
GUEST_GROUP = "guest-group"

_CREATE_USER = 3001
_CREATE_ACL = 3006

_PLAIN_ACL = f"""
accounts:
- accessKey: {OWNER.access_key}
  secretKey: {OWNER.secret_key}
  admin: true
- accessKey: {GUEST.access_key}
  secretKey: {GUEST.secret_key}
  admin: false
  defaultTopicPerm: DENY
  defaultGroupPerm: DENY
  topicPerms:
  - {GUEST_TOPIC}=PUB|SUB
  groupPerms:
  - {GUEST_GROUP}=SUB
"""


def plain_acl() -> str:
    """The file with the accounts of ACL 1.0, also those of the access matrix."""
    return _PLAIN_ACL + plain_acl_accounts(ACTORS_1)


class Acl1Broker(JavaBroker):
    """A broker with the access control of 4.x (ACL 1.0), of the last line that has it."""

    module = "server52"

    def config(self) -> dict[str, str]:
        """Writes the accounts too."""
        accounts = self.directory / "home" / "conf" / "plain_acl.yml"
        accounts.parent.mkdir(parents=True, exist_ok=True)
        accounts.write_text(plain_acl())
        return {**super().config(), "aclEnable": "true"}


class Acl2Broker(JavaBroker):
    """The newest broker, with the access control of 5.x (ACL 2.0); at first it knows the owner only."""

    def config(self) -> dict[str, str]:
        auth = "org.apache.rocketmq.auth"
        owner = {"username": OWNER.access_key, "password": OWNER.secret_key}
        inner = {"accessKey": OWNER.access_key, "secretKey": OWNER.secret_key}
        return {
            **super().config(),
            "authenticationEnabled": "true",
            "authenticationProvider": f"{auth}.authentication.provider.DefaultAuthenticationProvider",
            "authenticationMetadataProvider": (
                f"{auth}.authentication.provider.LocalAuthenticationMetadataProvider"
            ),
            "authorizationEnabled": "true",
            "authorizationProvider": f"{auth}.authorization.provider.DefaultAuthorizationProvider",
            "authorizationMetadataProvider": (
                f"{auth}.authorization.provider.LocalAuthorizationMetadataProvider"
            ),
            "authConfigPath": str(self.directory / "auth"),
            "initAuthenticationUser": json.dumps(owner),
            "innerClientAuthenticationCredentials": json.dumps(inner),
        }


class TlsFiles:
    """The certificates of a cluster, of a client of it, and of one that has nothing to do with it."""

    def __init__(self, directory: Path) -> None:
        self.authority = Authority(directory / "ours")
        self.server = self.authority.sign("server", "IP:127.0.0.1")
        self.client = self.authority.sign("client")
        self.stranger = Authority(directory / "theirs")

    def jvm_flags(self) -> list[str]:
        """A server that enforces TLS and wants clients to show a certificate; and the same as a
        client of other servers."""
        return [
            *QUICK_JAVA,
            "-Dtls.test.mode.enable=false",
            "-Dtls.server.mode=enforcing",
            *_pair("server", self.server),
            "-Dtls.server.need.client.auth=require",
            "-Dtls.server.authClient=true",
            f"-Dtls.server.trustCertPath={self.authority.certificate}",
            "-Dtls.enable=true",
            *_pair("client", self.client),
            "-Dtls.client.authServer=true",
            f"-Dtls.client.trustCertPath={self.authority.certificate}",
        ]

    def context(self) -> ssl.SSLContext:
        """For raw requests, made without our client's code."""
        context = ssl.create_default_context(cafile=str(self.authority.certificate))
        context.load_cert_chain(self.client.certificate, self.client.key)
        return context

    def options(self) -> dict[str, Any]:
        """For `cometmq.Tls`."""
        return {
            "ca_file": str(self.authority.certificate),
            "cert_file": str(self.client.certificate),
            "key_file": str(self.client.key),
        }


def tls_servers(files: TlsFiles, conf: dict[str, str]) -> tuple[JavaNamesrv, Acl2Broker]:
    """A name server and a broker with ACL 2.0, not started, that enforce TLS."""
    namesrv = JavaNamesrv(jvm_flags=files.jvm_flags())
    broker = Acl2Broker(namesrv.address, conf=conf, jvm_flags=files.jvm_flags())
    namesrv.tls = broker.tls = files.context()
    return namesrv, broker


async def admit_guest(broker: Acl2Broker, tls: Tls) -> None:
    """Have the broker know the guest, by signed requests of the owner."""
    client = RemotingClient(credentials=OWNER, tls=tls)
    guest = {"username": GUEST.access_key, "password": GUEST.secret_key, "userType": "Normal"}
    subject = f"User:{GUEST.access_key}"
    entries = [
        {"resource": f"Topic:{GUEST_TOPIC}", "actions": ["Pub", "Sub"], "decision": "Allow"},
        {"resource": f"Group:{GUEST_GROUP}", "actions": ["Sub"], "decision": "Allow"},
    ]
    acl = {"subject": subject, "policies": [{"policyType": "Custom", "entries": entries}]}
    try:
        for code, ext, body in (
            (_CREATE_USER, {"username": GUEST.access_key}, guest),
            (_CREATE_ACL, {"subject": subject}, acl),
        ):
            command = RemotingCommand(code, ext=ext, body=json.dumps(body).encode())
            answer = await client.call(broker.address, command, WAIT_S)
            assert answer.code == 0, answer
    finally:
        await client.close()


def _pair(side: str, pair: Pair) -> list[str]:
    return [f"-Dtls.{side}.certPath={pair.certificate}", f"-Dtls.{side}.keyPath={pair.key}"]
