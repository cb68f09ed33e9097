"""Start our servers with access control, knowing the accounts of the matrix."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.access.actors import ACTORS_1, ACTORS_2, OWNER, Actor, plain_acl_accounts
from tests.access.matrix import admit
from tests.access.samples import Sample, sample

from cometmq.broker.server import Broker
from cometmq.namesrv.server import NameServer
from cometmq.testing import Cluster

SERVERS = ("broker", "namesrv")


class Guarded(NamedTuple):
    """A cluster with one kind of access control, and the accounts that it knows.

    `home` has the files of ACL 1.0 for both servers.
    """

    acl: int
    cluster: Cluster
    actors: tuple[Actor, ...]
    home: Path

    @property
    def namesrv(self) -> str:
        return self.cluster.namesrv

    @property
    def accounts(self) -> Path:
        """The file of ACL 1.0."""
        return self.home / "conf" / "plain_acl.yml"

    def server(self, name: str) -> Broker | NameServer:
        return self.cluster.brokers[0] if name == "broker" else self.cluster.name_servers[0]

    def address(self, name: str) -> str:
        return f"127.0.0.1:{self.server(name).port}"

    def samples(self, name: str) -> list[Sample]:
        """Return a request of each row that a server serves."""
        return [sample(row) for row in self.server(name).handlers.request_types.values()]


@contextmanager
def guarded_cluster(
    acl: int, home: Path, *, accounts: str = "", **properties: str
) -> Iterator[Guarded]:
    """Run a broker and a name server with ACL 1.0 or 2.0, whose files lie in `home`.

    `accounts` are more accounts of ACL 1.0, as its file has them; `properties` are for the broker.
    """
    actors = {1: ACTORS_1, 2: ACTORS_2}[acl]
    settings = _settings_1(home, accounts) if acl == 1 else _settings_2()
    settings["innerClientAuthenticationCredentials"] = json.dumps(
        {
            "accessKey": OWNER.credentials.access_key,
            "secretKey": OWNER.credentials.secret_key,
        }
    )
    with Cluster(
        properties={**settings, "authConfigPath": str(home / "broker"), **properties},
        namesrv_properties={**settings, "authConfigPath": str(home / "namesrv")},
    ) as cluster:
        servers = Guarded(acl, cluster, actors, home)
        if acl == 2:
            for name in SERVERS:
                admit(servers.address(name), actors, OWNER.credentials)
        yield servers


def _settings_1(home: Path, accounts: str) -> dict[str, str]:
    (home / "conf").mkdir()
    text = f"accounts:\n{plain_acl_accounts(ACTORS_1)}{accounts}"
    (home / "conf" / "plain_acl.yml").write_text(text)
    return {"aclEnable": "true", "rocketmqHome": str(home)}


def _settings_2() -> dict[str, str]:
    owner = OWNER.credentials
    first = {"username": owner.access_key, "password": owner.secret_key}
    return {
        "authenticationEnabled": "true",
        "authorizationEnabled": "true",
        "initAuthenticationUser": json.dumps(first),
    }
