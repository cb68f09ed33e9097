"""The life of a client, and both faces as one API."""

from __future__ import annotations

import ast
import asyncio
import dataclasses
import gc
import inspect
import subprocess
import sys
import threading
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from tests.waits import PROCESS_WAIT_S, WAIT_S, until

import cometmq
import cometmq.aio
from cometmq import ConsumeResult, Message
from cometmq.client.blocking import consumers, producers, transactions
from cometmq.client.consuming.lite_pull_consumer import LitePullConsumerOptions
from cometmq.client.consuming.push_consumer import PushConsumerOptions
from cometmq.client.popping.simple_consumer import SimpleConsumerOptions
from cometmq.client.producing.producer import ProducerOptions
from cometmq.client.producing.transaction_producer import TransactionProducerOptions
from cometmq.errors import ClientStateError, CometMQError, IllegalArgumentError
from cometmq.runtime.loop import run

# The clients connect to a port where nobody listens.
pytestmark = pytest.mark.real_time

# Nobody listens there: enough for clients that only start and close.
NOBODY = "127.0.0.1:1"
KEYWORD_ONLY = inspect.Parameter.KEYWORD_ONLY
PAIRS = [
    (cometmq.Producer, cometmq.aio.Producer),
    (cometmq.PushConsumer, cometmq.aio.PushConsumer),
    (cometmq.LitePullConsumer, cometmq.aio.LitePullConsumer),
    (cometmq.SimpleConsumer, cometmq.aio.SimpleConsumer),
    (cometmq.TransactionProducer, cometmq.aio.TransactionProducer),
    (cometmq.ReceivedMessage, cometmq.aio.ReceivedMessage),
    (cometmq.PulledMessage, cometmq.aio.PulledMessage),
]


def public(cls: type) -> dict[str, Any]:
    members = inspect.getmembers(cls, lambda m: inspect.isfunction(m) or isinstance(m, property))
    return {name: member for name, member in members if not name.startswith("_")}


@pytest.mark.parametrize(("blocking", "asynchronous"), PAIRS)
def test_both_faces_have_the_same_methods_and_parameters(
    blocking: type, asynchronous: type
) -> None:
    ours, theirs = public(blocking), public(asynchronous)
    # For the blocking face itself, for consumers and for traces.
    only_asynchronous = {"check_started", "close_unstarted", "posts_oneway"}
    only_asynchronous |= {"enter_block", "leave_block", "settle", "watch", "when_settled"}
    only_asynchronous |= {"acknowledge", "claim", "unclaim", "is_settled", "is_withdrawn"}
    assert set(ours) == set(theirs) - only_asynchronous
    for name in [*ours, "__init__"]:
        if isinstance(ours.get(name), property):
            continue
        expected = inspect.signature(getattr(asynchronous, name)).parameters
        assert inspect.signature(getattr(blocking, name)).parameters == expected, name


@pytest.mark.parametrize(
    ("asynchronous", "record"),
    [
        (cometmq.aio.Producer, ProducerOptions),
        (cometmq.aio.PushConsumer, PushConsumerOptions),
        (cometmq.aio.LitePullConsumer, LitePullConsumerOptions),
        (cometmq.aio.SimpleConsumer, SimpleConsumerOptions),
        (cometmq.aio.TransactionProducer, TransactionProducerOptions),
    ],
)
def test_signatures_list_every_option_with_its_default(asynchronous: type, record: Any) -> None:
    parameters = inspect.signature(asynchronous).parameters.values()
    defaults = {
        field.name: inspect.Parameter.empty
        if field.default is dataclasses.MISSING
        else field.default
        for field in dataclasses.fields(record)
    }
    assert {parameter.name: parameter.default for parameter in parameters} == defaults
    positional = [p.name for p in parameters if p.kind is not KEYWORD_ONLY]
    assert positional in (["group"], ["group", "listener"])


@pytest.mark.parametrize("face", [cometmq, cometmq.aio])
def test_the_types_of_options_can_be_asked_for(face: Any) -> None:
    for client in (face.Producer, face.PushConsumer, face.LitePullConsumer, face.SimpleConsumer):
        hints = get_type_hints(client.__init__)
        parameters = inspect.signature(client).parameters
        assert hints == {
            **{name: parameter.annotation for name, parameter in parameters.items()},
            "return": type(None),
        }
        assert hints["group"] is str
        assert hints["namesrv"] == str | Sequence[str] | None


