"""Start clients in vain, by both faces: the warnings that come at once, each with its remedy."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from tests.integration.client_faces import Face, open_face
from tests.waits import eventually

from cometmq import Message
from cometmq.errors import IllegalArgumentError

# Nobody listens there.
NOBODY = "127.0.0.1:1"


def was_logged(caplog: pytest.LogCaptureFixture, *parts: str) -> bool:
    texts = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    return any(all(part in text for part in parts) for text in texts)


@pytest.mark.real_time
@pytest.mark.parametrize("kind", ["producer", "consumer", "lite_pull_consumer", "simple_consumer"])
@pytest.mark.parametrize("name_of_face", ["blocking", "asyncio"])
def test_a_client_without_any_reachable_server_says_so_at_its_start(
    caplog: pytest.LogCaptureFixture, name_of_face: str, kind: str
) -> None:
    with open_face(name_of_face, NOBODY) as face:
        new: Any = getattr(face, f"new_{kind}")
        client = new("lonely", lambda _: None) if kind == "consumer" else new("lonely")
        if kind != "producer":
            client.subscribe("orders")
        face.started(client)
        eventually(
            lambda: was_logged(
                caplog, "no name server can be reached", NOBODY, "lonely", "check namesrv="
            )
        )


def test_a_consumer_without_a_subscription_says_so(
    face: Face, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    face.started(face.new_consumer(name, face.listener(lambda _: None)))
    assert was_logged(caplog, "has no subscription", name, "subscribe(topic)")


def test_a_lite_pull_consumer_without_queues_says_so_at_its_first_poll_and_once(
    face: Face, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    face.producer(name).send(Message(name, b"x"))
    face.until_routed(name, "broker-a")
    consumer: Any = face.started(face.new_lite_pull_consumer(name))
    # To pull, it needs neither a subscription nor queues.
    (queue, *_) = consumer.queues(name)
    consumer.pull(queue, 0)
    assert not was_logged(caplog, "has no subscription")
    for _ in range(2):
        assert consumer.poll(0) == []
    warnings = [one for one in caplog.records if "has no subscription" in one.getMessage()]
    assert len(warnings) == 1
    assert was_logged(caplog, "has no subscription", name, "subscribe(topic) or assign(queues)")


def test_a_topic_without_a_route_is_named_with_the_one_that_is_meant(
    face: Face, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    face.producer(name).send(Message(name, b"x"))
    face.until_routed(name, "broker-a")
    misspelt = f"{name[:-1]}-{name[-1]}"
    face.consumer(name, misspelt, lambda _: None)
    eventually(lambda: was_logged(caplog, "no route yet, nothing is consumed", "create the topic"))
    eventually(lambda: was_logged(caplog, "no topic has that name", misspelt, name))


@pytest.mark.parametrize(
    ("namesrv", "fault"),
    [
        ("http://127.0.0.1:9876", "the scheme 'http'"),
        ("name server:9876", "characters that no host name has"),
        ("10.0.0.300:9876", "no IPv4 address"),
        ("broker-a", "of the form host:port"),
    ],
)
def test_a_name_server_that_is_no_address_is_refused_when_it_is_given(
    namesrv: str, fault: str
) -> None:
    for name_of_face in ("blocking", "asyncio"):
        with open_face(name_of_face, namesrv) as face:
            with pytest.raises(IllegalArgumentError, match=fault):
                face.new_producer("g")
            with pytest.raises(IllegalArgumentError, match=fault):
                face.new_simple_consumer("g")
