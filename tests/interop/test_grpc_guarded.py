"""RocketMQ's clients for gRPC, as published, at our proxy that wants TLS and signatures."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from tests.certificates import Authority
from tests.interop.at_once import at_once
from tests.interop.conftest import need
from tests.interop.grpc_cases import (
    CLIENTS,
    CONF,
    PLACES,
    Keys,
    Place,
    RunningProxy,
    cases_of,
    ended,
    only_waits,
    run_case,
    without_group,
)
from tests.interop.mqadmin.runner import MqAdmin
from tests.interop.peers import with_rust

from cometmq import AdminClient, Credentials
from cometmq.access.config import AccessConfig
from cometmq.admin.access.records import AclEntry
from cometmq.proxy.configuration.front_config import FrontConfig
from cometmq.testing import Cluster

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future
    from pathlib import Path

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]

KEYS = Keys(Credentials("shop", "shop-secret"), Credentials("admin", "admin-secret"))
INNER = '{"accessKey":"inner","secretKey":"inner-secret"}'
GUARDED = {
    "authenticationEnabled": "true",
    "authorizationEnabled": "true",
    "initAuthenticationUser": '{"username":"admin","password":"admin-secret"}',
    "innerClientAuthenticationCredentials": INNER,
}
COUNT = 3
LABELS = [label for label in CLIENTS if label != "rust-grpc" or with_rust()]
# These clients run all cases. The others make the same calls, so they only send and receive.
THOROUGH = ("java-grpc", "python-grpc")
# These clients check certificates and take their authorities from here: Node and Python, and Rust.
AUTHORITIES = ("GRPC_DEFAULT_SSL_ROOTS_FILE_PATH", "SSL_CERT_FILE")


def made_proxy(stack: ExitStack, directory: Path, cluster: Cluster) -> RunningProxy:
    authority = Authority(directory)
    pair = authority.sign("proxy", "IP:127.0.0.1")
    environment = stack.enter_context(pytest.MonkeyPatch.context())
    for name in AUTHORITIES:
        environment.setenv(name, str(authority.certificate))
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


def let_in(namesrv: str) -> None:
    """Make the account of the clients, with the rights to the topics and groups of their cases."""
    shop = KEYS.client
    with AdminClient(namesrv, credentials=KEYS.admin) as admin:
        admin.access.create_user(shop.access_key, shop.secret_key, cluster="DefaultCluster")
        for label in LABELS:
            entries = [
                AclEntry(f"Topic:{label}-*", ("Pub", "Sub")),
                AclEntry(f"Group:group-{label}-*", ("Sub",)),
            ]
            admin.access.create_acl(f"User:{shop.access_key}", entries, cluster="DefaultCluster")


@pytest.fixture(scope="module")
def runs(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future[Any]]]:
    need("java", "mvn")
    with ExitStack() as stack:
        properties = {**CONF, **GUARDED}
        cluster = stack.enter_context(Cluster(properties=properties, namesrv_properties=GUARDED))
        let_in(cluster.namesrv)
        proxy = made_proxy(stack, tmp_path_factory.mktemp("certificates"), cluster)
        tools = stack.enter_context(MqAdmin(5, KEYS.admin))
        broker = cluster.brokers[0].address
        everywhere = Place(cluster.namesrv, broker, proxy.endpoints, tools, KEYS)

        def run(case: str) -> None:
            label, _, what = case.partition(": ")
            place = everywhere.of(CLIENTS[label])
            if what == "wrong secret":
                refused(place)
            elif what == "signed":
                sent_and_received(place)
            else:
                run_case(everywhere, case)

        yield stack.enter_context(at_once(request, run, places=PLACES, only_waits=only_waits))
        assert proxy.proxy.gate is not None
        assert proxy.proxy.gate.refusals.keys() <= {"signature"}


def sent_and_received(place: Place) -> None:
    names = place.make("signed")
    sent = place.client.produce(count=COUNT, **without_group(names))
    with place.client.start("receive", expected=COUNT, invisible_s=30, **names) as consumer:
        consumer.wait_for(ended)
        consumer.finish()
    received = {each["msgId"] for each in consumer.named("message")}
    assert received == {each["msgId"] for each in sent}


def refused(place: Place) -> None:
    names = {**without_group(place.make("refused")), "secret_key": "wrong"}
    events = place.client.run("produce", count=1, may_fail=True, **names)
    (failed,) = [each for each in events if each["event"] == "failed"]
    assert place.client.of_wrong_secret in failed["error"] + str(failed["cause"]), failed


CASES = [
    *cases_of(*THOROUGH),
    *(f"{label}: signed" for label in LABELS if label not in THOROUGH),
    *(f"{label}: wrong secret" for label in LABELS),
]


@pytest.mark.parametrize("case", CASES)
def test_by_tls_and_signature(runs: dict[str, Future[Any]], case: str) -> None:
    need(*CLIENTS[case.partition(": ")[0]].tools)
    runs[case].result()
