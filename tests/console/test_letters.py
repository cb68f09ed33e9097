"""Dead letters: found, chosen, tried dry, sent again, exported."""

# ruff: noqa: RUF001 - Chinese has a punctuation of its own

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator

import pytest
from tests.console.actors import Actors
from tests.console.running import Answer, Served, Visitor
from tests.waits import eventually

from cometmq import AdminClient, Message
from cometmq.console.pages import letters, letters_export
from cometmq.testing import Cluster


@pytest.fixture(scope="module")
def actors(cluster: Cluster) -> Iterator[Actors]:
    with Actors(cluster.namesrv) as made:
        yield made


def offset_ids(admin: AdminClient, group: str) -> dict[bytes, str]:
    return {letter.body: letter.offset_msg_id for letter in admin.messages.dead_letters(group)}


def test_groups_with_letters_are_listed(actors: Actors, reader: Visitor) -> None:
    actors.bury("letters-listed", "letters-listed-topic", [b"1", b"2"])
    # The console keeps the names of topics for some seconds.
    eventually(
        lambda: reader.get("/letters", q="letters-listed").html,
        lambda html: re.search(r"letters-listed\s*</a>.*?>2<", html, re.DOTALL),
    )
    assert "No group with such a name" in reader.get("/letters", q="nobody-of-this-name").text


def test_letters_of_a_group_are_shown_and_found_by_key(actors: Actors, reader: Visitor) -> None:
    actors.bury("letters-shown", "letters-shown-topic", [b"the first", b"\xff\x00"])
    page = reader.get("/letters", group="letters-shown")
    assert "the first" in page.text
    assert "letters-shown-topic" in page.text
    assert "ff 00" in page.text
    assert "/letters/redrive" not in page.html or "Send the chosen" not in page.text
    found = reader.get("/letters", group="letters-shown", key="letter-1").text
    assert "letter-1" in found
    assert "the first" not in found
    assert (
        "No dead letter matches"
        in reader.get("/letters", group="letters-shown", end="2001-01-01").text
    )


def test_chosen_letters_go_back_after_a_dry_run(
    actors: Actors, admin: AdminClient, operator: Visitor
) -> None:
    actors.bury("letters-back", "letters-back-topic", [b"stays", b"goes", b"goes, too"])
    ids = offset_ids(admin, "letters-back")
    chosen = [ids[b"goes"], ids[b"goes, too"]]
    asked = operator.post("/letters/redrive", group="letters-back", which="chosen", id=chosen)
    assert asked.status == 200
    assert "2 of the dead letters would be sent again" in asked.text
    assert "2 to topic letters-back-topic" in asked.text
    redrive = re.search(r'name="redrive" value="([^"]+)"', asked.html)
    assert redrive is not None
    before = admin.topics.stats("letters-back-topic")
    assert sum(queue.max_offset for queue in before.queues) == 3, "a dry run sends nothing"
    fields = {
        "group": "letters-back",
        "which": "chosen",
        # So browsers send a hidden field of several lines.
        "id": "\r\n".join(chosen),
        "redrive": redrive[1],
        "confirm": "letters-back",
        "why": "mended",
    }
    done = operator.act("/letters/redrive", **fields)
    assert "2 sent again, 0 not" in done.text
    assert done.text.count("sent to letters-back-topic, broker-a queue") == 2
    again = operator.act("/letters/redrive", **fields)
    assert "2 sent again" in again.text, "the same redrive tells the same"
    after = admin.topics.stats("letters-back-topic")
    assert sum(queue.max_offset for queue in after.queues) == 5, "no letter was sent twice"
    log = (operator.served.root / "audit.jsonl").read_text().splitlines()
    ours = [json.loads(line) for line in log if "letters-back" in line]
    assert [entry["outcome"] for entry in ours] == ["begun", "done"] * 2
    assert ours[0]["details"]["ids"] == chosen
    assert ours[0]["why"] == "mended"


def test_all_that_a_search_finds_goes_to_the_group_alone(
    actors: Actors, admin: AdminClient, operator: Visitor
) -> None:
    actors.bury("letters-alone", "letters-alone-topic", [b"a", b"b"])
    fields = {"group": "letters-alone", "which": "all", "key": "letter-1", "only_group": "1"}
    asked = operator.post("/letters/redrive", **fields)
    assert "1 of the dead letters would be sent again" in asked.text
    assert "Only group letters-alone gets them" in asked.text
    done = operator.act("/letters/redrive", **fields, confirm="letters-alone")
    assert "1 sent again, 0 not" in done.text
    member = actors.member("letters-alone", "letters-alone-topic")
    assert {message.body for message in member.wait_for(1)} == {b"b"}


