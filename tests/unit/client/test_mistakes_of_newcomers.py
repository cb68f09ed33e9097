"""Test that each mistake of newcomers gets an error that names the remedy."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import cometmq
from cometmq import aio
from cometmq.client.popping.message import ReceivedMessage
from cometmq.errors import IllegalArgumentError, UnknownOptionError

NOBODY = "127.0.0.1:1"
BLOCKING: list[Any] = [
    cometmq.Producer,
    cometmq.PushConsumer,
    cometmq.LitePullConsumer,
    cometmq.SimpleConsumer,
]
ASYNCIO: list[Any] = [aio.Producer, aio.PushConsumer, aio.LitePullConsumer, aio.SimpleConsumer]


def new(client: Any) -> Any:
    return client("g", namesrv=NOBODY)


@pytest.mark.parametrize("client", ASYNCIO)
def test_with_does_not_fit_an_asyncio_client(client: Any) -> None:
    wrong = r"`with` does not fit this \w+: .*`async with`.* cometmq$"
    with pytest.raises(TypeError, match=wrong), new(client):
        pass


@pytest.mark.parametrize("client", BLOCKING)
def test_async_with_does_not_fit_a_blocking_client(client: Any) -> None:
    async def main() -> None:
        async with new(client):
            pass

    with pytest.raises(
        TypeError, match=r"`async with` does not fit .* write `with`; .*cometmq.aio$"
    ):
        asyncio.run(main())


async def following(consumer: Any) -> None:
    async for _ in consumer:
        pass


@pytest.mark.parametrize("name", ["LitePullConsumer", "SimpleConsumer"])
def test_each_face_has_its_own_loop(name: str) -> None:
    with pytest.raises(TypeError, match=r"`for` does not fit .* write `async for`"):
        list(new(getattr(aio, name)))
    with pytest.raises(TypeError, match=r"`async for` does not fit .* write `for`"):
        asyncio.run(following(new(getattr(cometmq, name))))


@pytest.mark.parametrize("client", [cometmq.PushConsumer, aio.PushConsumer])
def test_nobody_iterates_over_a_consumer_with_a_listener(client: Any) -> None:
    for wrong in (list, lambda each: asyncio.run(following(each))):
        with pytest.raises(TypeError, match="iterate over a LitePullConsumer or a SimpleConsumer"):
            wrong(new(client))


def test_a_block_of_a_message_is_of_its_face() -> None:
    async def main(message: Any) -> None:
        async with message:
            pass

    received: Any = object.__new__(ReceivedMessage)
    with pytest.raises(TypeError, match=r"`with` does not fit this ReceivedMessage"), received:
        pass
    with pytest.raises(TypeError, match=r"`async with` does not fit this PulledMessage"):
        asyncio.run(main(object.__new__(cometmq.PulledMessage)))


@pytest.mark.parametrize("face", [cometmq, aio])
def test_on_wants_its_topic_in_brackets(face: Any) -> None:
    with pytest.raises(IllegalArgumentError, match=r'a function; write @consumer.on\("orders"\)'):
        new(face.PushConsumer).on(takes_one)


def takes_one(messages: Any) -> None: ...


def takes_nothing() -> None: ...


def takes_two(message: Any, context: Any) -> None: ...


@pytest.mark.parametrize("listener", [takes_nothing, takes_two])
@pytest.mark.parametrize("face", [cometmq, aio])
def test_a_listener_takes_one_list(face: Any, listener: Callable[..., None]) -> None:
    wrong = (
        rf"the listener {listener.__name__} cannot be called with a list of messages: .*argument"
    )
    with pytest.raises(IllegalArgumentError, match=wrong):
        face.PushConsumer("g", listener, namesrv=NOBODY)
    with pytest.raises(IllegalArgumentError, match=wrong):
        new(face.PushConsumer).on("orders")(listener)


class Unreadable:
    """Has no signature that can be read, like a function with an annotation that Python 3.14 cannot evaluate."""

    @property
    def __signature__(self) -> None:
        raise NameError("name 'MessageExt' is not defined")

    def __call__(self, messages: Any) -> None: ...


@pytest.mark.parametrize("face", [cometmq, aio])
def test_a_listener_whose_signature_cannot_be_read_is_taken(face: Any) -> None:
    face.PushConsumer("g", Unreadable(), namesrv=NOBODY)


@pytest.mark.parametrize(
    ("option", "meant"),
    [
        ("bootstrap_servers", "namesrv"),
        ("consumer_group", "group"),
        ("topics", r"to call subscribe\(topic\)"),
        ("auto_offset_reset", "consume_from"),
    ],
)
@pytest.mark.parametrize("face", [cometmq, aio])
def test_options_of_other_clients_are_translated(face: Any, option: str, meant: str) -> None:
    with pytest.raises(UnknownOptionError, match=f"no option '{option}'.*; did you mean {meant}"):
        face.PushConsumer("g", namesrv=NOBODY, **{option: "x"})


@pytest.mark.parametrize("option", ["topic", "auto_offset_reset"])
@pytest.mark.parametrize("face", [cometmq, aio])
def test_a_producer_is_not_said_to_have_the_options_of_consumers(face: Any, option: str) -> None:
    with pytest.raises(UnknownOptionError) as error:
        face.Producer("g", namesrv=NOBODY, **{option: "x"})
    assert "subscribe" not in str(error.value)
    assert "consume_from" not in str(error.value)
