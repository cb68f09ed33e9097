"""RocketMQ's clients for gRPC, as published, at our proxy that wants TLS and signatures."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.certificates import Authority
from tests.interop.at_once import at_once
from tests.interop.conftest import need
from tests.interop.grpc_cases import CLIENTS, RunningProxy, ended
from tests.interop.peers import clean_environment, grpc_directory, with_rust
from tests.waits import JVM_WAIT_S

from cometmq import AdminClient, Credentials
from cometmq.access.config import AccessConfig
from cometmq.admin.access.records import AclEntry
from cometmq.proxy.configuration.front_config import FrontConfig
from cometmq.testing import Cluster

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]

ADMIN, SHOP = Credentials("admin", "admin-secret"), Credentials("shop", "shop-secret")
INNER = '{"accessKey":"inner","secretKey":"inner-secret"}'
GUARDED = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "initAuthenticationUser": '{"username":"admin","password":"admin-secret"}',
    "innerClientAuthenticationCredentials": INNER,
}
COUNT = 3
PYTHON = "python-grpc"
LABELS = [PYTHON, *(label for label in CLIENTS if label != "rust-grpc" or with_rust())]
# These clients check certificates and take their authorities from here: Node and Python, and Rust.
AUTHORITIES = ("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", "SSL_CERT_FILE")


def made_place(stack: ExitStack, directory: Path) -> RunningProxy:
    authority = Authority(directory)
    pair = authority.sign("proxy", "IP:127.0.0.1")
    environment = stack.enter_context(pytest.MonkeyPatch.context())
    for name in AUTHORITIES:
        environment.setenv(name, str(authority.certificate))
    cluster = stack.enter_context(Cluster(properties=GUARDED, namesrv_properties=GUARDED))
    with AdminClient(cluster.namesrv, credentials=ADMIN) as admin:
        admin.access.create_user(SHOP.access_key, SHOP.secret_key, cluster="DefaultCluster")
        for label in LABELS:
            admin.topics.create(f"topic-{label}", cluster="DefaultCluster")
            entries = [
                AclEntry(f"Topic:topic-{label}", ("Pub", "Sub")),
                AclEntry(f"Group:group-{label}", ("Sub",)),
            ]
            admin.access.create_acl(f"User:{SHOP.access_key}", entries, cluster="DefaultCluster")
    front = FrontConfig(
        tls_server_mode="enforcing",
        tls_server_cert_path=pair.certificate,
        tls_server_key_path=pair.key,
    )
    control = AccessConfig(
        authentication_enabled=True,
        authorization_enabled=True,
        inner_client_authentication_credentials=INNER,
    )
    return stack.enter_context(RunningProxy(cluster.namesrv, front=front, control=control))


@pytest.fixture(scope="module")
def runs(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[Any]]]:
    with ExitStack() as stack:
        proxy = made_place(stack, tmp_path_factory.mktemp("certificates"))

        def run(case: str) -> None:
            label, _, what = case.partition(": ")
            signs = {"endpoints": proxy.endpoints, "tls": True, "access_key": SHOP.access_key}
            signs["secret_key"] = "wrong" if what == "wrong secret" else SHOP.secret_key
            signs["topic"] = f"topic-{label}"
            if label == PYTHON:
                by_python(proxy.endpoints, signs)
            elif what == "wrong secret":
                refused(label, signs)
            else:
                sent_and_received(label, signs)

        yield stack.enter_context(at_once(request, run, places=4))
        assert proxy.proxy.gate is not None
        assert proxy.proxy.gate.refusals.keys() <= {"signature"}


def sent_and_received(label: str, signs: dict[str, Any]) -> None:
    client = CLIENTS[label]
    sent = client.produce(count=COUNT, **signs)
    with client.start(
        "receive", group=f"group-{label}", expected=COUNT, invisible_s=30, **signs
    ) as consumer:
        consumer.wait_for(ended)
        consumer.finish()
    received = {each["msgId"] for each in consumer.named("message")}
    assert received == {each["msgId"] for each in sent}


def refused(label: str, signs: dict[str, Any]) -> None:
    events = CLIENTS[label].run("produce", count=1, may_fail=True, **signs)
    (failed,) = [each for each in events if each["event"] == "failed"]
    assert CLIENTS[label].of_wrong_secret in failed["error"] + str(failed["cause"]), failed


def by_python(endpoints: str, signs: dict[str, Any]) -> None:
    program = [sys.executable, str(Path(__file__).with_name("grpc_python_client.py"))]
    program += [str(grpc_directory()), endpoints, f"group-{PYTHON}"]
    done = subprocess.run(
        [*program, signs["topic"], signs["access_key"], signs["secret_key"]],
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=JVM_WAIT_S,
        check=False,
    )
    # The client prints lines of its own.
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if signs["secret_key"] == SHOP.secret_key:
        assert lines == [{"what": "received", "body": "signed", "attempt": 1}], done.stderr[-3000:]
    else:
        assert done.returncode, lines
        assert "failed to fetch topic" in done.stderr, done.stderr[-3000:]


@pytest.mark.parametrize(
    "case", [f"{label}: {what}" for what in ("signed", "wrong secret") for label in LABELS]
)
def test_by_tls_and_signature(runs: dict[str, Future[Any]], case: str) -> None:
    label = case.partition(": ")[0]
    if label != PYTHON:
        need(*CLIENTS[label].tools)
    runs[case].result()
