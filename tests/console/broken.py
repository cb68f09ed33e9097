"""Stands for brokers that are broken: one that never answers, and one that knows no request."""

from __future__ import annotations

import json
import socket
import socketserver
import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final

from tests.integration.raw_client import RawClient

from cometmq.model.topic import TopicConfig
from cometmq.protocol.bodies import RegisterBrokerBody, TopicConfigSerializeWrapper
from cometmq.protocol.register_body import body_crc, encode_register_body

_REGISTER_BROKER: Final = 103
_NOT_SUPPORTED: Final = 3


@contextmanager
def silent_broker(namesrv: str, cluster: str, topics: Sequence[str]) -> Iterator[str]:
    """Register a broker that takes connections and never answers; yield its address."""
    with socket.create_server(("127.0.0.1", 0), backlog=512) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        with registered(namesrv, cluster, "broker-silent", address, topics):
            yield address


@contextmanager
def strange_broker(namesrv: str, cluster: str, topics: Sequence[str]) -> Iterator[str]:
    """Register a broker that answers each request by "not supported"; yield its address."""
    with _Server(("127.0.0.1", 0), _Refuser) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        address = f"127.0.0.1:{server.server_address[1]}"
        try:
            with registered(namesrv, cluster, "broker-strange", address, topics):
                yield address
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


class _Refuser(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        with suppress(OSError, struct.error):
            while True:
                length, header_length = struct.unpack(">ii", self.rfile.read(8))
                asked = json.loads(self.rfile.read(header_length & 0xFFFFFF))
                self.rfile.read(length - 4 - header_length)
                answer = json.dumps(
                    {
                        "code": _NOT_SUPPORTED, "flag": 1, "opaque": asked["opaque"], "language": "JAVA",
                        "version": 1, "remark": f" request type {asked['code']} not supported",
                    }
                ).encode()  # fmt: skip
                self.wfile.write(struct.pack(">ii", 4 + len(answer), len(answer)) + answer)