def hidden(page: Answer) -> dict[str, str]:
    """Return the fields that a confirmation page sends."""
    found = re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', page.html)
    return {name: value for name, value in found if name != "csrf"}


def test_a_letter_that_dies_while_somebody_reads_the_dry_run_is_not_sent(
    actors: Actors, admin: AdminClient, operator: Visitor
) -> None:
    actors.bury("letters-late", "letters-late-topic", [b"shown"])
    asked = operator.post("/letters/redrive", group="letters-late", which="all")
    assert "1 of the dead letters would be sent again" in asked.text
    actors.bury("letters-late", "letters-late-topic", [b"late", b"later"])
    assert len(list(admin.messages.dead_letters("letters-late"))) >= 2
    done = operator.act("/letters/redrive", **hidden(asked), confirm="letters-late")
    assert "1 sent again, 0 not" in done.text
    bodies = [message.body for message in admin.messages.stored("letters-late-topic")]
    assert sorted(bodies) == [b"late", b"later", b"shown", b"shown"]


def test_chosen_letters_that_are_not_found_are_told_and_stay_out(
    actors: Actors, admin: AdminClient, operator: Visitor
) -> None:
    actors.bury("letters-part", "letters-part-topic", [b"there"])
    [there] = offset_ids(admin, "letters-part").values()
    gone = f"{there[:-16]}{2**40:016X}"
    asked = operator.post(
        "/letters/redrive", group="letters-part", which="chosen", id=[there, gone]
    )
    assert "1 of the dead letters would be sent again" in asked.text
    assert "1 of the chosen letters no longer exist" in asked.text
    assert hidden(asked)["id"] == there


def test_a_redrive_of_all_that_failed_in_part_is_repeated_under_its_id(
    actors: Actors, operator: Visitor
) -> None:
    actors.bury("letters-twice", "letters-twice-topic", [b"x"])
    page = operator.get("/letters", group="letters-twice", failed="redrive-of-before")
    assert "repeats a redrive that failed" in page.text
    fields = {"group": "letters-twice", "failed": hidden(page)["failed"]}
    asked = operator.post("/letters/redrive", **fields, which="all")
    assert hidden(asked)["redrive"] == "redrive-of-before"


def test_letters_of_a_topic_that_is_gone_stay(
    actors: Actors, admin: AdminClient, operator: Visitor
) -> None:
    actors.bury("letters-gone", "letters-gone-topic", [b"x"])
    admin.topics.delete("letters-gone-topic")
    fields = {"group": "letters-gone", "which": "all"}
    asked = operator.post("/letters/redrive", **fields)
    assert "topic letters-gone-topic is no longer there" in asked.text
    done = operator.act("/letters/redrive", **fields, confirm="letters-gone")
    assert "0 sent again, 1 not" in done.text
    assert "not sent as far as is known: " in done.text


def test_what_cannot_be_chosen(actors: Actors, operator: Visitor, reader: Visitor) -> None:
    actors.bury("letters-wrong", "letters-wrong-topic", [b"x"])
    none = operator.post("/letters/redrive", group="letters-wrong", which="chosen")
    assert (none.status, "No letter is chosen" in none.text) == (400, True)
    # An id names an address: of strangers nobody asks.
    stranger = operator.post(
        "/letters/redrive", group="letters-wrong", which="chosen", id="C0A8010100002A9F" + "0" * 16
    )
    assert (stranger.status, "no longer exist" in stranger.text) == (409, True)
    assert operator.get("/letters", group="no group!").status == 400
    assert operator.get("/letters", group="letters-wrong", begin="yesterday?").status == 400
    assert reader.post("/letters/redrive", group="letters-wrong", which="all").status == 403
    unknown = operator.get("/letters", group="never-had-one")
    assert (unknown.status, "No broker knows this group" in unknown.text) == (404, True)


def test_letters_are_exported_with_their_exact_bodies(actors: Actors, reader: Visitor) -> None:
    bodies = [b"plain", b"\xff\xfe\x00", "grün <b>".encode()]
    actors.bury("letters-exported", "letters-exported-topic", bodies)
    answer = reader.get("/letters/export", group="letters-exported")
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"].startswith("attachment")
    lines = [json.loads(line) for line in answer.body.decode().splitlines()]
    got = {base64.b64decode(line["bodyBase64"]): line.get("text") for line in lines}
    assert got == dict(zip(bodies, ["plain", None, "grün <b>"], strict=True))
    assert {line["originTopic"] for line in lines} == {"letters-exported-topic"}
    one = reader.get("/letters/export", group="letters-exported", key="letter-1").body
    assert len(one.splitlines()) == 1
    assert reader.get("/letters/export", group="never-had-one").status == 404


