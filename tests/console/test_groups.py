"""Pages of consumer groups, and what they do to them."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.console.actors import Actors
from tests.console.running import Visitor, running_console
from tests.integration.server_processes import server_process
from tests.waits import eventually

from cometmq import (
    AdminClient,
    ConsumeFromWhere,
    ConsumeResult,
    Message,
    MessageExt,
    MessageModel,
    MessageQueue,
    Producer,
    PushConsumer,
    SimpleConsumer,
)
from cometmq.admin.groups.room import Groups
from cometmq.errors import RemoteError
from cometmq.model.group import SubscriptionGroupConfig
from cometmq.testing import Cluster

BROKER = "broker-a"


def fill(cluster: Cluster, admin: AdminClient, topic: str, count: int, queues: int = 2) -> None:
    """Make a topic with so many messages in each of its queues."""
    admin.topics.create(topic, read_queues=queues, write_queues=queues)
    with Producer("fills", namesrv=cluster.namesrv) as producer:
        for number in range(count):
            for queue_id in range(queues):
                message = Message(topic, b"%d" % number, tags="paid")
                producer.send(message, queue=MessageQueue(topic, BROKER, queue_id))


def group_at(admin: AdminClient, group: str, topic: str, offset: int, queues: int = 2) -> None:
    """Make a group that has consumed each queue up to an offset."""
    admin.groups.create(group)
    for queue_id in range(queues):
        admin.offsets.commit(group, MessageQueue(topic, BROKER, queue_id), offset)


def offsets(admin: AdminClient, group: str, topic: str) -> list[int | None]:
    return [at.committed_offset for at in admin.offsets.of_topic(topic, group)]


@contextmanager
def consuming(
    cluster: Cluster, group: str, topic: str, expression: str = "*", **options: Any
) -> Iterator[list[MessageExt]]:
    """Run a member of a group; yield the list of what it consumes."""
    heard: list[MessageExt] = []

    def listen(messages: list[MessageExt]) -> ConsumeResult:
        heard.extend(messages)
        return ConsumeResult.SUCCESS

    options = {"consume_from": ConsumeFromWhere.FIRST_OFFSET, **options}
    consumer = PushConsumer(group, listen, namesrv=cluster.namesrv, **options)
    consumer.subscribe(topic, expression)
    with consumer:
        yield heard


def test_the_list_shows_what_waits_and_the_worst_group_first(
    cluster: Cluster, admin: AdminClient, tmp_path: Path
) -> None:
    fill(cluster, admin, "list-topic", 6)
    group_at(admin, "list-a-small", "list-topic", 5)
    group_at(admin, "list-b-large", "list-topic", 1)
    # Its watch looks at all groups when it starts, and then again after half a minute.
    with running_console(cluster.namesrv, tmp_path) as served:
        operator = Visitor(served)
        by_name = operator.get("/groups", q="list-").text
        assert by_name.index("list-a-small") < by_name.index("list-b-large")
        assert re.search(r"list-a-small offline 2 \d", by_name), by_name
        assert re.search(r"list-b-large offline 10 \d", by_name), by_name
        by_lag = eventually(
            lambda: operator.get("/groups", q="list-", sort="lag").text,
            lambda text: "Order as of" in text,
        )
        assert by_lag.index("list-b-large") < by_lag.index("list-a-small")
        assert "list-a-small" not in operator.get("/groups", q="list-b").text
        assert "CID_RMQ_SYS_TRANS" not in by_name
        assert "CID_RMQ_SYS_TRANS" in operator.get("/groups", kind="system").text


def test_long_lists_are_cut_at_the_server(admin: AdminClient, operator: Visitor) -> None:
    admin.groups.create_many(
        [SubscriptionGroupConfig(group_name=f"many-{number:03}") for number in range(120)]
    )
    first = eventually(
        lambda: operator.get("/groups", q="many-").text, lambda text: "1 to 50 of 120" in text
    )
    assert "many-050" not in first
    last = operator.get("/groups", q="many-", page=3).text
    assert "101 to 120 of 120" in last
    assert "many-119" in last


def test_a_group_shows_its_queues_and_which_member_has_them(
    cluster: Cluster, admin: AdminClient, operator: Visitor
) -> None:
    fill(cluster, admin, "shown-topic", 3)
    with consuming(cluster, "shown-group", "shown-topic") as heard:
        eventually(lambda: len(heard) == 6)
        eventually(
            lambda: (
                operator.get("/group", name="shown-group").text.count("shown-topic broker-a") == 2
            )
        )
        page = operator.get("/group", name="shown-group")
        client = admin.groups.connections("shown-group").clients[0].client_id
        assert page.html.replace("<wbr>", "").count(f">{client}</a>") >= 2
        assert "push, clustering" in page.text
        members = operator.get("/group", name="shown-group", view="members").text
        assert client in members
        assert "PYTHON" in members.upper()
        one = operator.get("/member", group="shown-group", client=client)
        assert "shown-topic broker-a 0" in one.text
        assert "Ask for the stacks" in one.text
        with_stacks = operator.get("/member", group="shown-group", client=client, stacks=1)
        assert "<pre" in with_stacks.html
        assert "data-live>" not in with_stacks.html
    gone = operator.get("/member", group="shown-group", client="nobody@1")
    assert gone.status == 404
    assert "No broker knows this member now" in gone.text


def test_viewers_of_a_members_stacks_share_one_answer(
    cluster: Cluster, admin: AdminClient, operator: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member stops all of its threads to read their stacks; each viewer had it do so."""
    admin.topics.create("stacks-topic")
    asked: list[bool] = []
    ask = Groups.running_info

    async def counted(self: Groups, group: str, client: str, *, stacks: bool = False) -> Any:
        asked.append(stacks)
        return await ask(self, group, client, stacks=stacks)

    with consuming(cluster, "stacks-group", "stacks-topic"):
        online = eventually(lambda: admin.groups.connections("stacks-group").clients)
        monkeypatch.setattr(Groups, "running_info", counted)
        with ThreadPoolExecutor(8) as viewers:
            pages = list(
                viewers.map(
                    lambda _: operator.get(
                        "/member", group="stacks-group", client=online[0].client_id, stacks=1
                    ),
                    range(8),
                )
            )
    assert all("<pre" in page.html for page in pages)
    assert asked.count(True) == 1


