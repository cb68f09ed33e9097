"""Clients at Java servers that want signatures and TLS: ACL 1.0 (5.2), ACL 2.0 with TLS (the newest).

Everything that clients say to servers has to be signed and encrypted alike: each test is one way to
use them.
"""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from tests.access.actors import OWNER as ACTORS_OWNER
from tests.access.differences import DIFFERENT
from tests.access.matrix import Question, Verdict, admit, as_actor, ask_all, forgeries
from tests.access.servers import Guarded as OurServers
from tests.access.servers import guarded_cluster
from tests.access.variants import VARIANTS
from tests.integration.admin_commands import Commands
from tests.integration.client_faces import PATIENT, Received, open_face
from tests.integration.raw_client import connecting_by
from tests.interop.clients import JavaClient
from tests.interop.conftest import JAVA_BROKER_CONF, need
from tests.interop.guarded import (
    GUEST,
    GUEST_GROUP,
    GUEST_TOPIC,
    OWNER,
    Acl1Broker,
    TlsFiles,
    admit_guest,
    tls_servers,
)
from tests.interop.peers import JavaNamesrv
from tests.waits import JVM_WAIT_S, WAIT_S, eventually
from typer.testing import CliRunner

import cometmq
import cometmq.aio
from cometmq import (
    ConsumeFromWhere,
    ConsumeResult,
    Credentials,
    LocalTransactionState,
    Message,
    MessageExt,
    Tls,
    create_reply_message,
)
from cometmq.admin import AdminClient
from cometmq.admin.access.records import AclEntry
from cometmq.bulk.range_reader import BlockingRangeReader
from cometmq.cli.main import app
from cometmq.errors import (
    AccessDeniedError,
    ClientStateError,
    ConnectError,
    RemoteError,
    RemotingError,
    RouteNotFoundError,
)
from cometmq.protocol.messages.record import decode_records
from cometmq.remoting.credentials import signature
from cometmq.runtime.loop import run

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]

FIRST = ConsumeFromWhere.FIRST_OFFSET
TRACES = "RMQ_SYS_TRACE_TOPIC"
LONG_MS = int(WAIT_S * 1000)


@dataclass(frozen=True)
class Guarded:
    """Servers, and how the owner gets in."""

    namesrv: str
    broker: str
    tls: Tls | None = None
    files: TlsFiles | None = None
    credentials: Credentials | None = field(default=OWNER)

    @property
    def options(self) -> dict[str, Any]:
        return {"namesrv": self.namesrv, "credentials": self.credentials, "tls": self.tls}

    @property
    def sending(self) -> dict[str, Any]:
        """The options of a producer, which gives a JVM that has just started time to answer."""
        return self.options | PATIENT


@pytest.fixture(scope="module")
def acl1() -> Iterator[Guarded]:
    need("java", "mvn")
    with JavaNamesrv() as namesrv, Acl1Broker(namesrv.address, conf=JAVA_BROKER_CONF) as broker:
        yield Guarded(namesrv.address, broker.address)


@pytest.fixture(scope="module")
def acl2_over_tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    need("java", "mvn")
    files = TlsFiles(tmp_path_factory.mktemp("tls"))
    namesrv, broker = tls_servers(files, JAVA_BROKER_CONF)
    with namesrv, broker:
        tls = Tls(**files.options())
        run(admit_guest(broker, tls))
        yield Guarded(namesrv.address, broker.address, tls, files)


@pytest.fixture(params=["acl1", "acl2_over_tls"])
def guarded(request: pytest.FixtureRequest) -> Guarded:
    servers: Guarded = request.getfixturevalue(request.param)
    return servers


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A topic and group name of this test's own."""
    return "".join(c if c.isalnum() else "-" for c in f"access-{request.node.name}")


