"""Pages that find messages and show one of them, and what they do."""

from __future__ import annotations

import hashlib
import http.client
import json
import re
import socket
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from html import unescape
from pathlib import Path

import fastavro
import pytest
from playwright.sync_api import Browser, expect
from tests.console.running import Answer, Served, Visitor, logged_in, running_console
from tests.waits import CLOCK, WAIT_S, eventually

from cometmq import AdminClient, ConsumeResult, Message, MessageExt, Producer, PushConsumer
from cometmq.errors import ConfigError
from cometmq.testing import Cluster


@pytest.fixture(scope="module")
def producer(cluster: Cluster) -> Iterator[Producer]:
    with Producer("messages-pages", namesrv=cluster.namesrv) as made:
        yield made


def link(answer: Answer, path: str = "/message?") -> str:
    """The first link of a page that begins with `path`."""
    found = re.search(rf'href="({re.escape(path)}[^"]*)"', answer.html)
    assert found is not None, answer.text
    return unescape(found[1])


def place(visitor: Visitor, topic: str) -> dict[str, str]:
    """The place of the newest message of a topic, as forms name it."""
    query = link(visitor.get("/messages", topic=topic)).partition("?")[2]
    return dict(part.split("=") for part in query.split("&"))


def test_the_newest_messages_of_a_topic_come_first_and_pages_go_back(
    admin: AdminClient, producer: Producer, reader: Visitor
) -> None:
    for number in range(30):
        producer.send(Message("listed", b"body-%02d" % number, tags="t", keys=[f"k-{number}"]))
        CLOCK.sleep(0.002)
    first = reader.get("/messages", topic="listed", rows=20)
    assert first.text.index("body-29") < first.text.index("body-10")
    assert "body-09" not in first.text
    assert "20 shown" in first.text
    older = re.search(r'href="([^"]*)" rel="next"', first.html)
    assert older is not None
    second = reader.send("GET", unescape(older[1]))
    assert "body-09" in second.text
    assert "body-29" not in second.text
    oldest = reader.get("/messages", topic="listed", order="oldest")
    assert oldest.text.index("body-00") < oldest.text.index("body-29")


def test_a_few_topics_are_offered_to_who_has_named_none(tmp_path: Path) -> None:
    with (
        Cluster() as own,
        AdminClient(own.namesrv) as admin,
        running_console(own.namesrv, tmp_path) as served,
    ):
        admin.topics.create("offered")
        visitor = Visitor(served)
        eventually(lambda: 'href="/messages?topic=offered"' in visitor.get("/messages").html)
        assert "choices-of-topics" not in visitor.get("/messages", topic="offered").html


def test_messages_are_selected_by_time_tag_text_and_queue(
    admin: AdminClient, producer: Producer, reader: Visitor
) -> None:
    producer.send(Message("chosen", b"one apple", tags="fruit"))
    sent = producer.send(Message("chosen", b"two pears", tags="pear"))
    tagged = reader.get("/messages", topic="chosen", tags="pear").text
    assert "two pears" in tagged
    assert "one apple" not in tagged
    held = reader.get("/messages", topic="chosen", text="apple").text
    assert "one apple" in held
    assert "two pears" not in held
    queue = f"{sent.queue.broker_name}:{sent.queue.queue_id}"
    assert "two pears" in reader.get("/messages", topic="chosen", queue=queue).text
    assert "one apple" in reader.get("/messages", topic="chosen", begin="1h").text
    assert "No message" in reader.get("/messages", topic="chosen", end="1h").text
    assert "is no time" in reader.get("/messages", topic="chosen", begin="yesterday").text
    assert "BROKER:NUMBER" in reader.get("/messages", topic="chosen", queue="x").text
    for cursor in ("!", "broker-a=" + "9" * 5000):
        assert "no cursor" in reader.get("/messages", topic="chosen", cursor=cursor).text
    assert "know no topic of this name" in reader.get("/messages", topic="nobody-made-it").text