def test_a_group_that_nobody_knows_says_what_to_do(operator: Visitor, reader: Visitor) -> None:
    answer = operator.get("/group", name="never-made")
    assert answer.status == 404
    assert "No broker knows this group" in answer.text
    assert "Create this group" in answer.text
    assert "Create this group" not in reader.get("/group", name="never-made").text


def test_messages_that_wait_without_a_member_are_said_first(
    cluster: Cluster, admin: AdminClient, operator: Visitor
) -> None:
    fill(cluster, admin, "alone-topic", 2)
    group_at(admin, "alone", "alone-topic", 0)
    assert "Messages wait and no member is online" in operator.get("/group", name="alone").text


def test_a_reset_says_what_comes_again_and_does_what_it_said(
    cluster: Cluster, admin: AdminClient, operator: Visitor
) -> None:
    fill(cluster, admin, "reset-topic", 5)
    group_at(admin, "reset-group", "reset-topic", 4)
    fields = {"name": "reset-group", "topic": "reset-topic", "time": "1h"}
    asked = operator.post("/groups/reset", **fields)
    assert asked.status == 200
    assert "8 messages are delivered again" in asked.text
    assert "broker-a 0: from 4 to 0, 4 again" in asked.text
    # "1h" is pinned to the time that was shown.
    pinned = re.search(r'name="time" value="(\d{13})"', asked.html)
    assert pinned is not None
    assert offsets(admin, "reset-group", "reset-topic") == [4, 4]
    fields["time"] = pinned[1]
    done = operator.act("/groups/reset", **fields, confirm="reset-group", why="a bug is mended")
    assert "2 queues of topic reset-topic go on at these offsets" in done.text
    assert "broker-a 0: 0" in done.text
    assert offsets(admin, "reset-group", "reset-topic") == [0, 0]
    log = (operator.served.root / "audit.jsonl").read_text().splitlines()
    [begun, ended] = [json.loads(line) for line in log if '"target": "reset-group"' in line]
    assert begun["details"] == {
        "topic": "reset-topic",
        "time_ms": int(pinned[1]),
        "skipped": 0,
        "repeated": 8,
        "queues_without_offset": 0,
    }
    assert (ended["outcome"], ended["why"]) == ("done", "a bug is mended")


