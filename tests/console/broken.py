"""Stands for brokers that are broken: one that never answers, and one that knows no request."""

from __future__ import annotations

import json
import socketserver
import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

from tests.integration.raw_client import RawClient

from cometmq.model.topic import TopicConfig
from cometmq.protocol.bodies.cluster import RegisterBrokerBody, TopicConfigSerializeWrapper
from cometmq.protocol.bodies.registration import body_crc, encode_register_body

_REGISTER_BROKER: Final = 103
_NOT_SUPPORTED: Final = 3


@contextmanager
def silent_broker(
    namesrv: str, cluster: str, topics: Sequence[str], asked: list[int] | None = None
) -> Iterator[str]:
    """Register a broker that takes requests and never answers; yield its address.

    The codes of the requests that come are added to `asked`.
    """
    codes = [] if asked is None else asked

    class Silent(_Reader):
        def take(self, request: dict[str, Any]) -> None:
            codes.append(request["code"])

    with _served(Silent) as address, registered(namesrv, cluster, "broker-silent", address, topics):
        yield address


@contextmanager
def strange_broker(namesrv: str, cluster: str, topics: Sequence[str]) -> Iterator[str]:
    """Register a broker that answers each request by "not supported"; yield its address."""
    with (
        _served(_Refuser) as address,
        registered(namesrv, cluster, "broker-strange", address, topics),
    ):
        yield address


@contextmanager
def _served(handler: type[socketserver.StreamRequestHandler]) -> Iterator[str]:
    with _Server(("127.0.0.1", 0), handler) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            serving.join()


@contextmanager
def registered(
    namesrv: str, cluster: str, name: str, address: str, topics: Sequence[str]
) -> Iterator[None]:
    """Register a broker with queues of these topics, as long as the connection lasts."""
    configs = {
        topic: TopicConfig(topic_name=topic, read_queue_nums=2, write_queue_nums=2)
        # A new broker with a single topic is refused, as by Java's name servers.
        for topic in (*topics, "SELF_TEST_TOPIC")
    }
    body = encode_register_body(
        RegisterBrokerBody([], TopicConfigSerializeWrapper(topic_config_table=configs)),
        compressed=False,
    )
    header = {
        "brokerName": name,
        "brokerAddr": address,
        "clusterName": cluster,
        "haServerAddr": address,
        "brokerId": "0",
        "compressed": "false",
        "bodyCrc32": str(body_crc(body)),
    }
    with RawClient(namesrv) as broker:
        answer = broker.ask(_REGISTER_BROKER, header, body)
        assert answer.code == 0, answer
        yield


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False


class _Reader(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        with suppress(OSError, struct.error):
            while True:
                length, header_length = struct.unpack(">ii", self.rfile.read(8))
                request = json.loads(self.rfile.read(header_length & 0xFFFFFF))
                self.rfile.read(length - 4 - header_length)
                self.take(request)

    def take(self, request: dict[str, Any]) -> None:
        raise NotImplementedError


class _Refuser(_Reader):
    def take(self, request: dict[str, Any]) -> None:
        answer = json.dumps(
            {
                "code": _NOT_SUPPORTED, "flag": 1, "opaque": request["opaque"], "language": "JAVA",
                "version": 1, "remark": f" request type {request['code']} not supported",
            }
        ).encode()  # fmt: skip
        self.wfile.write(struct.pack(">ii", 4 + len(answer), len(answer)) + answer)