def test_a_time_with_its_zone_means_the_same_to_everybody(
    producer: Producer, reader: Visitor
) -> None:
    producer.send(Message("zoned", b"now"))
    page = reader.get("/messages", topic="zoned")
    iso = re.search(r'<time datetime="([^"]+)"', page.html)
    assert iso is not None
    stored = datetime.fromisoformat(iso[1])
    for hours in (-7, 0, 7):
        zone = timezone(timedelta(hours=hours))
        before = (stored - timedelta(minutes=1)).astimezone(zone).isoformat(" ")
        assert "1 shown" in reader.get("/messages", topic="zoned", begin=before).text
        assert "0 shown" in reader.get("/messages", topic="zoned", end=before).text
    # Without a zone it is in UTC, as the page shows it to a browser without scripts.
    bare = (stored - timedelta(minutes=1)).strftime("%Y-%m-%d %H:%M:%S")
    assert "1 shown" in reader.get("/messages", topic="zoned", begin=bare).text
    assert "0 shown" in reader.get("/messages", topic="zoned", end=bare).text


def test_properties_of_the_sender_stand_apart_from_those_of_the_system(
    producer: Producer, reader: Visitor
) -> None:
    sent = producer.send(
        Message("property-rows", b"x", keys="O-1", properties={"city": "Hangzhou"})
    )
    page = reader.get("/message", id=sent.offset_msg_id, topic="property-rows").text
    own, system = page.index("Set by its sender"), page.index("Set by clients and brokers")
    assert own < page.index("Hangzhou") < system < page.index("UNIQ_KEY", own)


def test_a_message_is_found_by_key_and_by_each_of_its_ids(
    admin: AdminClient, producer: Producer, reader: Visitor
) -> None:
    sent = producer.send(Message("found", b"here it is", keys=["O-1", "O-2"]))
    eventually(
        lambda: "here it is" in reader.get("/messages", topic="found", by="key", key="O-2").text
    )
    assert "No message" in reader.get("/messages", topic="found", by="key", key="O-3").text
    for id_, topic in (
        (sent.msg_id, "found"),
        (sent.offset_msg_id, "found"),
        (sent.offset_msg_id, ""),
    ):
        answer = reader.get("/messages", by="id", id=id_, topic=topic)
        assert answer.status == 303
        page = reader.send("GET", answer.headers["location"])
        assert "here it is" in page.text, (id_, topic)
        assert sent.msg_id in page.text
    by_place = reader.get(
        "/messages",
        by="offset",
        topic="found",
        broker=sent.queue.broker_name,
        queue=sent.queue.queue_id,
        offset=sent.queue_offset,
    )
    assert "here it is" in reader.send("GET", by_place.headers["location"]).text
    none = reader.get("/message", topic="found", id="0" * 32)
    assert none.status == 404
    assert "There is no such message" in none.text
    unknown = reader.get("/message", topic="no-such-topic", id="0" * 32)
    assert unknown.status == 404
    assert "the page Topics has all" in unknown.text
    assert "topics.create()" not in unknown.text
    assert "Not known" in reader.get("/message").text


def test_an_id_has_the_console_ask_no_stranger(reader: Visitor) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        stranger.settimeout(0.5)
        port = stranger.getsockname()[1]
        id_ = f"7F000001{port:08X}{0:016X}"
        for path in ("/message", "/message/body"):
            assert "this cluster does not have" in reader.get(path, id=id_).text
            assert "nobody-made-it" in reader.get(path, id=id_, topic="nobody-made-it").text
        with pytest.raises(TimeoutError):
            stranger.accept()


def test_a_body_is_shown_as_what_it_is_and_its_size_is_said(
    admin: AdminClient, producer: Producer, reader: Visitor
) -> None:
    def shown(body: bytes, **query: object) -> str:
        producer.send(Message("shown", body))
        return reader.get("/message", **place(reader, "shown"), **query).text

    assert '{ "n": 1.10 }' in shown(b'{"n":1.10}')
    assert "10 bytes , shown as a whole" in shown(b'{"n":1.10}')
    assert "00000000 00 01 fe ff" in shown(b"\x00\x01\xfe\xff")
    assert "It is no JSON" in shown(b"plain", **{"as": "json"})
    assert "中文" in shown("中文".encode("gb18030"), **{"as": "text", "charset": "gb18030"})
    assert "␛[31m" in shown(b"\x1b[31m red")
    assert "\\u202e" in shown("a\u202eb".encode())
    large = shown(b"x" * 100_000)
    assert "100,000 bytes" in large
    assert "only the first 65,536 are shown" in large
    assert "shown as a whole" in shown(b"x" * 100_000, more=1)
    rows = shown(bytes(range(256)) * 40, **{"as": "hex", "from": 4096})
    assert "shown are bytes 4,096 to 8,191" in rows
    assert "00001000" in rows