@pytest.mark.parametrize("kind", ["blocking", "asyncio"])
def test_what_is_sent_in_any_way_is_consumed(guarded: Guarded, name: str, kind: str) -> None:
    received = Received()
    with open_face(kind, guarded.namesrv) as face:
        producer = face.producer(name, enable_trace=True, **guarded.options)
        producer.send(Message(name, "größe".encode(), keys=["schlüssel"], tags="ä"))
        pending = producer.send_async(Message(name, b"async"))
        if kind == "blocking":  # the other face waited
            pending.result(WAIT_S)
        producer.send_batch([Message(name, b"batch 1"), Message(name, b"batch 2")])
        producer.send(Message(name, b"long " * 2000, properties={"note": "grün € 😀"}))
        producer.send_oneway(Message(name, b"oneway"))
        face.consumer(
            name, name, received.handle, consume_from=FIRST, orderly=True, **guarded.options
        )
        received.wait_for(6, 60)
    assert sorted(body[:7] for body in received.bodies) == sorted(
        ["größe".encode()[:7], b"async", b"batch 1", b"batch 2", b"long lo", b"oneway"]
    )
    # What the producer's end had to send of its trace came through as well.
    with BlockingRangeReader(**guarded.options) as reader:
        assert eventually(lambda: _traced(reader, name))


def _traced(reader: BlockingRangeReader, topic: str) -> bool:
    try:
        queues = reader.queues(TRACES)
    except RouteNotFoundError:
        return False
    return any(
        f"\x01{topic}\x01".encode() in record.body
        for queue, (low, high) in reader.offsets(queues).items()
        for chunk in reader.read(queue, low, high)
        for record in decode_records(chunk.records)
    )


def test_offsets_are_asked_for_and_stored(guarded: Guarded, name: str) -> None:
    with cometmq.Producer(name, **guarded.sending) as producer:
        sent = [producer.send(Message(name, b"%d" % index)) for index in range(8)]
    consumer = cometmq.LitePullConsumer(name, consume_from=FIRST, **guarded.options)
    consumer.subscribe(name)
    with consumer:
        got: list[MessageExt] = []

        def all_came() -> bool:
            got.extend(consumer.poll(200))
            return len(got) >= len(sent)

        eventually(all_came, wait_s=JVM_WAIT_S)
        consumer.commit()
    assert sorted(message.body for message in got) == [b"%d" % index for index in range(8)]

    async def lag() -> int:
        async with AdminClient(
            guarded.namesrv, credentials=guarded.credentials, tls=guarded.tls
        ) as admin:
            return sum(queue.lag or 0 for queue in await admin.offsets.of_topic(name, name))

    assert eventually(lambda: run(lag()) == 0)


def test_transactions_are_decided_and_asked_for(guarded: Guarded, name: str) -> None:
    class Listener:
        def execute(self, message: Message, _arg: Any) -> LocalTransactionState:
            if message.body == b"at once":
                return LocalTransactionState.COMMIT
            return LocalTransactionState.UNKNOWN

        def check(self, _message: MessageExt) -> LocalTransactionState:
            return LocalTransactionState.COMMIT

    received = Received()
    with open_face("blocking", guarded.namesrv) as face:
        producer = face.started(cometmq.TransactionProducer(name, Listener(), **guarded.sending))
        producer.send_in_transaction(Message(name, b"at once"))
        producer.send_in_transaction(Message(name, b"when asked"))
        face.consumer(name, name, received.handle, consume_from=FIRST, **guarded.options)
        # A Java broker may ask for what is being committed, and then it comes twice.
        eventually(lambda: set(received.bodies) == {b"at once", b"when asked"}, wait_s=JVM_WAIT_S)


