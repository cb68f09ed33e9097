"""Pages of topics, and what they do to them."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.console.actors import Actors
from tests.console.running import Visitor, running_console
from tests.integration.raw_client import RawClient
from tests.waits import SEND_WAIT_MS, eventually

from cometmq import AdminClient, Message, MessageQueue, Producer
from cometmq.model.topic import TopicConfig
from cometmq.protocol.bodies.cluster import RegisterBrokerBody, TopicConfigSerializeWrapper
from cometmq.protocol.bodies.registration import body_crc, encode_register_body
from cometmq.protocol.codes import RequestCode
from cometmq.testing import Cluster

CLUSTER = "DefaultCluster"


def sent(cluster: Cluster, admin: AdminClient, topic: str, count: int) -> None:
    """Make a topic of two queues and send so many messages to it."""
    admin.topics.create(topic, read_queues=2, write_queues=2)
    with Producer("fills", namesrv=cluster.namesrv) as producer:
        for number in range(count):
            producer.send(Message(topic, b"%d" % number))


def audited(visitor: Visitor, target: str) -> list[tuple[str, str]]:
    """Return the actions on a target and their outcomes, as the audit log has them."""
    log = visitor.served.root / "audit.jsonl"
    written = [json.loads(line) for line in log.read_text().splitlines()]
    return [(entry["what"], entry["outcome"]) for entry in written if entry["target"] == target]


# The list


def test_the_list_counts_what_a_topic_holds(
    cluster: Cluster, admin: AdminClient, operator: Visitor
) -> None:
    sent(cluster, admin, "counted", 7)
    page = eventually(
        lambda: operator.get("/topics", q="counted"), lambda page: "counted 7 " in page.text
    )
    assert " 2 1 read and write" in page.text


def test_topics_are_listed_by_kind(admin: AdminClient, operator: Visitor) -> None:
    for name in ("kind-own", "%RETRY%kind-g", "%DLQ%kind-g"):
        admin.topics.create(name)
    admin.topics.create("kind-delay", attributes={"message.type": "DELAY"})

    def listed(kind: str) -> set[str]:
        text = operator.get("/topics", kind=kind, rows=500).text
        names = {
            *("kind-own", "%RETRY%kind-g", "%DLQ%kind-g", "kind-delay"),
            *("TBW102", "SCHEDULE_TOPIC_XXXX", CLUSTER),
        }
        return {name for name in names if f" {name} " in text}

    # What is made beside the console shows up within seconds.
    eventually(lambda: listed("normal"), {"kind-own", "kind-delay"}.__eq__)
    assert listed("retry") == {"%RETRY%kind-g"}
    assert listed("dead") == {"%DLQ%kind-g"}
    assert listed("delayed") == {"kind-delay", "SCHEDULE_TOPIC_XXXX"}
    assert listed("system") == {"TBW102", "SCHEDULE_TOPIC_XXXX", CLUSTER}
    assert len(listed("all")) == 7
    assert listed("no such kind") == listed("normal")


def test_a_long_list_has_pages(admin: AdminClient, operator: Visitor) -> None:
    for number in range(5):
        admin.topics.create(f"paged-{number}")
    page = eventually(
        lambda: operator.get("/topics", q="PAGED-", rows=2, page=3),
        lambda page: "5 to 5 of 5" in page.text,
    )
    assert "paged-4" in page.text
    assert "paged-3" not in page.text
    assert "5 to 5 of 5" in operator.get("/topics", q="paged-", rows=2, page=99).text
    assert "No topic of this kind matches" in operator.get("/topics", q="no-such").text


# One topic


def test_a_topic_shows_its_queues(cluster: Cluster, admin: AdminClient, reader: Visitor) -> None:
    topic = "shows-its-queues"  # of this test alone: the cluster is that of the session
    sent(cluster, admin, topic, 0)
    with Producer("fills", namesrv=cluster.namesrv, send_timeout_ms=SEND_WAIT_MS) as producer:
        for _ in range(3):
            producer.send(Message(topic, b"x"), queue=MessageQueue(topic, "broker-a", 1))
    text = eventually(
        lambda: reader.get("/topic", name=topic).text, lambda text: "Messages stored 3" in text
    )
    assert "broker-a 0 0 0 0 –" in text
    assert "broker-a 1 3 0 3 " in text
    messages = f"/messages?topic={topic}&amp;queue=broker-a%3A1"
    html = reader.get("/topic", name=topic).html
    assert f'<a href="{messages}">3</a>' in html
    assert "x" in reader.get(messages.replace("&amp;", "&")).text


def test_a_topic_shows_where_brokers_differ(tmp_path: Path) -> None:
    with Cluster(brokers=2) as cluster, AdminClient(cluster.namesrv) as admin:
        admin.topics.create("differs", read_queues=4, write_queues=4)
        admin.topics.update("differs", read_queues=6, broker="broker-b")
        admin.topics.create("only-a", broker="broker-a", attributes={"message.type": "FIFO"})
        with visiting(cluster, tmp_path) as visitor:
            page = visitor.get("/topic", name="differs", tab="brokers")
            assert "The brokers differ: Read queues." in page.text
            alone = visitor.get("/topic", name="only-a", tab="brokers")
            assert "do not have it: broker-b" in alone.text
            assert "message.type=FIFO" in alone.text
            assert "differ" not in alone.text
            # So what failed at a broker when the topic was made is completed.
            assert "/topics/new?name=only-a&amp;where=broker%3Abroker-b" in alone.html
            link = html.unescape(re.findall(r'href="(/topics/new\?[^"]+)"', alone.html)[-1])
            assert {"read_queues=8", "permission=6", "message_type=FIFO"} <= set(link.split("&"))
            assert "<option selected>FIFO</option>" in visitor.get(link).html
            made = visitor.act("/topics/new", name="only-a", where="broker:broker-b")
            assert "create topic only-a: created" in made.text
            again = visitor.act("/topics/new", name="only-a", where="broker:broker-b")
            assert "there is a topic of this name already" in again.text
            assert len(admin.topics.config("only-a")) == 2


def test_a_topic_that_nobody_has_is_said_to_be_missing(operator: Visitor, reader: Visitor) -> None:
    page = operator.get("/topic", name="nobody-has-it")
    assert page.status == 404
    assert "know no topic of this name" in page.text
    assert "/topics/new?name=nobody-has-it" in page.html
    assert "/topics/new" not in reader.get("/topic", name="nobody-has-it").html
    assert operator.get("/topic").status == 400


def test_a_topic_shows_its_groups_and_producers(
    cluster: Cluster, admin: AdminClient, operator: Visitor
) -> None:
    sent(cluster, admin, "at-work", 4)
    admin.groups.create("works")
    for queue_id in range(2):
        admin.offsets.commit("works", MessageQueue("at-work", "broker-a", queue_id), 0)
    text = operator.get("/topic", name="at-work", tab="groups").text
    assert "works 4 0 0 0 Reset" in text
    assert (
        "No group consumes this topic yet"
        in operator.get("/topic", name="TBW102", tab="groups").text
    )
    with Producer("makes", namesrv=cluster.namesrv) as producer:
        producer.send(Message("at-work", b"x"))
        eventually(lambda: "makes" in operator.get("/topic", name="at-work", tab="producers").text)


def test_the_send_page_does_not_claim_groups_that_do_not_subscribe(
    cluster: Cluster, admin: AdminClient, operator: Visitor
) -> None:
    """It said that every group with an offset gets the message."""
    sent(cluster, admin, "claimed", 1)
    admin.topics.create("elsewhere")
    admin.groups.create("claims-not")
    admin.offsets.commit("claims-not", MessageQueue("claimed", "broker-a", 0), 0)

    def shown() -> str:
        return operator.get("/topic/send", name="claimed").text

    assert "These groups have no member online; the next one decides: claims-not." in shown()
    with Actors(cluster.namesrv) as actors:
        actors.member("claims-not", "elsewhere")
        eventually(lambda: "do not subscribe to it now: claims-not." in shown())
        assert "These groups get it" not in shown()


def test_a_topic_shows_size_rate_retention_and_lag(
    cluster: Cluster, admin: AdminClient, operator: Visitor
) -> None:
    sent(cluster, admin, "measured", 4)
    admin.groups.create("measures")
    for queue_id in range(2):
        admin.offsets.commit("measures", MessageQueue("measured", "broker-a", queue_id), 0)

    def shown() -> str:
        return operator.get("/topic", name="measured").text

    assert "Waiting for groups 4" in shown()
    assert re.search(r"Kept for \d+ h", shown())
    eventually(lambda: re.search(r"Stored size, about \d[\d.]* B", shown()) is not None)


def test_lists_of_topics_and_groups_sort_by_their_headings(
    cluster: Cluster, admin: AdminClient, operator: Visitor
) -> None:
    sent(cluster, admin, "sort-a-few", 2)
    sent(cluster, admin, "sort-b-many", 8)
    # A list without groups has no headings; other tests must not have to make some.
    admin.groups.create("sort-group")

    def order(**query: str) -> list[str]:
        page = operator.get("/topics", q="sort-", **query).html
        return list(dict.fromkeys(re.findall(r">(sort-[ab]-\w+)</a>", page)))

    eventually(lambda: order(sort="messages", desc="1") == ["sort-b-many", "sort-a-few"])
    assert order(sort="messages", desc="0") == ["sort-a-few", "sort-b-many"]
    assert 'aria-sort="descending"' in operator.get("/topics", sort="messages", desc="1").html
    eventually(lambda: 'aria-sort="descending"' in operator.get("/groups", sort="lag").html)


# Making
# Making


def test_a_topic_is_made_as_the_form_says(admin: AdminClient, operator: Visitor) -> None:
    page = operator.act(
        "/topics/new",
        name="made-here",
        where=f"cluster:{CLUSTER}",
        read_queues=5,
        write_queues=3,
        permission=4,
        message_type="FIFO",
        order="true",
        attributes="reserve.time=60",
        why="for the test",
    )
    assert "create topic made-here: created" in page.text
    (config,) = admin.topics.config("made-here").values()
    assert (config.read_queue_nums, config.write_queue_nums, config.perm) == (5, 3, 4)
    assert config.order
    assert config.attributes == {"message.type": "FIFO", "reserve.time": "60"}
    assert audited(operator, "made-here") == [("create topic", "begun"), ("create topic", "done")]


def test_making_a_topic_that_exists_changes_nothing(admin: AdminClient, operator: Visitor) -> None:
    admin.topics.create("there-already", read_queues=3, write_queues=3)
    page = operator.act(
        "/topics/new", name="there-already", where="broker:broker-a", read_queues=9, write_queues=9
    )
    assert "there is a topic of this name already" in page.text
    assert 'value="there-already"' in page.html, "the form is filled in as it was"
    (config,) = admin.topics.config("there-already").values()
    assert config.read_queue_nums == 3


@pytest.mark.parametrize(
    "fields",
    [
        {"name": ""},
        {"where": "nowhere"},
        {"where": ""},
        {"where": "broker:127.0.0.1:1"},
        {"where": "cluster:OtherCluster"},
        {"read_queues": "0"},
        {"read_queues": "many"},
        {"write_queues": "65536"},
        {"permission": "8"},
        {"message_type": "ODD"},
        {"attributes": "no equals sign"},
        {"attributes": "a=1\na=2"},
    ],
    ids=str,
)
def test_a_form_that_cannot_be_is_refused(operator: Visitor, fields: dict[str, str]) -> None:
    answer = operator.post(
        "/topics/new", **{"name": "never-made", "where": f"cluster:{CLUSTER}", **fields}
    )
    assert answer.status == 400, answer.text
    assert "never-made" not in operator.get("/topics").text


def test_a_name_that_no_topic_may_have_is_told(operator: Visitor) -> None:
    page = operator.act("/topics/new", name="<script>", where=f"cluster:{CLUSTER}")
    assert "has characters outside" in page.text
    assert "<script>" not in page.html.replace('<script src="', "")


# Changing


def test_a_topic_is_changed_and_keeps_the_rest(admin: AdminClient, operator: Visitor) -> None:
    admin.topics.create(
        "to-change", read_queues=4, write_queues=4, attributes={"reserve.time": "5"}
    )
    page = operator.act(
        "/topic/change",
        name="to-change",
        was_read_queues=4,
        read_queues=8,
        was_write_queues=4,
        write_queues=4,
        was_permission=6,
        permission=6,
        removed="reserve.time",
    )
    assert "change topic to-change: changed" in page.text
    (config,) = admin.topics.config("to-change").values()
    assert (config.read_queue_nums, config.write_queue_nums, config.perm) == (8, 4, 6)
    assert not config.attributes


def test_a_change_of_nothing_is_refused(admin: AdminClient, operator: Visitor) -> None:
    admin.topics.create("unchanged")
    answer = operator.post(
        "/topic/change", name="unchanged", was_permission=6, permission=6, read_queues=""
    )
    assert answer.status == 400
    assert "nothing is changed" in answer.text


def test_a_broker_that_does_not_have_the_topic_is_not_asked(
    admin: AdminClient, operator: Visitor
) -> None:
    admin.topics.create("not-there")
    answer = operator.post("/topic/change", name="not-there", read_queues=3, broker="127.0.0.1:1")
    assert answer.status == 400
    assert "does not have the topic" in answer.text


def test_a_change_that_hides_messages_asks_first(
    cluster: Cluster, admin: AdminClient, operator: Visitor
) -> None:
    sent(cluster, admin, "shrinks", 0)
    with Producer("fills", namesrv=cluster.namesrv) as producer:
        for _ in range(6):
            producer.send(Message("shrinks", b"x"), queue=MessageQueue("shrinks", "broker-a", 1))
    asked = operator.post("/topic/change", name="shrinks", read_queues=1, permission=0)
    assert asked.status == 200
    for part in (
        "no longer read the queues from number 1 on. 6 messages lie there.",
        "The topic has more queues to write than to read",
        "refuse the messages of all producers",
        "Consumers get no more messages",
    ):
        assert part in asked.text
    (config,) = admin.topics.config("shrinks").values()
    assert config.read_queue_nums == 2
    operator.act("/topic/change", name="shrinks", read_queues=1, permission=0, confirm="shrinks")
    (config,) = admin.topics.config("shrinks").values()
    assert (config.read_queue_nums, config.perm) == (1, 0)
    brokers = operator.get("/topic", name="shrinks", tab="brokers").text
    assert "The topic has more queues to write than to read at broker-a" in brokers


def test_the_form_to_change_has_the_values_of_all_brokers(
    admin: AdminClient, operator: Visitor
) -> None:
    admin.topics.create("filled-in", read_queues=7, write_queues=5)
    page = operator.get("/topic/change", name="filled-in").html
    assert 'name="read_queues" type="number" min="1" max="65535" value="7"' in page
    assert 'name="was_write_queues" value="5"' in page


# Sending


def test_a_message_is_sent_as_the_form_says(admin: AdminClient, operator: Visitor) -> None:
    admin.topics.create("gets-one", read_queues=2, write_queues=2)
    page = operator.act(
        "/topic/send",
        name="gets-one",
        body="first\r\nzweite Zeile: ö",
        tag="paid",
        keys="O-1 O-2",
        properties="colour=red\nshop = 7",
        broker="broker-a",
        queue="1",
    )
    assert "send message gets-one: sent" in page.text
    assert "queue 1 of broker-a, offset 0, SEND_OK" in page.text
    assert "/message?id=" in page.html
    message = admin.messages.by_offset(MessageQueue("gets-one", "broker-a", 1), 0)
    assert message is not None
    assert message.body.decode() == "first\nzweite Zeile: ö"
    assert (message.tags, message.keys) == ("paid", ("O-1", "O-2"))
    assert (message.properties["colour"], message.properties["shop"]) == ("red", "7")
    assert 'value="paid"' in page.html, "the next message is like this one"


def test_several_messages_are_sent(admin: AdminClient, operator: Visitor) -> None:
    admin.topics.create("gets-many")
    page = operator.act("/topic/send", name="gets-many", body="x", count=25)
    assert "sent 25 messages" in page.text
    assert page.text.count("SEND_OK") == 5
    assert "… and 20 more" in page.text
    assert admin.topics.stats("gets-many").messages == 25


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"body": ""}, "no body"),
        ({"queue": "1"}, "give both"),
        ({"count": "101"}, "from 1 to 100"),
        ({"properties": "odd"}, "not name=value"),
        ({"delay_level": "3", "delay_seconds": "5"}, "delay"),
        ({"name": ""}, "lacks the name"),
    ],
    ids=str,
)
def test_a_message_that_cannot_be_is_refused(
    operator: Visitor, fields: dict[str, str], reason: str
) -> None:
    answer = operator.post("/topic/send", **{"name": "TBW102", "body": "x", **fields})
    assert answer.status == 400, answer.text
    assert reason in answer.text


def test_a_message_to_a_queue_or_topic_that_is_not_there_fails_and_the_form_stays(
    admin: AdminClient, operator: Visitor
) -> None:
    admin.topics.create("has-two", read_queues=2, write_queues=2)
    page = operator.act(
        "/topic/send", name="has-two", body="kept", broker="broker-a", queue="2", tag="t"
    )
    assert "takes no messages in queue 2" in page.text
    assert ">\nkept</textarea>" in page.html
    long = operator.post(
        "/topic/send",
        name="has-none",
        body="x" * 100_000,
        tag="t" * 30_000,
        properties="a=" + "b" * 9999,
    )
    assert long.status == 303
    assert len(long.headers["location"]) < 8000
    missing = operator.act("/topic/send", name="has-none", body="x")
    assert "knows no route of topic has-none" in missing.text


@pytest.mark.parametrize(
    "body", [b"\xff\xfe", b"a\r\nb", b"a\0b", b"x" * 65_537], ids=["bytes", "ends", "zero", "long"]
)
def test_what_a_form_would_change_is_not_copied_into_it(
    cluster: Cluster, operator: Visitor, body: bytes
) -> None:
    properties = {"fits": "a = b", "has lines": "a\nb", "blank": " x"}
    with Producer("copies", namesrv=cluster.namesrv, send_timeout_ms=SEND_WAIT_MS) as producer:
        stored = producer.send(Message("copied-not", body, properties=properties))
    place = {
        "like_topic": "copied-not",
        "like_queue": f"{stored.queue.broker_name}:{stored.queue.queue_id}",
        "like_offset": stored.queue_offset,
    }
    page = operator.get("/topic/send", name="copied-not", **place)
    assert "Its body is not copied" in page.text
    assert "properties are not copied, because no line of a form holds them: blank, has lines" in (
        page.text
    )
    assert "fits=a = b</textarea>" in page.html
    assert stored.msg_id in page.text
    gone = operator.get("/topic/send", name="copied-not", **{**place, "like_offset": 10**9})
    assert gone.status == 404
    odd = operator.get("/topic/send", name="copied-not", **{**place, "like_queue": "broker-a"})
    assert odd.status == 400


# Deleting


def test_a_topic_is_deleted_after_its_name_is_typed(admin: AdminClient, operator: Visitor) -> None:
    admin.topics.create("to-delete")
    asked = operator.post("/topics/delete", name="to-delete")
    assert asked.status == 200
    assert "are deleted from every broker for good" in asked.text
    wrong = operator.post("/topics/delete", name="to-delete", confirm="to delete")
    assert wrong.status == 422
    # A page has fifty topics, and its names are kept for 5 s.
    eventually(lambda: "to-delete" in operator.get("/topics", q="to-delete").text)
    done = operator.act("/topics/delete", name="to-delete", confirm="to-delete", why="a test")
    assert "delete topic to-delete: deleted" in done.text
    assert operator.get("/topics", q="to-delete").text.count("to-delete") == 0
    log = operator.served.root / "audit.jsonl"
    written = [json.loads(line) for line in log.read_text().splitlines()]
    ours = [(entry["outcome"], entry["why"]) for entry in written if entry["target"] == "to-delete"]
    assert ours == [("begun", "a test"), ("done", "a test")]


def test_the_preview_of_a_deletion_says_what_goes(
    cluster: Cluster, admin: AdminClient, operator: Visitor
) -> None:
    sent(cluster, admin, "held-dear", 3)
    admin.groups.create("needs-it")
    admin.offsets.commit("needs-it", MessageQueue("held-dear", "broker-a", 0), 0)
    asked = operator.post("/topics/delete", name="held-dear").text
    assert "It holds 3 messages." in asked
    assert "These groups consume it: needs-it." in asked
    assert "dead letters of group g are lost" in operator.post("/topics/delete", name="%DLQ%g").text
    assert "RocketMQ itself uses" in operator.post("/topics/delete", name="TBW102").text


def test_a_deletion_of_what_is_not_there_fails(operator: Visitor) -> None:
    page = operator.act("/topics/delete", name="never-was", confirm="never-was")
    assert "knows no route of topic never-was" in page.text


# Readers


@pytest.mark.parametrize("path", ["/topics/new", "/topic/change", "/topic/send", "/topics/delete"])
def test_readers_look_and_change_nothing(admin: AdminClient, reader: Visitor, path: str) -> None:
    admin.topics.create("looked-at")
    answer = reader.post(path, name="looked-at", where=f"cluster:{CLUSTER}", confirm="looked-at")
    assert answer.status == 403
    page = reader.get("/topic", name="looked-at")
    assert page.status == 200
    assert path not in page.html
    if path != "/topics/delete":
        assert "your account is a reader" in reader.get(path, name="looked-at").text


# Broken clusters


@contextmanager
def dead_broker(cluster: Cluster, topic: str) -> Iterator[None]:
    """Have the name server know a broker where nobody listens, with a topic of two queues."""
    # A single one would count as a change of a broker that the name server knows.
    table = {
        name: TopicConfig(name, read_queue_nums=2, write_queue_nums=2)
        for name in (topic, f"{topic}-too")
    }
    body = encode_register_body(
        RegisterBrokerBody([], TopicConfigSerializeWrapper(topic_config_table=table)),
        compressed=False,
    )
    header = {
        "brokerName": "broker-dead",
        "brokerAddr": "127.0.0.1:1",
        "clusterName": CLUSTER,
        "haServerAddr": "127.0.0.1:1",
        "brokerId": "0",
        "compressed": "false",
        "bodyCrc32": str(body_crc(body)),
    }
    with RawClient(cluster.namesrv) as broker:
        assert broker.ask(RequestCode.REGISTER_BROKER, header, body).code == 0
        yield


@contextmanager
def visiting(cluster: Cluster, root: Path) -> Iterator[Visitor]:
    with running_console(cluster.namesrv, root) as served:
        yield Visitor(served)


def test_what_is_known_is_shown_while_a_broker_is_away(tmp_path: Path) -> None:
    with Cluster() as cluster, AdminClient(cluster.namesrv) as admin:
        admin.topics.create("half", read_queues=2, write_queues=2)
        admin.messages.send(Message("half", b"x"), queue=MessageQueue("half", "broker-a", 0))
        with visiting(cluster, tmp_path) as visitor, dead_broker(cluster, "half"):
            page = visitor.get("/topic", name="half").text
            assert "Not known: its queues at some brokers." in page
            assert "Messages stored 1" in page
            assert "broker-a 0 1 0 1 " in page
            brokers = visitor.get("/topic", name="half", tab="brokers").text
            assert "Not known: the configuration at broker-dead." in brokers
            assert "broker-dead" in visitor.get("/topic", name="half", tab="producers").text
            for path in ("/topics", "/topics/new", "/producers"):
                assert visitor.get(path).status == 200
            for path in ("/topic/change", "/topic/send"):
                assert visitor.get(path, name="half").status == 200
            eventually(lambda: "half in part 1 " in visitor.get("/topics").text)
            failed = visitor.act("/topics/delete", name="half", confirm="half")
            assert "deleted in part" in failed.text
            assert "127.0.0.1:1: " in failed.text


def test_pages_say_so_while_the_name_server_is_away(tmp_path: Path) -> None:
    with Cluster() as cluster, visiting(cluster, tmp_path) as visitor:
        cluster.call("stop_name_server")
        for path, name in (
            ("/topics", None),
            ("/topics/new", None),
            ("/producers", None),
            ("/topic", "t"),
            ("/topic/change", "t"),
            ("/topic/send", "t"),
        ):
            page = visitor.get(path, name=name)
            assert page.status in (200, 502), path
            assert "could not be asked" in page.text, path