def test_a_reset_to_the_oldest_message_says_so(
    cluster: Cluster, admin: AdminClient, operator: Visitor
) -> None:
    fill(cluster, admin, "oldest-topic", 2)
    group_at(admin, "oldest-group", "oldest-topic", 2)
    fields = {"name": "oldest-group", "topic": "oldest-topic", "time": "0"}
    asked = operator.post("/groups/reset", **fields)
    assert "with the oldest message that is stored." in asked.text
    assert "4 messages are delivered again" in asked.text


def test_skipping_says_how_many_messages_the_group_never_gets(
    cluster: Cluster, admin: AdminClient, operator: Visitor
) -> None:
    fill(cluster, admin, "skip-topic", 5)
    group_at(admin, "skip-group", "skip-topic", 2)
    fields = {"name": "skip-group", "topic": "skip-topic"}
    asked = operator.post("/groups/skip", **fields)
    assert "6 messages are skipped: the group never gets them" in asked.text
    assert "Messages that are sent until you confirm are skipped, too" in asked.text
    operator.act("/groups/skip", **fields, confirm="skip-group")
    assert offsets(admin, "skip-group", "skip-topic") == [5, 5]
    assert "No message is skipped or repeated" in operator.post("/groups/skip", **fields).text


def test_one_queue_is_set_to_an_offset_that_it_has(
    cluster: Cluster, admin: AdminClient, operator: Visitor
) -> None:
    fill(cluster, admin, "queue-topic", 5)
    group_at(admin, "queue-group", "queue-topic", 1)
    fields = {"name": "queue-group", "topic": "queue-topic", "queue": "broker-a:1"}
    outside = operator.post("/groups/reset-queue", **fields, offset=6)
    assert outside.status == 400
    assert "the queue has the offsets 0 to 5" in outside.text
    assert operator.post("/groups/reset-queue", **fields, offset="-1").status == 400
    other = {**fields, "queue": "broker-a:9"}
    assert operator.post("/groups/reset-queue", **other, offset=1).status == 404
    asked = operator.post("/groups/reset-queue", **fields, offset=3)
    assert "2 messages are skipped" in asked.text
    operator.act("/groups/reset-queue", **fields, offset=3, confirm="queue-group")
    assert offsets(admin, "queue-group", "queue-topic") == [1, 3]


def test_a_group_takes_the_place_of_another(
    cluster: Cluster, admin: AdminClient, operator: Visitor
) -> None:
    fill(cluster, admin, "clone-topic", 5)
    group_at(admin, "clone-from", "clone-topic", 3)
    group_at(admin, "clone-to", "clone-topic", 0)
    fields = {"name": "clone-to", "topic": "clone-topic", "source": "clone-from"}
    assert "6 messages are skipped" in operator.post("/groups/clone", **fields).text
    operator.act("/groups/clone", **fields, confirm="clone-to")
    assert offsets(admin, "clone-to", "clone-topic") == [3, 3]
    nothing = operator.post("/groups/clone", **{**fields, "source": "clone-nobody"})
    assert nothing.status == 404
    assert "has the group clone-nobody" in nothing.text


def test_a_paused_group_gets_nothing_until_it_is_resumed(
    cluster: Cluster, admin: AdminClient, operator: Visitor
) -> None:
    fill(cluster, admin, "pause-topic", 1)
    with consuming(cluster, "pause-group", "pause-topic") as heard:
        eventually(lambda: len(heard) == 2)
        asked = operator.post("/groups/pause", name="pause-group")
        assert "to the 1 members of this group that are online" in asked.text
        operator.act("/groups/pause", name="pause-group", confirm="pause-group")
        page = operator.get("/group", name="pause-group").text
        assert "This group is paused" in page
        assert re.search(r"pause-group paused", operator.get("/groups", q="pause-group").text)
        [config] = admin.groups.config("pause-group").values()
        assert not config.consume_enable
        resumed = operator.act("/groups/resume", name="pause-group")
        assert "resumed at 1 brokers" in resumed.text
        fill(cluster, admin, "pause-topic", 1)
        eventually(lambda: len(heard) == 4)


