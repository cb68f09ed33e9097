"""Ask a cluster for many things at once, and read the fields of forms."""

from __future__ import annotations

import asyncio

import pytest
from starlette.exceptions import HTTPException

from cometmq.console.pages.topic import differences
from cometmq.console.views.fields import (
    choice_field,
    lines_field,
    number_field,
    pairs_field,
    text_field,
)
from cometmq.console.watching.asking import AT_ONCE, ask_each, each_cluster, for_a_page, in_time
from cometmq.console.watching.causes import by_cause
from cometmq.errors import RemoteError, RequestTimeoutError, ServersFailedError
from cometmq.model.topic import TopicConfig


async def test_what_is_asked_for_is_told_beside_why_the_rest_is_not() -> None:
    async def ask(name: str) -> str:
        if name == "hangs":
            await asyncio.Event().wait()
        if name == "fails":
            raise RemoteError("no")
        return name.upper()

    found = await ask_each(["a", "fails", "hangs", "a"], ask, wait_s=0.05)
    assert list(found) == ["a", "fails", "hangs"]
    assert found["a"].value == "A"
    assert isinstance(found["fails"].error, RemoteError)
    assert isinstance(found["hangs"].error, RequestTimeoutError)
    assert (await in_time(ask("b"))).value == "B"
    assert isinstance((await in_time(ask("hangs"), wait_s=0.01)).error, RequestTimeoutError)


async def test_a_server_that_is_late_is_one_cause_with_its_silence() -> None:
    """A page had two bars for one server."""
    address = "10.0.0.3:10911"
    late = await in_time(asyncio.Event().wait(), wait_s=0.01, address=address)
    silent = RequestTimeoutError("has answered nothing for 3 s", address=address)
    causes = by_cause([(silent, "its members"), (late.error, "how far it is")])
    assert [cause.what for cause in causes.first] == [["its members", "how far it is"]]
    assert str(late.error).startswith(f"{address} did not answer within 0.01 s")


async def test_all_questions_of_a_page_have_one_deadline() -> None:
    async def never() -> None:
        await asyncio.Event().wait()

    async def soon() -> int:
        await asyncio.sleep(0.05)
        return 7

    async def at_once() -> int:
        return 7

    with for_a_page(0.3):
        assert (await in_time(soon())).value == 7
        first = await in_time(never())
        late = [await in_time(soon()), *(await ask_each("ab", lambda _: soon())).values()]
        assert (await in_time(at_once())).value == 7
        assert (await in_time(soon(), wait_s=30)).value == 7, "a search may take longer"
    said = "the cluster did not answer within 0.3 s, and this page does not wait for longer"
    assert {str(first.error), *(str(each.error) for each in late)} == {said}
    assert (await in_time(soon())).value == 7, "an action has its own time"


async def test_answers_of_some_servers_are_joined_and_the_error_is_kept() -> None:
    async def ask() -> int:
        raise ServersFailedError("one failed", results={"a": 1}, errors={"b": RemoteError("no")})

    reported = await in_time(ask(), lambda results: sum(results.values()))
    assert (reported.value, reported.is_known) == (1, False)
    assert (await in_time(ask())).value is None


async def test_no_more_than_a_bound_are_asked_at_once() -> None:
    running = most = 0

    async def ask(number: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return number

    found = await ask_each(range(1000), ask)
    assert [each.value for each in found.values()] == list(range(1000))
    assert most == AT_ONCE


def test_fields_are_read_as_they_are_meant() -> None:
    form = {
        "n": " 7 ",
        "minus": "-1",
        "empty": "",
        "c": "x",
        "p": "a=1\r\n\r\n b = 2=3 ",
        "t": " y ",
    }
    assert number_field(form, "n", 1, 9) == 7
    assert number_field(form, "minus", -1, 9) == -1
    assert number_field(form, "empty", 1, 9) is None
    assert number_field(form, "missing", 1, 9) is None
    assert choice_field(form, "c", ("x", "y")) == "x"
    assert choice_field(form, "missing", ("x", "y"), "y") == "y"
    assert pairs_field(form, "p") == {"a": "1", "b": "2=3"}
    assert lines_field(form, "p") == ["a=1", "b = 2=3"]
    assert text_field(form, "t") == "y"


@pytest.mark.parametrize("text", ["0", "10", "²", "1_0", "7.0", "--1", "-", "1" * 5000, "٣"])
def test_what_is_no_number_of_the_range_is_refused(text: str) -> None:
    with pytest.raises(HTTPException, match="give a whole number from 1 to 9"):
        number_field({"n": text}, "n", 1, 9)


def test_what_a_form_lacks_is_named() -> None:
    for form in ({}, {"group_name": " "}):
        with pytest.raises(HTTPException, match="lacks the group name"):
            text_field(form, "group_name")
    with pytest.raises(HTTPException, match="300 characters, the limit MAX_NAME is 255; give"):
        text_field({"name": "x" * 300}, "name")
    with pytest.raises(HTTPException, match="give one of 'a', 'b'"):
        choice_field({"kind": "c"}, "kind", ("a", "b"))
    with pytest.raises(HTTPException, match="201 lines, the limit MAX_LINES is 200; give"):
        lines_field({"many": "x\n" * 201}, "many")


def test_brokers_that_differ_are_seen_in_every_column() -> None:
    one = TopicConfig("t", read_queue_nums=4, attributes={"a": "1"})
    other = TopicConfig("t", read_queue_nums=8, perm=4, order=True, attributes={})
    assert differences([one, one]) == []
    assert differences([]) == []
    assert differences([one, other]) == ["Read queues", "Permission", "Ordered", "Attributes"]


async def test_the_failure_of_one_cluster_neither_stops_nor_hides_the_others() -> None:
    asked = []

    async def act(cluster: str) -> list[str]:
        asked.append(cluster)
        if cluster == "away":
            raise RemoteError("no")
        return [f"{cluster}:10911"]

    with pytest.raises(ServersFailedError, match="failed at 1 of 3 servers: away: no") as failed:
        await each_cluster(["first", "away", "last"], act)
    assert asked == ["first", "away", "last"]
    assert list(failed.value.results) == ["first:10911", "last:10911"]
    with pytest.raises(RemoteError, match="no"):
        await each_cluster(["away"], act)
    assert await each_cluster(["last"], act) == [["last:10911"]]