def test_more_letters_than_a_page_has_are_reached(
    actors: Actors, admin: AdminClient, reader: Visitor
) -> None:
    actors.bury("letters-many", "letters-many-topic", [b"%d" % number for number in range(60)])
    first = reader.get("/letters", group="letters-many")
    older = re.search(r'href="([^"]+)" rel="next"', first.html)
    assert older is not None
    second = reader.get(older[1].replace("&amp;", "&"))
    ids = [re.findall(r'id="letter-(\w+)"', page.html) for page in (first, second)]
    assert [len(of_page) for of_page in ids] == [50, 10]
    assert {*ids[0], *ids[1]} == {*offset_ids(admin, "letters-many").values()}


def test_a_hostile_letter_is_shown_as_text(actors: Actors, reader: Visitor) -> None:
    hostile = "<script>alert(1)</script>"
    producer = actors.producer("letters-hostile-sender")
    producer.send(
        Message("%DLQ%letters-hostile", hostile.encode(), keys=["<img/src=x>"], tags="<b>")
    )
    page = reader.get("/letters", group="letters-hostile")
    assert hostile in page.text
    assert hostile not in page.html
    assert "<img/src" not in page.html


def test_letters_that_cannot_be_read_say_what_to_do(
    actors: Actors, admin: AdminClient, reader: Visitor
) -> None:
    actors.bury("letters-hidden", "letters-hidden-topic", [b"x"])
    admin.topics.update("%DLQ%letters-hidden", permission=2)
    page = eventually(
        lambda: reader.get("/letters", group="letters-hidden"),
        lambda page: "Set its permission to 6" in page.text,
    )
    assert page.status == 200


def test_so_many_exports_run_at_once(
    actors: Actors, reader: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    actors.bury("letters-bounded", "letters-bounded-topic", [b"1", b"2", b"3"])
    monkeypatch.setattr(letters_export, "MAX_LETTER_EXPORTS", 1)
    for _ in range(3):  # each gives its place back, the one that fails, too
        assert reader.get("/letters/export", group="letters-bounded").status == 200
        assert reader.get("/letters/export", group="never-had-one").status == 404
    monkeypatch.setattr(letters_export, "MAX_LETTER_EXPORTS", 0)
    refused = reader.get("/letters/export", group="letters-bounded")
    assert refused.status == 429
    assert "0 exports are under way" in refused.text


@pytest.mark.parametrize(
    ("limit", "value", "key", "exported", "says"),
    [
        ("MAX_EXPORTED", 2, "", 2, "the limit MAX_EXPORTED is 2;"),
        ("MAX_LOOKED_AT", 0, "letter-2", 0, "the limit MAX_LOOKED_AT is 0;"),
        ("MAX_EXPORTED_BYTES", 1, "", 1, "the limit MAX_EXPORTED_BYTES is 1;"),
        ("MAX_EXPORT_S", 0, "", 0, "the limit MAX_EXPORT_S is 0;"),
    ],
)
def test_an_export_ends_at_its_limits_and_says_so(
    actors: Actors,
    reader: Visitor,
    monkeypatch: pytest.MonkeyPatch,
    limit: str,
    value: int,
    key: str,
    exported: int,
    says: str,
) -> None:
    """A search by key that found nothing read all letters there are."""
    actors.bury(f"letters-{limit}", f"letters-{limit}-topic", [b"1", b"2", b"3"])
    monkeypatch.setattr(letters_export, limit, value)
    answer = reader.get("/letters/export", group=f"letters-{limit}", key=key or None)
    *lines, last = [json.loads(line) for line in answer.body.splitlines()]
    assert len(lines) == exported
    assert says in last["incomplete"]
    assert "take the others by a time range" in last["incomplete"]


def test_an_export_says_in_chinese_what_ended_it(
    actors: Actors, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last line was in English whatever the page was in."""
    actors.bury("letters-ended", "letters-ended-topic", [b"1", b"2", b"3"])
    monkeypatch.setattr(letters_export, "MAX_EXPORTED", 2)
    visitor = Visitor(served, "reader")
    visitor.cookies["cometmq-language"] = "zh"
    last = visitor.get("/letters/export", group="letters-ended").body.splitlines()[-1]
    assert json.loads(last) == {
        "incomplete": "已导出 2 条死信，共查看 2 条，上限 MAX_EXPORTED 为 2；"
        "其余请按时间范围（从、到）导出"
    }


def test_a_dry_run_looks_at_so_many_letters(
    actors: Actors, operator: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    actors.bury("letters-many", "letters-many-topic", [b"1", b"2", b"3"])
    monkeypatch.setattr(letters, "MAX_DRY_RUN_LETTERS", 2)
    refused = operator.post("/letters/redrive", group="letters-many", which="all", key="nothing")
    assert refused.status == 422
    assert "2 letters were looked at, 0 of them fit" in refused.text
    assert "give a shorter time" in refused.text