def test_a_body_is_downloaded_byte_for_byte(
    admin: AdminClient, producer: Producer, reader: Visitor
) -> None:
    body = bytes(range(256)) * 1000 + b"\r\n\x00"
    producer.send(Message("down", body))
    answer = reader.get("/message/body", **place(reader, "down"))
    assert hashlib.sha256(answer.body).digest() == hashlib.sha256(body).digest()
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"].startswith("attachment; ")
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert reader.get("/message/body", topic="down", id="0" * 32).status == 404


def test_a_hostile_message_is_text_and_nothing_else(producer: Producer, reader: Visitor) -> None:
    hostile = "<script>alert(1)</script>"
    message = Message("hostile-body", hostile.encode(), tags="<b>", keys=["<i>x</i>"])
    message.properties["<u>name</u>"] = "<img src=x onerror=alert(1)>"
    producer.send(message)
    for page in (
        reader.get("/messages", topic="hostile-body"),
        reader.get("/message", **place(reader, "hostile-body")),
        reader.get("/messages", topic=hostile, by="key", key=hostile, text=hostile),
        reader.get("/message", topic=hostile, id=hostile),
    ):
        assert "<script>alert" not in page.html
        assert "<img src=x" not in page.html
        assert "<u>name" not in page.html
        assert "<i>x" not in page.html


AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "string"}, {"name": "cents", "type": "long"}],
}
PROTO = """syntax = "proto3";
package shop.v1;
message Order { string id = 1; optional int64 cents = 2; repeated Line lines = 3; }
message Line { string sku = 1; }
"""


def avro(value: object) -> bytes:
    import io

    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(AVRO), value)
    return stream.getvalue()


def test_bodies_in_avro_are_shown_by_the_schema_of_their_topic(
    admin: AdminClient, producer: Producer, operator: Visitor, reader: Visitor
) -> None:
    value = {"id": "O-1", "cents": 1250}
    given = operator.act(
        "/schemas/give", name="orders", kind="avro", text=json.dumps(AVRO), topic="avro-orders"
    )
    assert "add schema orders: kept" in given.text
    for prefix in (b"", b"\x00\x00\x00\x00\x07", b"\xc3\x01" + bytes(8)):
        producer.send(Message("avro-orders", prefix + avro(value)))
        page = reader.get("/message", **place(reader, "avro-orders")).text
        assert '"id": "O-1", "cents": 1250' in page, prefix
    producer.send(Message("avro-orders", b"\xff\xff"))
    wrong = reader.get("/message", **place(reader, "avro-orders")).text
    assert "orders: " in wrong
    assert "00000000 ff ff" in wrong


def test_bodies_in_protobuf_are_shown_by_a_schema_that_is_chosen(
    admin: AdminClient, producer: Producer, operator: Visitor, reader: Visitor
) -> None:
    fields = {"name": "proto", "kind": "protobuf", "text": PROTO}
    assert "has several messages" in operator.act("/schemas/give", **fields).text
    given = operator.act("/schemas/give", **fields, message="shop.v1.Order")
    assert "kept shop.v1.Order" in given.text
    producer.send(Message("proto-orders", b"\x0a\x03O-1\x10\x96\x01\x1a\x03\x0a\x01x\x20\x05"))
    query = {**place(reader, "proto-orders"), "as": "schema", "schema": "proto"}
    page = reader.get("/message", **query).text
    assert '"id": "O-1", "cents": "150", "lines": [ { "sku": "x" } ]' in page
    assert "1 fields are not in the schema" in page
    broken = operator.act("/schemas/give", name="broken", kind="protobuf", text="message {")
    assert "line 1" in broken.text
    assert "message {</textarea>" in broken.html, "nobody has to type it again"
    imports = PROTO.replace("package", 'import "other.proto"; package')
    assert (
        "it imports other.proto"
        in operator.act("/schemas/give", **{**fields, "text": imports}).text
    )


