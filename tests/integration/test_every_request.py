"""Every request that our servers serve, with each field missing, of another type, or absurd.

The requests are made of the request table, so that a new row is tried, too. Whatever a request says, it
gets an answer in our own words, no handler fails, and the next client is served.
"""

from __future__ import annotations

import builtins
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
import structlog
from tests.access import samples
from tests.access.actors import OWNER
from tests.access.matrix import signed
from tests.access.servers import guarded_cluster
from tests.integration.raw_client import RESPONSE, Command, RawClient, json_frame, json_request

from cometmq.broker.server import Broker
from cometmq.namesrv.server import NameServer
from cometmq.protocol.request_type import AnyRequestType, JsonBody
from cometmq.testing import Cluster

AT_ONCE: Final = 200
# What clients may write into a field, whatever its type is.
TEXTS: Final = (
    *("", " ", "-1", "1", "65536", "2147483647", "-2147483648", "4294967296"),
    *("9223372036854775807", "-9223372036854775808", "1e400", "NaN", "true", "1" * 400),
    *("\0", "a\nb\x1b[31m", "é\u202e😀", "\x01\x02", "x" * 5_000, "../../etc/passwd"),
    *("%RETRY%", "%RETRY%matrix-group", "%DLQ%matrix-group", "%LMQ%x", "SCHEDULE_TOPIC_XXXX"),
    *("RMQ_SYS_TRANS_HALF_TOPIC", "rmq_sys_wheel_timer", "TBW102", "matrix-topic@matrix-group"),
    *(";" * 3_000, ",|" * 1_000, "DELAY\x013\x02TRAN_MSG\x01true\x02TIMER_DELAY_SEC\x011\x02"),
    *("SQL92", "a = 1 AND b IS NOT NULL", "7F00000100002A9F0000000000000000", "User:"),
)
# Values in JSON that are no texts, as a header's field.
VALUES: Final = ("null", "true", "-5", "1.5", "9" * 30, '"\\u0000"')
# With one of these no number of a request can be read, so nobody is answered.
NO_FIELDS: Final = (
    "[]",
    "{}",
    '[["a"]]',
    "1e400",
    "NaN",
    "-Infinity",
    "01",
    "'a'",
    '"\\ud800"',
    "[" * 5_000,
)
# Values in the place of any value in a body.
NODES: Final[tuple[Any, ...]] = (
    *(None, True, 5, -1, 2**63, 1.5, "", "\0", "x" * 3_000, "7", "NaN"),
    *([], {}, [[]], [None], [""], {"a": {}}, {"$ref": "$"}, {"$ref": "$.a.b"}),
)
BODIES: Final = (
    *(b"", b"\0", b"null", b"[]", b"7", b'"a"', b"{", b"{}" * 3, b"\xff\xfe", b"a=b\n=\n\\u00", b"x" * 9_000),
    *(b'{"a":' * 200 + b"1" + b"}" * 200, b"[" * 100_000, b'{0:"a",{"b":1}:2}', b'{"$ref":"$"}'),
    *(b"\x78\x9c" + bytes(100), b'{"a":NaN}', b'{"a":1e999}', bytes(3) + b"\x7f" * 40),
)  # fmt: skip
_EXCEPTIONS: Final = tuple(
    f"{name}:"
    for name in (*dir(builtins), "ValidationError", "DecodeError", "EncodeError", "StopIteration")
    if isinstance(getattr(builtins, name, Exception), type)
)


@dataclass(frozen=True)
class Asked:
    """A request, and what is special about it."""

    what: str
    code: int
    ext: Mapping[str, str]
    body: bytes
    # Fields of the header as JSON, in the place of those in `ext`.
    raw: Mapping[str, str] | None = None

    def frame(self, opaque: int) -> bytes:
        if self.raw is None:
            return json_request(self.code, self.ext, self.body, opaque=opaque)
        fields = {name: json.dumps(text) for name, text in self.ext.items()} | dict(self.raw)
        ext = ",".join(f"{json.dumps(name)}:{value}" for name, value in fields.items())
        header = f'{{"code":{self.code},"extFields":{{{ext}}},"flag":0,"opaque":{opaque}}}'
        return json_frame(header.encode(), self.body)


def changed_fields(sample: samples.Sample, texts: Iterable[str] = TEXTS) -> Iterator[Asked]:
    names = [field.encode_name for field in msgspec.structs.fields(sample.row.header)]
    for name in names:
        what = f"{sample.row.name} {name}"
        less = {key: text for key, text in sample.ext.items() if key != name}
        yield Asked(f"{what} missing", sample.code, less, sample.body)
        for text in texts:
            ext = {**sample.ext, name: text}
            yield Asked(f"{what}={text[:40]!r}", sample.code, ext, sample.body)
    yield Asked(f"{sample.row.name} without fields", sample.code, {}, sample.body)


def raw_fields(sample: samples.Sample) -> Iterator[Asked]:
    for field in msgspec.structs.fields(sample.row.header):
        for value in VALUES:
            raw = {field.encode_name: value}
            what = f"{sample.row.name} {field.encode_name}: {value}"
            yield Asked(what, sample.code, sample.ext, sample.body, raw)


