"""Ask guarded servers for everything that they serve, as everybody may come: who gets in, who not.

The questions are made of the request table, so a new request is asked, too; one without a sample
request fails here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.access.actors import ACTORS_1, ACTORS_2, OWNER, Actor, plain_acl, policies, user
from tests.access.expected import may
from tests.access.matrix import Question, Verdict, as_actor, ask_all, forgeries, signed
from tests.access.samples import Sample, sample

from cometmq.broker.server import Broker
from cometmq.namesrv.server import NameServer
from cometmq.testing import Cluster

CREATE_USER, CREATE_ACL = 3001, 3006
SERVERS = ("broker", "namesrv")


class Guarded(NamedTuple):
    """A cluster with one kind of access control, and the accounts that it knows."""

    acl: int
    cluster: Cluster
    actors: tuple[Actor, ...]

    def server(self, name: str) -> Broker | NameServer:
        return self.cluster.brokers[0] if name == "broker" else self.cluster.name_servers[0]

    def address(self, name: str) -> str:
        return f"127.0.0.1:{self.server(name).port}"

    def samples(self, name: str) -> list[Sample]:
        return [sample(row) for row in self.server(name).handlers.request_types.values()]


@pytest.fixture(scope="module", params=[1, 2], ids=["acl1", "acl2"])
def guarded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Guarded]:
    home = tmp_path_factory.mktemp("home")
    actors = {1: ACTORS_1, 2: ACTORS_2}[request.param]
    settings = {1: acl1_settings, 2: acl2_settings}[request.param](home)
    with Cluster(
        properties=settings | {"authConfigPath": str(home / "broker")},
        namesrv_properties=settings | {"authConfigPath": str(home / "namesrv")},
    ) as cluster:
        servers = Guarded(request.param, cluster, actors)
        if request.param == 2:
            for name in SERVERS:
                admit(servers.address(name), actors)
        yield servers


def acl1_settings(home: Path) -> dict[str, str]:
    (home / "conf").mkdir()
    (home / "conf" / "plain_acl.yml").write_text(plain_acl(ACTORS_1))
    return {"aclEnable": "true", "rocketmqHome": str(home), **inner()}


def acl2_settings(_home: Path) -> dict[str, str]:
    owner = OWNER.credentials
    first = {"username": owner.access_key, "password": owner.secret_key}
    return {
        "authenticationEnabled": "true",
        "authorizationEnabled": "true",
        "initAuthenticationUser": json.dumps(first),
        **inner(),
    }


def inner() -> dict[str, str]:
    """How servers get in at each other."""
    owner = OWNER.credentials
    keys = {"accessKey": owner.access_key, "secretKey": owner.secret_key}
    return {"innerClientAuthenticationCredentials": json.dumps(keys)}


def admit(address: str, actors: tuple[Actor, ...]) -> None:
    """Have a server with ACL 2.0 know the accounts, by requests of the owner."""
    questions = []
    for actor in actors:
        if actor is OWNER:
            continue
        name = {"username": actor.credentials.access_key}
        subject = {"subject": f"User:{actor.credentials.access_key}"}
        for code, ext, value in (
            (CREATE_USER, name, user(actor)),
            (CREATE_ACL, subject, policies(actor)),
        ):
            if actor.entries() or code == CREATE_USER:
                body = json.dumps(value).encode()
                fields = signed(ext, body, OWNER.credentials)
                questions.append(Question(actor.name, code, fields, body))
    for question, told in ask_all(address, questions):
        assert told.code == 0, (question, told)


@pytest.mark.parametrize("binary", [False, True], ids=["json", "binary"])
@pytest.mark.parametrize("name", SERVERS)
def test_nobody_gets_in_without_a_sound_signature(
    guarded: Guarded, name: str, binary: bool
) -> None:
    samples = guarded.samples(name)
    asked = [
        (sample.row.name, question, verdict)
        for sample in samples
        # Binary headers lead to the same checks, so a few rows say enough.
        for question, verdict in forgeries(sample, OWNER)
        if not binary or sample.code % 5 == 0
    ]
    answers = ask_all(guarded.address(name), (each[1] for each in asked), binary=binary)
    wrong = [
        f"{row} {question.case}: {told}"
        for (row, question, verdict), (_, told) in zip(asked, answers, strict=True)
        if told.verdict is not verdict or told.code != {1: 1, 2: 16}[guarded.acl]
    ]
    assert not wrong, "\n".join(wrong)
    assert len(asked) > 5 * len(samples) or binary


@pytest.mark.parametrize("name", SERVERS)
def test_each_account_may_send_what_its_rights_allow(guarded: Guarded, name: str) -> None:
    asked = [
        (sample, actor, as_actor(sample, actor))
        for sample in guarded.samples(name)
        for actor in guarded.actors
    ]
    answers = ask_all(guarded.address(name), (each[2] for each in asked))
    wrong = []
    for (sample, actor, _), (_, told) in zip(asked, answers, strict=True):
        allowed = may(guarded.acl, actor, sample)
        if (told.verdict is Verdict.LET_IN) != allowed or told.verdict not in (
            Verdict.LET_IN,
            Verdict.DENIED,
        ):
            wrong.append(f"{sample.row.name} by {actor.name}, allowed={allowed}: {told}")
    assert not wrong, "\n".join(wrong)
