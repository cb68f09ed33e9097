"""Names that are paths, commands or markup, in every request that our servers serve."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.access import samples
from tests.integration.raw_client import RawClient, send_ext

from cometmq.broker.server import Broker
from cometmq.namesrv.server import NameServer
from cometmq.testing import Cluster

HOSTILE = [
    "../../stolen",
    "/tmp/cometmq-stolen",
    "..",
    "a/../../stolen",
    "..%2f..%2fstolen",
    "stolen\0.conf",
    "$(touch /tmp/cometmq-stolen)",
    "`touch /tmp/cometmq-stolen`;|&",
    "__import__('os').system('id')",
    "%RETRY%../../stolen",
    "%DLQ%/tmp/cometmq-stolen",
    "{0.__class__}%s%n",
    "C:\\stolen",
    "x" * 3000,
    "\u202egro",
]
# Those in the samples that a peer may choose.
CHOSEN = (
    samples.TOPIC,
    samples.GROUP,
    samples.CLIENT,
    samples.BROKER,
    samples.DECOY,
    "matrix-producer",
    "matrix-key",
    "MATRIX",
)
# Java does not answer it either.
UNANSWERED = {604}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    directory = tmp_path_factory.mktemp("around") / "in" / "here"
    directory.mkdir(parents=True)
    with Cluster(directory=directory) as cluster:
        yield cluster


def around(directory: Path) -> set[str]:
    """Return the paths outside the servers' directory that a request may have made."""
    outside = {
        str(path)
        for path in directory.parents[1].rglob("*")
        if path != directory and directory not in path.parents
    }
    return outside | {str(path) for path in Path("/tmp").glob("*stolen*")}


def hostile(text: str, name: str) -> str:
    for chosen in CHOSEN:
        text = text.replace(chosen, name)
    return text


def requests_of(
    server: Broker | NameServer, name: str
) -> Iterator[tuple[int, dict[str, str], bytes]]:
    """Yield each request that a server serves, with `name` wherever its sender chooses a name."""
    quoted = json.dumps(name)[1:-1]
    for row in server.handlers.request_types.values():
        each = samples.sample(row)
        ext = {key: hostile(value, name) for key, value in each.ext.items()}
        body = each.body
        for chosen in CHOSEN:
            body = body.replace(chosen.encode(), quoted.encode())
        yield row.code, ext, body


@pytest.mark.parametrize("name", HOSTILE, ids=lambda name: repr(name)[:30])
@pytest.mark.parametrize("kind", ["broker", "namesrv"])
def test_no_request_reaches_a_path_outside_the_store(
    cluster: Cluster, kind: str, name: str
) -> None:
    server = cluster.brokers[0] if kind == "broker" else cluster.name_servers[0]
    before = around(cluster.directory)
    asked = 0
    with RawClient(f"127.0.0.1:{server.port}") as client:
        for code, ext, body in requests_of(server, name):
            if code not in UNANSWERED:
                client.ask(code, ext, body)
                asked += 1
    assert asked > 20
    assert around(cluster.directory) == before
    # Nor a directory of a name that no broker takes.
    queues = cluster.directory / "broker-a" / "consumequeue"
    assert not [path for path in queues.glob("*") if set(path.name) & set("/\\ $`'()\0")]
    with RawClient(f"127.0.0.1:{cluster.brokers[0].port}") as client:
        assert client.ask(10, send_ext("well-behaved"), b"x").code == 0