def test_a_class_of_a_user_hands_options_on() -> None:
    class Mine(cometmq.aio.Producer):
        def __init__(self, team: str, **options: Any) -> None:
            super().__init__(f"{team}-orders", **options)

    assert Mine("billing", namesrv=NOBODY, retry_times=1).group == "billing-orders"
    with pytest.raises(CometMQError, match=r"Mine has no option 'retry_time'.*did you mean retry_"):
        Mine("billing", namesrv=NOBODY, retry_time=1)


@pytest.mark.parametrize("face", [cometmq, cometmq.aio])
def test_a_client_without_a_group_names_the_client_and_what_is_missing(face: Any) -> None:
    for client in (face.Producer, face.PushConsumer, face.LitePullConsumer, face.SimpleConsumer):
        with pytest.raises(TypeError, match=f"{client.__name__}: .*'group'"):
            client(namesrv=NOBODY)


@pytest.mark.parametrize("face", [cometmq, cometmq.aio])
def test_an_unknown_option_of_a_transaction_producer_is_named(face: Any) -> None:
    class Listener:
        def execute(self, message: Message, arg: Any) -> Any: ...

        def check(self, message: Message) -> Any: ...

    for option, meant in (("topcs", "topics"), ("retry_time", "retry_times")):
        with pytest.raises(CometMQError, match=f"TransactionProducer.*did you mean {meant}"):
            face.TransactionProducer("g", Listener(), namesrv=NOBODY, **{option: 1})


@pytest.mark.parametrize("face", [cometmq, cometmq.aio])
@pytest.mark.parametrize(
    "name",
    ["Producer", "TransactionProducer", "PushConsumer", "LitePullConsumer", "SimpleConsumer"],
)
def test_help_says_what_each_method_does(face: Any, name: str) -> None:
    client = getattr(face, name)
    # The options, which users of the blocking classes look for too.
    assert str(inspect.getdoc(getattr(cometmq.aio, name))) in str(inspect.getdoc(client))
    assert [
        member
        for member in dir(client)
        if not member.startswith("_") and not inspect.getdoc(getattr(client, member))
    ] == []


def test_the_blocking_methods_are_one_line_each() -> None:
    nodes = [
        node
        for module in (consumers, producers, transactions)
        for node in ast.parse(Path(str(module.__file__)).read_text()).body
    ]
    classes = {node.name: node for node in nodes if isinstance(node, ast.ClassDef)}
    for name in (
        "Producer",
        "TransactionProducer",
        "PushConsumer",
        "LitePullConsumer",
        "SimpleConsumer",
    ):
        for method in classes[name].body:
            if isinstance(method, ast.FunctionDef) and method.name != "__init__":
                assert len(method.body) == 1, f"{name}.{method.name} has rules of its own"


async def test_a_client_belongs_to_the_loop_that_started_it() -> None:
    producer = cometmq.aio.Producer("g", namesrv=NOBODY)
    await producer.start()

    def elsewhere() -> None:
        with pytest.raises(ClientStateError, match="on the loop that started it"):
            run(producer.send(Message("t", b"x")))

    await asyncio.to_thread(elsewhere)
    await producer.close()


async def test_an_unclosed_client_warns() -> None:
    held = [cometmq.aio.Producer("unclosed", namesrv=NOBODY)]
    await held[0].start()
    instance = held[0].check_started()
    with pytest.warns(ResourceWarning, match=r"unclosed Producer\('unclosed'\); call close\(\)"):
        held.clear()
    await instance.close()


async def test_an_unclosed_consumer_warns() -> None:
    listener = lambda _: ConsumeResult.SUCCESS  # noqa: E731 - one line says more here
    held = [cometmq.aio.PushConsumer("unclosed", listener, namesrv=NOBODY)]
    held[0].subscribe("t")
    await held[0].start()
    instance = held[0].check_started()

    with warnings.catch_warnings(record=True) as reported:
        warnings.simplefilter("always", ResourceWarning)

        def is_told() -> bool:
            # The traceback of "no route yet" keeps the consumer: since Python 3.12 in a cycle, since
            # 3.13 for a turn of the loop, too. A warning that was recorded keeps it as well.
            held.clear()
            gc.collect()
            return any("unclosed PushConsumer('unclosed')" in str(one.message) for one in reported)

        await until(is_told)
    await instance.close()