def test_requests_are_replied_to(acl2_over_tls: Guarded, name: str) -> None:
    # Not with ACL 1.0: such a broker asks itself for a signature when it pushes the reply.
    with open_face("blocking", acl2_over_tls.namesrv) as face:
        replier = face.producer(f"{name}-replies", **acl2_over_tls.options)

        def answer(messages: list[MessageExt]) -> ConsumeResult:
            for message in messages:
                replier.send(create_reply_message(message, message.body.upper()))
            return ConsumeResult.SUCCESS

        asker = face.producer(name, **acl2_over_tls.options)
        asker.send(Message(name, b"makes the topic"))
        seen = Received()
        face.consumer(
            name,
            name,
            lambda messages: (
                answer(messages)
                if "CORRELATION_ID" in messages[0].properties
                else seen.handle(messages)
            ),
            consume_from=FIRST,
            **acl2_over_tls.options,
        )
        seen.wait_for(1, 60)
        reply = asker.request(Message(name, b"well?"), timeout_ms=LONG_MS)
    assert reply.body == b"WELL?"


@pytest.mark.parametrize("acl", [1, 2])
def test_verdicts_are_those_of_our_broker(
    acl: int, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    java: Guarded = request.getfixturevalue({1: "acl1", 2: "acl2_over_tls"}[acl])
    with guarded_cluster(acl, tmp_path) as ours:
        asked = list(_questions(ours))
        at_ours = ask_all(ours.address("broker"), [question for _, question in asked])
        with _connecting(java):
            if acl == 2:
                admit(java.broker, ours.actors, OWNER)
            at_java = ask_all(java.broker, [question for _, question in asked])
            for variant in VARIANTS:
                answers = ask_all(
                    java.broker, [as_actor(variant.sample, actor) for actor in ours.actors]
                )
                let_in = {
                    case.case for case, reported in answers if reported.verdict is Verdict.LET_IN
                }
                more = let_in - {ACTORS_OWNER.name} - variant.let_in(acl)
                assert bool(more) == (acl == 1 and bool(variant.java_1)), (variant.name, answers)
                assert let_in > variant.let_in(acl), (variant.name, answers)
    found: dict[int, str] = {}
    for (code, question), (_, our), (_, his) in zip(asked, at_ours, at_java, strict=True):
        # Java looks into a body before it checks the signature, and this one is none.
        if our.verdict is his.verdict or his.verdict is Verdict.UNREADABLE:
            continue
        verdicts = {Verdict.LET_IN: his, Verdict.DENIED: our}
        why = f"{question.case}: Java says {his}, we say {our}"
        # Where Java asks for no right, whoever is known gets in.
        assert verdicts.keys() == {his.verdict, our.verdict}, f"{code} {why}"
        found[code] = why
    unlisted = [f"{code} {why}" for code, why in found.items() if code not in DIFFERENT[acl]]
    assert not unlisted, "\n".join(unlisted)
    assert found.keys() == DIFFERENT[acl].keys()


def _questions(ours: OurServers) -> Iterator[tuple[int, Question]]:
    for asking in ours.samples("broker"):
        for actor in ours.actors:
            yield asking.code, as_actor(asking, actor)
        for question, _ in forgeries(asking, ACTORS_OWNER):
            yield asking.code, question


@contextmanager
def _connecting(servers: Guarded) -> Iterator[None]:
    """Have raw clients talk TLS where the servers do."""
    if servers.files is None:
        yield
        return
    context = servers.files.context()

    def connect(address: tuple[str, int], timeout_s: float) -> ssl.SSLSocket:
        plain = socket.create_connection(address, timeout_s)
        return context.wrap_socket(plain, server_hostname=address[0])

    with connecting_by(connect):
        yield


DENIED = {
    "wrong secret": (Credentials(OWNER.access_key, "not-the-secret"), "check secret_key"),
    "unknown key": (Credentials("who-is-this", "not-the-secret"), "check access_key"),
    "not allowed": (GUEST, "known but may not do this"),
    "nobody": (None, r"pass credentials=Credentials\(access_key, secret_key\)"),
}


@pytest.mark.parametrize("who", DENIED)
def test_whoever_is_not_let_in_is_told_why(guarded: Guarded, name: str, who: str) -> None:
    with cometmq.Producer(name, **guarded.sending) as producer:
        producer.send(Message(name, b"makes the topic"))
    credentials, remedy = DENIED[who]
    options = replace(guarded, credentials=credentials).options
    reported: list[str] = []

    with (
        cometmq.Producer(name, retry_times=0, **options) as producer,
        pytest.raises(AccessDeniedError, match=remedy) as send,
    ):
        producer.send(Message(name, b"x"), timeout_ms=LONG_MS)
    reported.append(str(send.value))
    consumer = cometmq.PushConsumer(name, lambda _: ConsumeResult.SUCCESS, **options)
    consumer.subscribe(name)
    with pytest.raises(AccessDeniedError, match=remedy) as start:
        consumer.start()
    reported.append(str(start.value))
    consumer.close()
    polling = cometmq.LitePullConsumer(name, **options)
    polling.subscribe(name)
    with pytest.raises(AccessDeniedError, match=remedy):
        polling.start()
    polling.close()
    with BlockingRangeReader(**options) as reader:
        queues = reader.queues(name)
        if who != "not allowed":  # of these codes Java asks for the signature only
            with pytest.raises(AccessDeniedError, match=remedy) as ask:
                reader.offsets(queues)
            reported.append(str(ask.value))
            with pytest.raises(AccessDeniedError, match=remedy):
                list(reader.read(queues[0], 0, 1))
    assert not any(credentials and credentials.secret_key in text for text in reported)


def test_a_guest_may_do_what_it_is_allowed(guarded: Guarded) -> None:
    received = Received()
    with cometmq.Producer("owner", **guarded.sending) as producer:
        producer.send(Message(GUEST_TOPIC, b"from the owner"))
    options = replace(guarded, credentials=GUEST).options
    with open_face("blocking", guarded.namesrv) as face:
        face.producer(GUEST_GROUP, **options).send(Message(GUEST_TOPIC, b"from the guest"))
        face.consumer(GUEST_GROUP, GUEST_TOPIC, received.handle, consume_from=FIRST, **options)
        received.wait_for(2, 60)
    assert set(received.bodies) == {b"from the owner", b"from the guest"}


def test_clients_that_get_in_differently_do_not_share_connections(guarded: Guarded) -> None:
    options = guarded.options | {"instance_name": "shared"}
    with cometmq.Producer("first", **options):
        with cometmq.Producer("second", **options):
            pass
        other = cometmq.Producer("third", **options | {"credentials": GUEST})
        with pytest.raises(ClientStateError, match=r"other credentials.*another instance_name"):
            other.start()


def test_servers_and_clients_that_do_not_trust_each_other(acl2_over_tls: Guarded) -> None:
    files = acl2_over_tls.files
    assert files is not None
    ours, theirs = str(files.authority.certificate), str(files.stranger.certificate)
    stranger = files.stranger.sign("stranger")
    cases: tuple[tuple[bool | Tls | None, type[RemotingError], str], ...] = (
        (None, RemotingError, "never answered.* may require TLS"),
        (True, ConnectError, r"certificate is refused.*pass Tls\(ca_file"),
        (Tls(ca_file=theirs), ConnectError, r"certificate is refused.*pass Tls\(ca_file"),
        (
            Tls(ca_file=ours),
            RemotingError,
            "closed before the (answer came|request was sent)|handshake failed",
        ),
        (
            Tls(ca_file=ours, cert_file=str(stranger.certificate), key_file=str(stranger.key)),
            RemotingError,
            "closed before the (answer came|request was sent)|handshake failed",
        ),
    )
    for tls, kind, fault in cases:
        options = acl2_over_tls.options | {"tls": tls}
        with (
            cometmq.Producer("g", retry_times=0, **options) as producer,
            pytest.raises(kind, match=fault),
        ):
            producer.send(Message("t", b"x"), timeout_ms=LONG_MS)


def test_users_are_made_shown_changed_copied_and_deleted(acl2_over_tls: Guarded, name: str) -> None:
    with cometmq.AdminClient(**acl2_over_tls.options, timeout_ms=LONG_MS) as admin:
        [at] = admin.brokers.addresses()
        broker = at.address
        assert admin.access.create_user(name, "the-first-secret") == [broker]
        user = admin.access.user(name)[broker]
        assert (user.name, user.kind, user.state) == (name, "Normal", "enable")
        assert "the-first-secret" not in repr(user)
        assert name in [each.name for each in admin.access.users(name[:-1])[broker]]
        with pytest.raises(RemoteError, match=r"is existed; change it by access\.update_user"):
            admin.access.create_user(name, "another-secret")
        admin.access.update_user(name, state="DISABLE")
        assert admin.access.user(name, broker=broker)[broker].state == "disable"
        assert admin.access.copy_users(broker, at.broker_name, [name]) == [name]
        with pytest.raises(RemoteError, match="has no user nobody, so nothing was copied; it has"):
            admin.access.copy_users(broker, broker, [name, "nobody"])
        with pytest.raises(RemoteError, match=r"not exist; check the user's name"):
            admin.access.update_user(f"{name}-9", state="enable")
        assert admin.access.delete_user(name) == [broker]
        with pytest.raises(RemoteError, match=r"has user .*; check its name \(access\.users"):
            admin.access.delete_user(name)
        admin.access.delete_user(name, missing_ok=True)


def test_policies_are_made_shown_changed_copied_and_deleted(
    acl2_over_tls: Guarded, name: str
) -> None:
    subject = f"User:{name}"
    send = AclEntry(f"Topic:{name}", ("Pub",), source_ips=("127.0.0.1",))
    consume = AclEntry("Group:*", ("Sub", "Get"), "Deny", policy="Default")
    with cometmq.AdminClient(**acl2_over_tls.options, timeout_ms=LONG_MS) as admin:
        [at] = admin.brokers.addresses()
        broker = at.address
        with pytest.raises(RemoteError, match=r"not exist.*check the user's name"):
            admin.access.create_acl(subject, [send])
        admin.access.create_user(name, "the-first-secret")
        with pytest.raises(RemoteError, match=r"check the subject \(access\.acls"):
            admin.access.acl(subject)
        assert admin.access.create_acl(subject, [send, consume]) == [broker]
        assert set(admin.access.acl(subject)[broker].entries) == {send, consume}
        changed = AclEntry(f"Topic:{name}", ("Pub", "Sub"))
        assert admin.access.update_acl(subject, [AclEntry(f"Topic:{name}", ("PUB", "sub"))])
        assert set(admin.access.acl(subject, broker=broker)[broker].entries) == {changed, consume}
        [acl] = admin.access.acls(name)[broker]
        assert (acl.subject, set(acl.entries)) == (subject, {changed, consume})
        assert admin.access.copy_acls(at.broker_name, broker, [subject]) == [subject]
        assert set(admin.access.acl(subject)[broker].entries) == {changed, consume}
        admin.access.delete_acl(subject, f"Topic:{name}")
        assert admin.access.acl(subject)[broker].entries == (consume,)
        assert admin.access.delete_acl(subject) == [broker]
        assert admin.access.acls(name) == {broker: []}
        with pytest.raises(RemoteError, match=r"acl is not exist; check the subject"):
            admin.access.delete_acl(subject)
        admin.access.delete_user(name)


def test_accounts_are_made_used_and_deleted(acl1: Guarded, name: str) -> None:
    with cometmq.AdminClient(**acl1.options, timeout_ms=LONG_MS) as admin:
        [at] = admin.brokers.addresses()
        broker = at.address
        files = admin.access.account_files()[broker]
        assert (files.cluster, files.broker_name) == (at.cluster, at.broker_name)
        assert files.version.timestamp > 0
        account = Credentials("made-by-test", "secret-of-the-test")
        assert admin.access.put_account(
            account.access_key,
            account.secret_key,
            default_topic_permission="DENY",
            default_group_permission="SUB",
            topic_permissions={name: "PUB|SUB"},
            group_permissions={name: "SUB"},
        ) == [broker]
        admin.topics.create(name)

        def sent() -> bool:
            options = replace(acl1, credentials=account).sending
            with cometmq.Producer(name, **options) as producer:
                return bool(producer.send(Message(name, b"x"), timeout_ms=LONG_MS).msg_id)

        assert eventually(sent, passing=(RemoteError, RouteNotFoundError))
        assert admin.access.set_white_addresses(["10.99.99.*"]) == [broker]
        assert admin.access.delete_account(account.access_key) == [broker]
        with pytest.raises(RemoteError, match=r"failed at .*aclEnable=true.*log says more"):
            admin.access.delete_account(account.access_key)


@pytest.fixture
def commands(
    request: pytest.FixtureRequest, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[[Guarded], Commands]:
    """Return what runs commands as the owner, who says so in files as for mqadmin."""

    def of(guarded: Guarded) -> Commands:
        keys = tmp_path / "tools.yml"
        keys.write_text(f"accessKey: {OWNER.access_key}\nsecretKey: {OWNER.secret_key}\n")
        options = ["--credentials", str(keys)]
        if guarded.files is not None:
            tls = tmp_path / "tls.properties"
            lines = {
                "tls.test.mode.enable": "false",
                "tls.client.authServer": "true",
                "tls.client.trustCertPath": guarded.files.authority.certificate,
                "tls.client.certPath": guarded.files.client.certificate,
                "tls.client.keyPath": guarded.files.client.key,
            }
            tls.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
            options += ["--tlsConfigFile", str(tls)]
        return Commands(guarded.namesrv, capfd, tuple(options))

    return of


def test_commands_make_change_copy_and_delete_users(
    acl2_over_tls: Guarded, name: str, commands: Callable[[Guarded], Commands]
) -> None:
    admin = commands(acl2_over_tls)
    with cometmq.AdminClient(**acl2_over_tls.options, timeout_ms=LONG_MS) as client:
        [at] = client.brokers.addresses()
        whole, one = ("-c", at.cluster), ("-b", at.address)
        user = ("-u", name)
        [done] = admin.json("createUser", *whole, *user, "-p", "the-first-secret", "--dry-run")
        assert done == {"server": at.address, "result": f"would create user {name}"}
        assert name not in [each.name for each in client.access.users()[at.address]]
        printed = admin.run("createUser", *whole, *user, "-p", "the-first-secret")
        assert "the-first-secret" not in printed.out + printed.err
        assert client.access.user(name)[at.address].kind == "Normal"
        admin.run("updateUser", *one, *user, "-t", "Super", "-s", "disable")
        changed = client.access.user(name)[at.address]
        assert (changed.kind, changed.state) == ("Super", "disable")
        [row] = admin.json("getUser", *whole, *user)
        assert row == {
            "username": name,
            "password": changed.password,
            "userType": "Super",
            "userStatus": "disable",
            "brokerAddr": at.address,
        }
        assert row in admin.json("listUser", *one, "-f", name[:-1])
        assert "UserName" in admin.run("listUser", *one).out
        admin.run("copyUser", "-f", at.address, "-t", at.broker_name, "-u", name)
        wrong = admin.refused("updateUser", *one, *user, status=2)
        assert "nothing is changed; give a password, kind or state" in wrong
        assert "give one of Super, Normal" in admin.refused(
            "updateUser", *one, *user, "-t", "King", status=2
        )
        nobody = admin.refused("copyUser", "-f", at.address, "-t", at.address, "-u", "nobody")
        assert "has no user nobody, so nothing was copied" in nobody
        assert "repeat it with --yes" in admin.refused("deleteUser", *whole, *user, status=2)
        admin.run("deleteUser", *whole, *user, "--yes")
        assert name not in [each.name for each in client.access.users()[at.address]]
        assert "check its name" in admin.refused("getUser", *whole, *user)


def test_commands_make_change_copy_and_delete_policies(
    acl2_over_tls: Guarded, name: str, commands: Callable[[Guarded], Commands]
) -> None:
    admin = commands(acl2_over_tls)
    subject = ("-s", f"User:{name}")
    with cometmq.AdminClient(**acl2_over_tls.options, timeout_ms=LONG_MS) as client:
        [at] = client.brokers.addresses()
        whole, one = ("-c", at.cluster), ("-b", at.address)
        client.access.create_user(name, "the-first-secret")
        about = ("-r", f"Topic:{name},Group:{name}*", "-a", "Pub,Sub", "-i", "127.0.0.1")
        admin.run("createAcl", *whole, *subject, *about, "-d", "Allow")
        for resource in (f"Topic:{name}", f"Group:{name}*"):
            entry = AclEntry(resource, ("Pub", "Sub"), source_ips=("127.0.0.1",))
            assert entry in client.access.acl(subject[1])[at.address].entries
        deny = ("-r", f"Topic:{name}", "-a", "Pub", "-d", "Deny")
        admin.run("updateAcl", *one, *subject, *deny)
        rows = admin.json("getAcl", *whole, *subject)
        [row] = [each for each in rows if each["resource"] == f"Topic:{name}"]
        assert row == {
            "subject": subject[1],
            "policyType": "Custom",
            "resource": f"Topic:{name}",
            "actions": ["Pub"],
            "sourceIps": [],
            "decision": "Deny",
            "brokerAddr": at.address,
        }
        assert row in admin.json("listAcl", *one, "-s", name, "-r", name)
        assert "Pub,Sub" in admin.run("getAcl", *one, *subject).out
        admin.run("copyAcl", "-f", at.broker_name, "-t", at.address, *subject)
        wrong = admin.refused(
            "createAcl", *one, *subject, "-r", "x", "-a", "Pub", "-d", "Allow", status=2
        )
        assert "'x' is no resource; give one such as Topic:name" in wrong
        admin.run("deleteAcl", *one, *subject, "-r", f"Topic:{name}", "-y")
        [left] = client.access.acl(subject[1])[at.address].entries
        assert left.resource == f"Group:{name}*"
        admin.run("deleteAcl", *whole, *subject, "-y")
        assert "check the subject" in admin.refused("getAcl", *whole, *subject)
        client.access.delete_user(name)


def test_commands_set_show_and_delete_accounts(
    acl1: Guarded,
    name: str,
    commands: Callable[[Guarded], Commands],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    admin = commands(acl1)
    account = Credentials("made-by-command", "secret-of-the-command")
    keys = ("-a", account.access_key, "-s", account.secret_key)
    perms = ("-t", f"{name}=PUB|SUB,other=DENY", "-g", f"{name}=SUB", "-i", "DENY", "-u", "SUB")
    with cometmq.AdminClient(**acl1.options, timeout_ms=LONG_MS) as client:
        [at] = client.brokers.addresses()
        whole, one = ("-c", at.cluster), ("-b", at.address)
        client.topics.create(name)
        printed = admin.run("updateAclConfig", *whole, *keys, *perms)
        assert account.secret_key not in printed.out + printed.err

        def sent() -> bool:
            options = replace(acl1, credentials=account).sending
            with cometmq.Producer(name, **options) as producer:
                return bool(producer.send(Message(name, b"x"), timeout_ms=LONG_MS).msg_id)

        assert eventually(sent, passing=(RemoteError, RouteNotFoundError))
        versions = admin.json("clusterAclConfigVersion", *whole)
        assert {(row["brokerName"], row["brokerAddr"]) for row in versions} == {
            (at.broker_name, at.address)
        }
        admin.run("updateGlobalWhiteAddr", *one, "-g", "10.99.99.*")

        def counted(rows: list[dict[str, Any]]) -> int:
            return sum(row["aclConfigVersionNum"] for row in rows)

        eventually(
            lambda: counted(admin.json("clusterAclConfigVersion", *one)),
            lambda count: count > counted(versions),
        )
        wrong = admin.refused("updateAclConfig", *one, *keys, "-i", "MAYBE", status=2)
        assert "'MAYBE' is no permission; give one of DENY" in wrong
        # --accessKey and --secretKey are the account's here, so the owner's come from elsewhere.
        monkeypatch.setenv("COMETMQ_ACCESS_KEY", OWNER.access_key)
        monkeypatch.setenv("COMETMQ_SECRET_KEY", OWNER.secret_key)
        alone = Commands(acl1.namesrv, capfd)
        alone.run("updateAclConfig", *one, *keys, *perms)
        alone.run("deleteAccessConfig", *one, "-a", account.access_key, "--yes")
        gone = alone.refused("deleteAclConfig", *whole, "-a", account.access_key, "--yes")
        assert "its log says more" in gone


def test_the_doctor_and_the_probe_sign_and_encrypt(acl2_over_tls: Guarded, tmp_path: Path) -> None:
    files = acl2_over_tls.files
    assert files is not None
    tls = tmp_path / "tls.properties"
    tls.write_text(
        "tls.test.mode.enable=false\n"
        "tls.client.authServer=true\n"
        f"tls.client.trustCertPath={files.authority.certificate}\n"
        f"tls.client.certPath={files.client.certificate}\n"
        f"tls.client.keyPath={files.client.key}\n"
    )
    keys = tmp_path / "tools.yml"
    keys.write_text(f"accessKey: {OWNER.access_key}\nsecretKey: {OWNER.secret_key}\n")
    with cometmq.AdminClient(**acl2_over_tls.options, timeout_ms=LONG_MS) as admin:
        [at] = admin.brokers.addresses()
    environment = {"NAMESRV_ADDR": None, "ROCKETMQ_HOME": None}

    def ended(*arguments: str) -> Any:
        given = [*arguments, "--timeout", "60", "--tlsConfigFile", str(tls)]
        return CliRunner().invoke(app, given, env=environment)

    doctor = ("doctor", "-n", acl2_over_tls.namesrv, "-o", "json")
    found = json.loads(ended(*doctor, "--credentials", str(keys)).stdout)["findings"]
    [broker] = [each for each in found if each["check"] == f"broker {at.broker_name}"]
    assert broker["status"] == "ok"
    assert "Java, speaks V5_" in broker["value"]
    found = json.loads(ended(*doctor).stdout)["findings"]
    [broker] = [each for each in found if each["check"] == f"broker {at.broker_name}"]
    assert broker["status"] == "error"
    assert broker["remedy"].startswith("give --accessKey and --secretKey, or --credentials")
    probe = ("probe", "broker", at.address, "--ready")
    assert ended(*probe, "--credentials", str(keys)).exit_code == 0
    assert ended(*probe).exit_code == 1
    assert ended(*probe, "--credentials", str(keys), "--accessKey", "a").exit_code != 0


@pytest.mark.parametrize("line", [4, 5])
def test_java_signs_alike(line: int) -> None:
    need("java", "mvn")
    ext = {"b": "grün € 😀", "a": "group", "B": "upper", "queueId": "3", "empty": "", "_x": "1"}
    body = "größe"
    events = JavaClient(line).run(
        "sign",
        access_key=OWNER.access_key,
        secret_key="geheim-schlüssel",
        token="a token",
        ext=";".join(f"{name}:{value}" for name, value in ext.items()),
        body=body,
    )
    signed = next(event for event in events if event["event"] == "signed")
    del signed["event"]
    assert signed.items() >= ext.items()
    expected = signed["Signature"]
    assert signature(signed, body.encode(), "geheim-schlüssel") == expected


def test_the_asyncio_clients_are_let_in_on_uvloop(acl2_over_tls: Guarded) -> None:
    uvloop = pytest.importorskip("uvloop")

    async def send() -> str:
        assert type(asyncio.get_running_loop()).__module__.startswith("uvloop")
        async with cometmq.aio.Producer("uvloop", **acl2_over_tls.sending) as producer:
            body = b"larger than what one TLS record takes " * 3000
            return (await producer.send(Message("uvloop", body))).msg_id

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(send())