def test_a_member_that_paused_some_queues_is_marked(cluster: Cluster, operator: Visitor) -> None:
    with Actors(cluster.namesrv) as actors:
        member = actors.member("resting-group", "resting-topic")
        actors.producer("resting-shop").send(Message("resting-topic", b"x"))

        def queues() -> list[MessageQueue]:
            assigned = member.client.assigned_queues()
            return [queue for queue in assigned if queue.topic == "resting-topic"]

        queue = eventually(queues)[0]
        member.client.pause([queue])
        marked = re.compile(rf'title="{re.escape(str(queue))}">paused in part<')
        eventually(
            lambda: operator.get("/group", name="resting-group", view="members").html, marked.search
        )
        member.client.pause()
        eventually(
            lambda: operator.get("/group", name="resting-group", view="members").html,
            lambda html: ">paused<" in html and not marked.search(html),
        )


def test_a_group_is_paused_in_one_topic(
    cluster: Cluster, admin: AdminClient, operator: Visitor
) -> None:
    fill(cluster, admin, "part-topic", 1)
    group_at(admin, "part-group", "part-topic", 0)
    fields = {"name": "part-group", "topic": "part-topic"}
    asked = operator.post("/groups/readable", **fields, readable="")
    assert "until you resume it; other topics go on" in asked.text
    done = operator.act("/groups/readable", **fields, readable="", confirm="part-group")
    assert "This group may not read this topic" in done.text
    assert set(admin.groups.may_read("part-group", "part-topic").values()) == {False}
    operator.act("/groups/readable", **fields, readable="1")
    assert set(admin.groups.may_read("part-group", "part-topic").values()) == {True}


def test_a_group_is_made_changed_and_deleted(admin: AdminClient, operator: Visitor) -> None:
    made = operator.act("/groups/create", name="made", retry_max_times=5, consume_enable="0\n1")
    assert "create group made: created at" in made.text
    [config] = admin.groups.config("made").values()
    assert (config.retry_max_times, config.consume_enable) == (5, True)
    again = operator.post("/groups/create", name="made")
    assert again.status == 409
    assert "there is a group made already" in again.text
    # Somebody else changes another setting while the form is open.
    admin.groups.update("made", retry_queue_nums=3)
    fields = {"retry_max_times": 7, "was_retry_max_times": 5}
    fields |= {"retry_queue_nums": 1, "was_retry_queue_nums": 1}
    changed = operator.act("/groups/change", name="made", **fields)
    assert "1 settings changed" in changed.text
    assert "retry_max_times 5 → 7" in changed.text
    [config] = admin.groups.config("made").values()
    assert (config.retry_max_times, config.retry_queue_nums) == (7, 3)
    shown = operator.get("/group", name="made", view="configuration").text
    assert "retryMaxTimes changed 7 16" in shown
    asked = operator.post("/groups/delete", name="made", clean_offsets="1")
    assert "a new group of this name begins without them" in asked.text
    gone = operator.act("/groups/delete", name="made", clean_offsets="1", confirm="made")
    assert "delete group made: deleted at" in gone.text
    assert "made" not in admin.groups.names()


def test_members_that_select_differently_are_shown_with_what_they_select(
    cluster: Cluster, admin: AdminClient, operator: Visitor
) -> None:
    fill(cluster, admin, "conflict-topic", 1)
    with (
        consuming(cluster, "conflict", "conflict-topic", "paid", instance_name="one"),
        consuming(cluster, "conflict", "conflict-topic", "sent", instance_name="two"),
    ):
        eventually(lambda: len(admin.groups.connections("conflict").clients) == 2)
        eventually(
            lambda: (
                "Members select topic conflict-topic differently"
                in operator.get("/group", name="conflict", view="members").text
            )
        )
        page = operator.get("/group", name="conflict").text
        assert re.search(r"paid : \S+one", page), page
        assert re.search(r"sent : \S+two", page), page