@pytest.mark.parametrize("closing", ["", "consumer.close(); producer.close()"])
def test_an_interpreter_ends_promptly_and_tells_of_unclosed_clients(closing: str) -> None:
    # Warnings of a consumer that finds no name server for 5 s are not meant.
    program = f"""
import cometmq, logging
logging.disable(logging.WARNING)
producer = cometmq.Producer("g", namesrv="{NOBODY}")
producer.start()
consumer = cometmq.PushConsumer("g", lambda _: cometmq.ConsumeResult.SUCCESS, namesrv="{NOBODY}")
consumer.subscribe("t")
consumer.start()
{closing}
"""
    command = [sys.executable, "-W", "always::ResourceWarning", "-c", program]
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=PROCESS_WAIT_S, check=True
    )
    assert ("2 blocking clients are unclosed at exit" in ended.stderr) is (closing == "")
    assert closing == "" or ended.stderr == ""


def test_clients_that_are_refused_do_not_warn() -> None:
    with pytest.raises(IllegalArgumentError):
        cometmq.aio.Producer("no group!", namesrv=NOBODY)
    gc.collect()


async def test_clients_of_one_instance_name_share_an_instance() -> None:
    first = cometmq.aio.Producer("g1", namesrv=NOBODY, instance_name="shared")
    second = cometmq.aio.Producer("g2", namesrv=NOBODY, instance_name="shared")
    alone = cometmq.aio.Producer("g1", namesrv=NOBODY)
    for client in (first, second, alone):
        await client.start()
    assert first.check_started() is second.check_started()
    assert first.client_id == second.client_id == "127.0.0.1@shared"
    assert alone.check_started() is not first.check_started()
    other = cometmq.aio.Producer("g3", namesrv="127.0.0.1:2", instance_name="shared")
    with pytest.raises(ClientStateError, match="give this client another instance_name"):
        await other.start()
    await first.close()
    with pytest.raises(CometMQError):  # still usable: fails on the way, not by its state
        await second.send(Message("t", b"x"))
    for client in (second, alone):
        await client.close()


async def test_a_consumer_starts_and_closes_without_a_cluster() -> None:
    consumer = cometmq.aio.PushConsumer("g", lambda _: ConsumeResult.SUCCESS, namesrv=NOBODY)
    consumer.subscribe("t")
    async with asyncio.timeout(WAIT_S):
        async with consumer:
            assert consumer.assigned_queues() == []


def test_the_name_servers_may_stand_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    with pytest.raises(IllegalArgumentError, match="NAMESRV_ADDR"):
        cometmq.Producer("g")
    monkeypatch.setenv("NAMESRV_ADDR", NOBODY)
    cometmq.Producer("g").close()


def test_blocking_clients_share_one_thread_that_ends_with_the_last() -> None:
    def loop_threads() -> list[str]:
        return [t.name for t in threading.enumerate() if t.name == "cometmq-client"]

    assert loop_threads() == []
    with cometmq.Producer("g1", namesrv=NOBODY):
        with cometmq.Producer("g2", namesrv=NOBODY):
            assert loop_threads() == ["cometmq-client"]
        assert loop_threads() == ["cometmq-client"]
    assert loop_threads() == []


def test_a_blocking_call_on_the_loop_thread_is_refused_instead_of_hanging() -> None:
    refused: list[BaseException | None] = []
    with cometmq.Producer("g", namesrv=NOBODY) as producer:
        reported = threading.Event()

        def callback(_result: object, _error: BaseException | None) -> None:
            for send in (producer.send, producer.send_oneway):
                try:
                    send(Message("t", b"x"))
                except ClientStateError as error:
                    refused.append(error)
            reported.set()

        future = producer.send_async(Message("t", b"x"), callback)
        assert reported.wait(WAIT_S)
        assert future.exception(60) is not None
    assert ["use cometmq.aio" in str(error) for error in refused] == [True, True]


def test_pending_sends_are_bounded() -> None:
    async def main() -> None:
        async with cometmq.aio.Producer("g", namesrv=NOBODY, max_pending_sends=2) as producer:
            pending = [producer.send_async(Message("t", b"x")) for _ in range(2)]
            with pytest.raises(CometMQError, match="the limit is max_pending_sends"):
                producer.send_async(Message("t", b"x"))
            outcomes = await asyncio.gather(*pending, return_exceptions=True)
            assert all(isinstance(outcome, CometMQError) for outcome in outcomes)

    run(main())