def changed_bodies(sample: samples.Sample, nodes: Iterable[Any] = NODES) -> Iterator[Asked]:
    bodies: list[tuple[str, bytes]] = [(repr(body[:40]), body) for body in BODIES]
    if isinstance(sample.row.body, JsonBody):
        tree = json.loads(sample.body)
        for path in paths(tree):
            bodies += [
                (f"{path} is {node!r:.40}", json.dumps(with_node(tree, path, node)).encode())
                for node in nodes
            ]
    for what, body in bodies:
        # Some requests have a sum of the body; 0 is none.
        ext = {**sample.ext, **({"bodyCrc32": "0"} if "bodyCrc32" in sample.ext else {})}
        yield Asked(f"{sample.row.name} body {what}", sample.code, ext, body)


def paths(tree: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield where the values of a tree are, it itself first."""
    yield at
    items: Iterable[tuple[Any, Any]] = ()
    if isinstance(tree, dict | list):
        items = tree.items() if isinstance(tree, dict) else enumerate(tree)
    for key, value in items:
        yield from paths(value, (*at, key))


def with_node(tree: Any, path: tuple[Any, ...], node: Any) -> Any:
    if not path:
        return node
    copy = dict(tree) if isinstance(tree, dict) else list(tree)
    copy[path[0]] = with_node(tree[path[0]], path[1:], node)
    return copy


def requests_of(rows: Iterator[AnyRequestType]) -> Iterator[Asked]:
    for row in rows:
        sample = samples.sample(row)
        yield from changed_fields(sample)
        yield from raw_fields(sample)
        yield from changed_bodies(sample)


def is_ours(answer: Command) -> bool:
    """Say whether an answer is a success or a refusal in our words."""
    remark = answer.remark or ""
    return not remark.startswith(_EXCEPTIONS) and bool(answer.code == 0 or remark)


def ask_all(address: str, asked: list[Asked]) -> list[str]:
    """Ask everything on one connection, many at a time; return what is wrong with answers."""
    wrong = []
    with RawClient(address) as client:
        for start in range(0, len(asked), AT_ONCE):
            some = dict(enumerate(asked[start : start + AT_ONCE], start))
            client.socket.sendall(b"".join(each.frame(opaque) for opaque, each in some.items()))
            while some:
                try:
                    answer = client.receive()
                except (ConnectionError, TimeoutError) as error:
                    pytest.fail(f"{error!r}; unanswered: {[each.what for each in some.values()]}")
                if not answer.is_response:  # a question to a client
                    reply = json_request(1, opaque=answer.opaque, flag=RESPONSE)
                    client.socket.sendall(reply)
                    continue
                each = some.pop(answer.opaque)
                if not is_ours(answer):
                    wrong.append(f"{each.what}: {answer.code} {answer.remark!r:.200}")
    return wrong


@contextmanager
def no_handler_fails() -> Iterator[None]:
    with structlog.testing.capture_logs() as lines:
        try:
            yield
        except pytest.fail.Exception as error:
            # The server's log says why it closed a connection.
            error.add_note("\n".join(map(str, lines[-20:])))
            raise
    bad = ("error", "critical", "exception")
    failed = [line for line in lines if line["log_level"] in bad or line.get("exc_info")]
    assert not failed, failed[:5]


def is_served(server: Broker | NameServer) -> bool:
    with RawClient(f"127.0.0.1:{server.port}") as client:
        return client.ask(106 if isinstance(server, NameServer) else 305).code in (0, 3)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(directory=tmp_path_factory.mktemp("every"), slaves=1) as cluster:
        yield cluster


@pytest.mark.parametrize("name", ["master", "slave", "namesrv"])
def test_no_request_makes_a_handler_fail(cluster: Cluster, name: str) -> None:
    servers: dict[str, Sequence[Broker | NameServer]] = {
        "master": cluster.brokers,
        "slave": cluster.slaves,
        "namesrv": cluster.name_servers,
    }
    server = servers[name][0]
    asked = list(requests_of(iter(server.handlers.request_types.values())))
    assert len(asked) > 2_000
    with no_handler_fails():
        wrong = ask_all(f"127.0.0.1:{server.port}", asked)
    assert not wrong, "\n".join(wrong[:20])
    assert is_served(server)


@pytest.mark.parametrize("name", ["broker", "namesrv"])
def test_what_is_no_field_ends_its_connection_alone(cluster: Cluster, name: str) -> None:
    server = cluster.brokers[0] if name == "broker" else cluster.name_servers[0]
    made = map(samples.sample, server.handlers.request_types.values())
    sample = next(each for each in made if each.ext)
    field = next(iter(sample.ext))
    with no_handler_fails():
        for value in NO_FIELDS:
            with RawClient(f"127.0.0.1:{server.port}") as client:
                asked = Asked(value, sample.code, sample.ext, b"", {field: value})
                client.socket.sendall(asked.frame(1))
                assert client.closed_by_peer(), value
    assert is_served(server)


@pytest.mark.parametrize("acl", [1, 2])
@pytest.mark.parametrize("name", ["broker", "namesrv"])
def test_no_signed_request_makes_access_control_fail(acl: int, name: str, tmp_path: Path) -> None:
    with guarded_cluster(acl, tmp_path) as guarded:
        owner = OWNER.credentials
        asked = [
            Asked(each.what, each.code, signed(each.ext, each.body, owner), each.body)
            for sample in guarded.samples(name)
            # Each change of an account writes a file.
            for each in (*changed_fields(sample, TEXTS[::3]), *changed_bodies(sample, NODES[::3]))
        ]
        with no_handler_fails():
            wrong = ask_all(guarded.address(name), asked)
        assert not wrong, "\n".join(wrong[:20])