def test_a_body_that_declares_a_list_without_end_ends_only_its_decoding(
    producer: Producer, operator: Visitor, reader: Visitor
) -> None:
    nulls = json.dumps({"type": "array", "items": "null"})
    operator.act("/schemas/give", name="nulls", kind="avro", text=nulls, topic="endless")
    producer.send(Message("endless", b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01\x00"))
    page = reader.get("/message", **place(reader, "endless"))
    assert page.status == 200
    assert "nulls: " in page.text  # too much time, or no answer in time
    assert "00000000 fe ff" in page.text
    assert reader.get("/healthz").status == 200


def test_a_schema_is_given_and_deleted_by_operators_only(
    operator: Visitor, reader: Visitor
) -> None:
    text = json.dumps(AVRO)
    assert reader.post("/schemas/give", name="mine", kind="avro", text=text).status == 403
    operator.act("/schemas/give", name="mine", kind="avro", text=text)
    assert "mine" in reader.get("/schemas").text
    assert '"cents"' in reader.get("/schemas", name="mine").text
    assert reader.post("/schemas/delete", name="mine", confirm="mine").status == 403
    assert operator.post("/schemas/delete", name="mine").status == 200
    assert "deleted" in operator.act("/schemas/delete", name="mine", confirm="mine").text
    assert "mine" not in [each["name"] for each in stored(operator)]


def stored(visitor: Visitor) -> list[dict[str, str]]:
    found: list[dict[str, str]] = json.loads((visitor.served.root / "schemas.json").read_text())
    return found


def test_a_message_is_sent_again_and_handed_to_a_member(
    cluster: Cluster, admin: AdminClient, producer: Producer, operator: Visitor, reader: Visitor
) -> None:
    got: list[bytes] = []

    def listen(messages: list[MessageExt]) -> ConsumeResult:
        got.extend(message.body for message in messages)
        return ConsumeResult.SUCCESS

    admin.topics.create("again")
    consumer = PushConsumer("again-group", listen, namesrv=cluster.namesrv)
    consumer.subscribe("again")
    with consumer:
        sent = producer.send(Message("again", b"once"))
        eventually(lambda: got == [b"once"])
        at = place(reader, "again")
        eventually(lambda: "consumed" in reader.get("/message", **at).text.partition("Outcome")[2])
        assert reader.post("/message/resend", **at, confirm=sent.msg_id).status == 403
        asked = operator.post("/message/resend", **at)
        assert "Every group of the topic gets it again" in asked.text
        # Nobody types an id: its end confirms it, and the heading has the whole of it.
        assert f"Send again {sent.msg_id}" in asked.text
        assert f"Type {sent.msg_id[-6:]} to confirm" in asked.text
        assert operator.post("/message/resend", **at, confirm=sent.msg_id[-5:]).status == 422
        done = operator.act("/message/resend", **at, confirm=f" {sent.msg_id[-6:]} ")
        assert "SEND_OK" in done.text
        shown = re.search(r'<a href="([^"]+)">Show it</a>', done.html)
        assert shown is not None
        assert "offset=" in shown[1]
        assert "once" in operator.get(shown[1].replace("&amp;", "&")).text
        eventually(lambda: got == [b"once", b"once"])
        members = reader.get("/message", **at, group="again-group")
        assert "Members of again-group" in members.text
        assert "Consume directly" not in members.text
        client = admin.groups.connections("again-group").clients[0].client_id
        fields = {**at, "group": "again-group", "client": client}
        done = operator.act("/message/consume", **fields, confirm=sent.msg_id)
        assert "CR_SUCCESS" in done.text
        assert got == [b"once"] * 3


def test_a_delayed_message_is_recalled(
    admin: AdminClient, producer: Producer, operator: Visitor
) -> None:
    admin.topics.create("recalled")
    sent = producer.send(Message("recalled", b"never", delay_ms=20_000))
    where = {"topic": "rmq_sys_wheel_timer", "id": sent.msg_id}
    eventually(lambda: "Recall …" in operator.get("/message", **where).text)
    page = operator.get("/message", **where)
    assert "It is due 20" in page.text
    assert "where no group gets it" in page.text
    query = link(page, "/message/body?").partition("?")[2]
    at = dict(part.split("=") for part in query.split("&"))
    assert "never delivered" in operator.post("/message/recall", **at).text
    # A copy without its time would stop a timer of Java's.
    assert "/message/resend" not in operator.get("/message", **at).html
    assert operator.post("/message/resend", **at).status == 409
    done = operator.act("/message/recall", **at, confirm=sent.msg_id)
    assert "will not deliver it" in done.text


@contextmanager
def following(visitor: Visitor, path: str) -> Iterator[http.client.HTTPResponse]:
    connection = http.client.HTTPConnection("127.0.0.1", visitor.served.port, timeout=WAIT_S)
    try:
        cookie = "; ".join(f"{k}={v}" for k, v in visitor.cookies.items())
        connection.request("GET", path, headers={"Cookie": cookie})
        yield connection.getresponse()
    finally:
        connection.close()


def test_new_messages_are_sent_to_who_follows(
    admin: AdminClient, producer: Producer, reader: Visitor
) -> None:
    producer.send(Message("followed", b"before"))
    page = reader.get("/messages", topic="followed", by="tail", tags="t")
    tail = re.search(r'data-tail="([^"]+)"', page.html)
    assert tail is not None
    with following(reader, unescape(tail[1])) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        producer.send(Message("followed", b"unwanted", tags="other"))
        producer.send(Message("followed", b"<b>wanted</b>", tags="t"))
        text = ""
        while "wanted" not in text:
            text += answer.readline().decode()
        assert "unwanted" not in text
        assert "&lt;b&gt;wanted" in text


@pytest.mark.browser
def test_rows_appear_while_somebody_looks(
    producer: Producer, browser: Browser, served: Served
) -> None:
    producer.send(Message("live-rows", b"first"))
    page = logged_in(browser, served, "reader", at="")
    page.goto("/messages?topic=live-rows&by=tail")
    expect(page.locator("tbody tr")).to_have_count(1)
    producer.send(Message("live-rows", b"<img src=x onerror=document.title='hit'>"))
    expect(page.locator("tbody tr")).to_have_count(2)
    expect(page.locator("tbody tr").first).to_contain_text("onerror")
    assert page.title() != "hit"
    page.click("[data-tail-pause]")
    producer.send(Message("live-rows", b"third"))
    page.wait_for_timeout(2500)
    expect(page.locator("tbody tr")).to_have_count(2)
    page.context.close()


def test_a_compressed_body_is_shown_as_its_producer_gave_it(
    cluster: Cluster, admin: AdminClient, reader: Visitor
) -> None:
    body = b"compress me " * 1000
    assert len(zlib.compress(body)) < len(body)
    with Producer("compresses", namesrv=cluster.namesrv) as producer:
        producer.send(Message("packed", body))
    page = reader.get("/message", **place(reader, "packed")).text
    assert "12,000 bytes" in page
    assert "compress me compress me" in page


def test_messages_of_the_brokers_that_answer_are_shown(tmp_path: Path) -> None:
    with Cluster(brokers=2) as cluster, AdminClient(cluster.namesrv) as admin:
        admin.topics.create("half-away")
        with Producer("half-away", namesrv=cluster.namesrv) as producer:
            eventually(
                lambda: len({queue.broker_name for queue in producer.queues("half-away")}) == 2
            )
            for queue in producer.queues("half-away"):
                body = f"at {queue.broker_name}".encode()
                producer.send(Message("half-away", body), queue=queue)
        with running_console(cluster.namesrv, tmp_path) as served:
            visitor = Visitor(served, "reader")
            assert "at broker-b" in visitor.get("/messages", topic="half-away").text
            cluster.call("stop_broker", 1)
            page = visitor.get("/messages", topic="half-away")
            assert page.status == 200
            assert "at broker-a" in page.text
            assert "at broker-b" not in page.text


def test_a_damaged_file_of_schemas_is_named(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "schemas.json").write_text('[{"name": 1')
    with (
        pytest.raises(ConfigError, match=r"schemas\.json does not hold schemas"),
        running_console(cluster.namesrv, tmp_path),
    ):
        pass
