"""Ask guarded servers for everything that they serve, as everybody may come: who gets in, who not.

The questions are made of the request table, so a new request is asked, too; one without a sample
request fails here.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import count

import pytest
from tests.access.actors import NOBODY, OWNER
from tests.access.expected import may
from tests.access.matrix import (
    Verdict,
    answers_to,
    as_actor,
    ask_all,
    forgeries,
    stale,
)
from tests.access.samples import TOPIC, sample
from tests.access.servers import SERVERS, Guarded, guarded_cluster
from tests.access.variants import VARIANTS, Variant

from cometmq.protocol.request_type import AnyRequestType, Right
from cometmq.protocol.requests import (
    CONSUMER_SEND_MSG_BACK,
    SEND_MESSAGE_V2,
    VIEW_MESSAGE_BY_ID,
)


@pytest.fixture(scope="module", params=[1, 2], ids=["acl1", "acl2"])
def guarded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Guarded]:
    home = tmp_path_factory.mktemp("home")
    with guarded_cluster(request.param, home) as servers:
        yield servers


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@pytest.mark.parametrize("binary", [False, True], ids=["json", "binary"])
@pytest.mark.parametrize("name", SERVERS)
def test_nobody_gets_in_without_a_sound_signature(
    guarded: Guarded, name: str, binary: bool
) -> None:
    samples = guarded.samples(name)
    asked = [
        (asking.row.name, question, verdict)
        for asking in samples
        # Binary headers lead to the same checks, so a few rows say enough.
        for question, verdict in forgeries(asking, OWNER)
        # A binary header has 16 bits for the code, and those of popping are larger.
        if not binary or (asking.code % 5 == 0 and asking.code < 1 << 16)
    ]
    answers = ask_all(guarded.address(name), (each[1] for each in asked), binary=binary)
    wrong = [
        f"{row} {question.case}: {reported}"
        for (row, question, verdict), (_, reported) in zip(asked, answers, strict=True)
        if reported.verdict is not verdict or reported.code != {1: 1, 2: 16}[guarded.acl]
    ]
    assert not wrong, "\n".join(wrong)
    assert len(asked) > 5 * len(samples) or binary


@pytest.mark.parametrize("name", SERVERS)
def test_what_was_signed_long_ago_or_came_already_is_refused(guarded: Guarded, name: str) -> None:
    numbers = count(1)
    session = f"{SERVERS.index(name):016x}"
    asked = [
        (asking.row.name, question, verdict)
        for asking in guarded.samples(name)
        for question, verdict in stale(asking, OWNER, session, now_ms(), numbers)
    ]
    answers = ask_all(guarded.address(name), (each[1] for each in asked))
    wrong = [
        f"{row} {question.case}: {reported}"
        for (row, question, verdict), (_, reported) in zip(asked, answers, strict=True)
        if reported.verdict is not verdict
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", SERVERS)
def test_no_answer_has_a_secret_in_it(guarded: Guarded, name: str) -> None:
    """Any account may read a server's configuration."""
    secrets = [actor.credentials.secret_key.encode() for actor in guarded.actors]
    readers = [asking for asking in guarded.samples(name) if asking.row.right is Right.NONE]
    questions = [as_actor(asking, NOBODY) for asking in readers]
    for _, answer in answers_to(guarded.address(name), questions):
        assert not [secret for secret in secrets if secret in answer.body], answer


@pytest.mark.parametrize("name", SERVERS)
def test_each_account_may_send_what_its_rights_allow(guarded: Guarded, name: str) -> None:
    asked = [
        (asking, actor, as_actor(asking, actor))
        for asking in guarded.samples(name)
        for actor in guarded.actors
    ]
    answers = ask_all(guarded.address(name), (each[2] for each in asked))
    wrong = []
    for (asking, actor, _), (_, reported) in zip(asked, answers, strict=True):
        allowed = may(guarded.acl, actor, asking)
        if (reported.verdict is Verdict.LET_IN) != allowed or reported.verdict not in (
            Verdict.LET_IN,
            Verdict.DENIED,
        ):
            wrong.append(f"{asking.row.name} by {actor.name}, allowed={allowed}: {reported}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda variant: variant.name)
def test_names_left_out_and_retry_topics_open_no_door(guarded: Guarded, variant: Variant) -> None:
    questions = [as_actor(variant.sample, actor) for actor in guarded.actors]
    answers = ask_all(guarded.address("broker"), questions)
    let_in = {question.case for question, reported in answers if reported.verdict is Verdict.LET_IN}
    assert let_in == {OWNER.name, *variant.let_in(guarded.acl)}


@pytest.mark.parametrize(
    ("row", "ext", "reader"),
    [
        (VIEW_MESSAGE_BY_ID, {"topic": TOPIC}, "topic-only"),
        (CONSUMER_SEND_MSG_BACK, {}, {1: "subscriber", 2: "sub"}),
    ],
    ids=["view", "send back"],
)
def test_a_message_of_another_topic_is_not_reached_by_its_place(
    guarded: Guarded, row: AnyRequestType, ext: dict[str, str], reader: str | dict[int, str]
) -> None:
    name = reader if isinstance(reader, str) else reader[guarded.acl]
    [actor] = [each for each in guarded.actors if each.name == name]
    verdicts = []
    for topic in (TOPIC, "matrix-hidden"):
        send = sample(SEND_MESSAGE_V2)
        send = send._replace(ext={**send.ext, "b": topic, "c": "TBW102", "d": "4"})
        [(_, stored)] = answers_to(guarded.address("broker"), [as_actor(send, OWNER)])
        assert stored.code == 0, stored
        # An offset id is the address, then where the message begins in the log.
        offset = int(stored.ext["msgId"][-16:], 16)
        asking = sample(row)
        asking = asking._replace(ext={**asking.ext, **ext, "offset": str(offset)})
        [(_, reported)] = ask_all(guarded.address("broker"), [as_actor(asking, actor)])
        verdicts.append(reported.verdict)
    assert verdicts == [Verdict.LET_IN, Verdict.DENIED]