def test_a_broadcasting_group_says_that_its_members_keep_their_offsets(
    cluster: Cluster, admin: AdminClient, operator: Visitor, tmp_path: Path
) -> None:
    fill(cluster, admin, "all-topic", 1)
    options: dict[str, Any] = {
        "message_model": MessageModel.BROADCASTING,
        "local_offset_dir": tmp_path,
    }
    with consuming(cluster, "all-group", "all-topic", **options) as at:
        eventually(lambda: len(at) == 2)
        assert "Its members broadcast" in operator.get("/group", name="all-group").text
        asked = operator.post("/groups/skip", name="all-group", topic="all-topic")
        assert "this does not move them" in asked.text


def test_pages_of_topics_and_of_groups_do_not_take_each_others_answers(
    cluster: Cluster, admin: AdminClient, operator: Visitor
) -> None:
    fill(cluster, admin, "shared-topic", 1)
    group_at(admin, "shared-group", "shared-topic", 0)
    for _ in range(2):
        assert operator.get("/group", name="shared-group").status == 200
        assert operator.get("/topic", name="shared-topic", tab="groups").status == 200


@pytest.mark.parametrize(
    ("path", "fields", "said"),
    [
        ("/groups/create", {"name": "a b"}, "characters outside"),
        ("/groups/create", {"name": "<script>"}, "characters outside"),
        ("/groups/create", {"name": "fits", "retry_max_times": "many"}, "give a whole number"),
        ("/groups/create", {"name": "fits", "retry_max_times": "9" * 18}, "do not fit"),
        ("/groups/create", {"name": "fits", "retry_max_times": "9" * 5000}, "whole number"),
        ("/groups/reset", {"name": "g", "topic": "t", "time": "soon"}, "is no time"),
        ("/groups/reset", {"name": "g", "topic": "", "time": "1h"}, "topic name is blank"),
        ("/groups/reset-queue", {"name": "g", "topic": "t", "queue": "x"}, "name the queue"),
        ("/groups/pause", {"name": "nobody-has-it"}, "no broker that answers has the group"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_a_reason(
    operator: Visitor, path: str, fields: dict[str, str], said: str
) -> None:
    answer = operator.post(path, **fields)
    assert answer.status in (400, 404)
    assert said in answer.text
    assert "<script>" not in answer.html


def test_a_reader_sees_everything_and_no_form(
    cluster: Cluster, admin: AdminClient, reader: Visitor
) -> None:
    fill(cluster, admin, "read-topic", 1)
    group_at(admin, "read-group", "read-topic", 0)
    for view in ("progress", "members", "offsets", "configuration"):
        page = reader.get("/group", name="read-group", view=view)
        assert page.status == 200
        assert 'action="/groups/' not in page.html
    assert reader.post("/groups/delete", name="read-group").status == 403


def test_hostile_names_are_shown_as_text(operator: Visitor) -> None:
    hostile = '"><script>alert(1)</script>'
    for path, name in (("/group", "name"), ("/groups", "q"), ("/member", "client")):
        page = operator.get(path, **{name: hostile})
        assert "<script>alert" not in page.html
        assert page.status < 500 or path == "/member"


def test_a_group_is_made_at_the_other_brokers_when_one_of_them_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first refusal kept it from the brokers behind, and nobody learned on which brokers it was
    made.
    """
    with Cluster(brokers=3) as cluster, AdminClient(cluster.namesrv) as admin:
        having, refusing, other = admin.brokers.addresses()
        admin.groups.create("third", broker=having.address, retry_max_times=3)
        put = Groups._put

        async def refuse(self: Groups, address: str, config: SubscriptionGroupConfig) -> None:
            if address == refusing.address:
                raise RemoteError("its disk is full")
            await put(self, address, config)

        with running_console(cluster.namesrv, tmp_path / "console") as served:
            operator = Visitor(served)
            wanted = {"name": "third", "like": having.address}
            with monkeypatch.context() as patched:
                patched.setattr(Groups, "_put", refuse)
                made = operator.act("/groups/complete", **wanted)
            assert "created at 1 brokers; repeat it for the others" in made.text
            assert f"failed at 1 of 2 servers: {refusing.address}: its disk is full" in made.text
            assert f"{other.broker_name} ({other.address})" in made.text
            assert (
                json.loads((served.root / "audit.jsonl").read_text().splitlines()[-1])["outcome"]
                == "failed"
            )
            assert set(admin.groups.config("third")) == {having.address, other.address}
            assert "created at 1 brokers" in operator.act("/groups/complete", **wanted).text
            assert {c.retry_max_times for c in admin.groups.config("third").values()} == {3}
            assert len(admin.groups.config("third")) == 3


def test_a_group_is_shown_as_far_as_brokers_answer(tmp_path: Path) -> None:
    with Cluster() as cluster, AdminClient(cluster.namesrv) as admin, ExitStack() as stack:
        settings = {"brokerName": "broker-b", "namesrvAddr": cluster.namesrv}
        hung = stack.enter_context(server_process("broker", tmp_path, settings=settings))
        hung.wait_until_served()
        eventually(lambda: len(admin.brokers.addresses()) == 2)
        admin.topics.create("half-topic", read_queues=1, write_queues=1)
        admin.groups.create("half-group")
        for broker in (BROKER, "broker-b"):
            admin.offsets.commit("half-group", MessageQueue("half-topic", broker, 0), 0)
        with running_console(cluster.namesrv, tmp_path / "console") as served:
            operator = Visitor(served)
            whole = operator.get("/group", name="half-group").text
            assert "half-topic broker-b 0" in whole
            admin.groups.create("one-group", broker=BROKER, retry_max_times=3)
            page = operator.get("/group", name="one-group", view="configuration")
            assert "These brokers of its clusters do not have it: broker-b" in page.text
            [like] = set(re.findall(r'name="like" value="([^"]+)"', page.html))
            made = operator.act("/groups/complete", name="one-group", like=like)
            assert "created at 1 brokers" in made.text
            at = admin.groups.config("one-group")
            assert [config.retry_max_times for config in at.values()] == [3, 3]
            nothing = operator.post("/groups/complete", name="one-group", like=like)
            assert nothing.status == 409
            hung.process.send_signal(signal.SIGSTOP)
            # Before what the broker processes at its end, which it could not do otherwise.
            stack.callback(hung.process.send_signal, signal.SIGCONT)
            eventually(lambda: "Not known" in operator.get("/group", name="half-group").text)
            half = operator.get("/group", name="half-group")
            assert half.status == 200
            assert "half-topic broker-a 0" in half.text
            assert re.search(r"Not known: [^.]*how far it is", half.text)
            assert "half-group" in operator.get("/groups").text
            changed = operator.act(
                "/groups/change", name="half-group", was_retry_max_times=16, retry_max_times=5
            )
            assert "changed at those brokers that answer; repeat it for the others" in changed.text
            assert "retry_max_times 16 → 5" in changed.text
            asked = operator.post("/groups/delete", name="half-group")
            assert "Not all brokers answer" in asked.text
            assert "More members may be online" in asked.text
            asked = operator.post("/topic/change", name="half-topic", read_queues="2")
            assert "The value that broker broker-b has now is not known" in asked.text
            for view in ("members", "offsets", "configuration"):
                assert operator.get("/group", name="half-group", view=view).status == 200


# Popping


def test_a_group_that_pops_shows_what_is_in_flight(
    cluster: Cluster, admin: AdminClient, operator: Visitor
) -> None:
    admin.topics.create("popped", read_queues=1, write_queues=1)
    with Producer("shop", namesrv=cluster.namesrv) as producer:
        for number in range(4):
            producer.send(Message("popped", b"%d" % number))
    with SimpleConsumer("poppers", namesrv=cluster.namesrv, invisible_ms=600_000) as consumer:
        consumer.subscribe("popped")
        got: list[MessageExt] = []
        while len(got) < 3:
            got += consumer.receive(3 - len(got))
        admin.groups.set_request_mode("poppers", "popped", "POP", cluster="DefaultCluster")
        page = eventually(
            lambda: operator.get("/group", name="poppers").text,
            lambda text: "popped POP 3 0 " in text,
        )
        assert "Popped messages" in page
        row = page.partition("popped POP ")[2]
        # Nothing is late, came again or waits in a retry topic.
        assert re.match(r"3 0 \S+( \S+)? – 0 0", row), row
    assert "Popped messages" not in operator.get("/group", name="no-such-poppers").text
