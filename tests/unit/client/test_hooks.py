"""Hooks: which kinds a client takes, what their exceptions do, what they may change."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.client.fakes import FakeInstance, refuse, route, send_ok
from tests.waits import WAIT_S

import cometmq
import cometmq.aio
from cometmq.client.consuming.listeners.consume_hooks import Admission, ConsumeHooks
from cometmq.client.consuming.listeners.listening import ConsumeJob
from cometmq.client.hooks import (
    CheckForbiddenHook,
    CommunicationMode,
    ConsumeContext,
    ConsumeMessageHook,
    FilterContext,
    FilterMessageHook,
    Hook,
    HookList,
    SendContext,
    SendMessageHook,
)
from cometmq.client.namespaces import Namespace
from cometmq.client.producing.encoding import MessageEncoder
from cometmq.client.producing.sending import Sender, SendLimits
from cometmq.client.pulling.process_queue import ProcessQueue
from cometmq.errors import (
    ClientStateError,
    IllegalArgumentError,
    RemoteError,
    SendForbiddenError,
)
from cometmq.model.message import Message, MessageExt
from cometmq.model.queue import MessageQueue
from cometmq.model.results import ConsumeReport, ConsumeResult, SendResult
from cometmq.protocol.codes import RequestCode
from cometmq.protocol.messages.properties import decode_properties

SEND = RequestCode.SEND_MESSAGE_V2
NAMESRV = "127.0.0.1:1"


class Sees(SendMessageHook):
    def __init__(self) -> None:
        self.seen: list[tuple[str, SendContext]] = []

    def before_send(self, context: SendContext) -> None:
        assert context.result is None
        context.message.properties["added"] = "by a hook"
        self.seen.append(("before", context))

    def after_send(self, context: SendContext) -> None:
        self.seen.append(("after", context))


class Fails(SendMessageHook, CheckForbiddenHook):
    """A hook whose send methods raise, which has no consequence, and whose verdict refuses
    nothing.
    """

    def before_send(self, context: SendContext) -> None:
        raise RuntimeError("the hook's own fault")

    def after_send(self, context: SendContext) -> None:
        raise RuntimeError("the hook's own fault")

    def check_forbidden(self, context: SendContext) -> None:
        """Allow everything."""


class Forbids(CheckForbiddenHook):
    def __init__(self, error: Exception, broker: str | None = None) -> None:
        self.error = error
        self.broker = broker

    def check_forbidden(self, context: SendContext) -> None:
        if self.broker in (None, context.queue.broker_name):
            raise self.error


async def send(
    fake: FakeInstance,
    *hooks: Hook,
    mode: CommunicationMode = CommunicationMode.SYNC,
    namespace: str | None = None,
) -> SendResult:
    known = HookList(SendMessageHook, CheckForbiddenHook)
    for hook in hooks:
        known.add(hook)
    space = Namespace(namespace)
    encoder = MessageEncoder("g", fake.instance.unique_ids, namespace=space)
    outgoing = await encoder.encode(Message("t", b"body"))
    sender = Sender(fake.instance, SendLimits(), group="g", namespace=space, hooks=known)
    return await sender.send(outgoing, WAIT_S, mode)


@pytest.fixture
def cluster(fake: FakeInstance) -> FakeInstance:
    fake.remoting.routes |= {"t": route("a", "b"), "ns%t": route("a")}
    fake.remoting.answers[SEND] = send_ok
    return fake


async def test_a_send_hook_sees_the_attempt_and_its_result(cluster: FakeInstance) -> None:
    hook = Sees()
    result = await send(cluster, hook)
    (before, context), (after, same) = hook.seen
    assert (before, after) == ("before", "after")
    assert context is same
    assert (context.group, context.mode, context.body_length) == ("g", CommunicationMode.SYNC, 4)
    assert context.queue.broker_name + ":1" == context.address
    assert (context.result, context.error) == (result, None)


async def test_what_a_hook_adds_to_the_properties_is_sent(cluster: FakeInstance) -> None:
    await send(cluster, Sees())
    (command,) = cluster.remoting.sent(SEND)
    assert decode_properties(command.ext["i"])["added"] == "by a hook"


async def test_a_send_hook_sees_every_attempt_that_fails(cluster: FakeInstance) -> None:
    cluster.remoting.answers[SEND] = refuse(1)
    hook = Sees()
    with pytest.raises(RemoteError):
        await send(cluster, hook)
    errors = [context.error for when, context in hook.seen if when == "after"]
    assert len(errors) == 3
    assert all(isinstance(error, RemoteError) for error in errors)


async def test_a_send_hook_that_fails_changes_nothing(cluster: FakeInstance) -> None:
    hook = Sees()
    await send(cluster, Fails(), hook)
    assert [when for when, _ in hook.seen] == ["before", "after"]


async def test_hooks_get_the_names_that_users_know(cluster: FakeInstance) -> None:
    hook = Sees()
    result = await send(cluster, hook, namespace="ns")
    (command,) = cluster.remoting.sent(SEND)
    assert command.ext["b"] == "ns%t"
    context = hook.seen[0][1]
    assert (context.queue.topic, context.namespace, context.message.topic) == ("t", "ns", "t")
    assert result.queue.topic == "t"
    assert decode_properties(command.ext["i"])["INSTANCE_ID"] == "ns"


async def test_a_forbidden_message_is_not_sent(cluster: FakeInstance) -> None:
    cause = PermissionError("not on a Friday")
    with pytest.raises(SendForbiddenError, match=r"forbids the message to t@.*Friday") as e:
        await send(cluster, Forbids(cause))
    assert cluster.remoting.sent(SEND) == []
    chain: BaseException | None = e.value
    while chain is not None and chain is not cause:
        chain = chain.__cause__
    assert chain is cause


async def test_an_error_of_ours_reaches_the_caller_as_it_is(cluster: FakeInstance) -> None:
    with pytest.raises(ClientStateError, match="own"):
        await send(cluster, Forbids(ClientStateError("of its own")))


async def test_where_one_broker_is_forbidden_another_is_tried(cluster: FakeInstance) -> None:
    hook = Forbids(PermissionError(), "a")
    for _ in range(4):
        assert (await send(cluster, hook)).queue.broker_name == "b"
    everywhere = Forbids(PermissionError())
    with pytest.raises(SendForbiddenError, match="failed 1 times"):
        await send(cluster, everywhere, mode=CommunicationMode.ASYNC)


@pytest.mark.parametrize("client", ["producer", "consumer"])
def test_a_client_takes_only_hooks_that_it_calls(client: str) -> None:
    producer = cometmq.Producer("g", namesrv=NAMESRV)
    consumer = cometmq.PushConsumer("g", namesrv=NAMESRV)
    hooks: dict[str, Any] = {"producer": Sees(), "consumer": Admits()}
    for name, target in (("producer", producer), ("consumer", consumer)):
        if name == client:
            target.add_hook(hooks[client])
        else:
            with pytest.raises(IllegalArgumentError, match="is no hook of this client; it calls"):
                target.add_hook(hooks[client])
    with pytest.raises(IllegalArgumentError, match="RpcHook"):
        producer.add_hook(lambda: None)  # type: ignore[arg-type]  # the wrong type is the test


# Consuming


class Admits(FilterMessageHook):
    def filter_messages(self, context: FilterContext) -> None:
        assert context.queue == MessageQueue("t", "a", 0)
        context.messages[:] = [m for m in context.messages if m.body != b"no"]


class Breaks(FilterMessageHook):
    def filter_messages(self, context: FilterContext) -> None:
        raise RuntimeError("the hook's own fault")


def test_filter_hooks_take_messages_out_and_may_fail() -> None:
    hooks = HookList(FilterMessageHook)
    hooks.add(Breaks())
    hooks.add(Admits())
    admission = Admission(hooks, "g", Namespace("ns"))
    messages = [MessageExt("ns%t", body) for body in (b"yes", b"no", b"too")]
    left = admission(MessageQueue("ns%t", "a", 0), messages)
    assert [(m.topic, m.body) for m in left] == [("t", b"yes"), ("t", b"too")]


class Notes(ConsumeMessageHook):
    def __init__(self) -> None:
        self.contexts: list[ConsumeContext] = []

    def before_consume(self, context: ConsumeContext) -> None:
        self.contexts.append(context)


@pytest.mark.parametrize(
    ("result", "outcome", "seconds", "status"),
    [
        (ConsumeResult.SUCCESS, None, 0.0, "SUCCESS"),
        (ConsumeResult.RECONSUME_LATER, None, 0.0, "FAILED"),
        (ConsumeResult.RECONSUME_LATER, ValueError("x"), 99.0, "EXCEPTION"),
        (ConsumeResult.RECONSUME_LATER, "nothing of a meaning", 0.0, "RETURNNULL"),
        (ConsumeResult.SUCCESS, None, 10.0, "TIME_OUT"),
        (ConsumeResult.SUCCESS, ConsumeReport(), 0.0, "SUCCESS"),
    ],
)
def test_a_consume_hook_is_told_how_it_went(
    result: ConsumeResult, outcome: object, seconds: float, status: str
) -> None:
    hook = Notes()
    hooks = HookList(ConsumeMessageHook)
    hooks.add(hook)
    around = ConsumeHooks(hooks, "g", Namespace(None), 10.0)
    queue = MessageQueue("%RETRY%g", "a", 0)
    job = ConsumeJob(ProcessQueue(queue), [MessageExt("t", b"x")])
    context = around.before(queue, job.messages)
    job.result = result
    if outcome is not None:
        job.outcome = outcome
    around.after(context, job, seconds)
    (seen,) = hook.contexts
    assert (seen.status, seen.success) == (status, result is ConsumeResult.SUCCESS)
    assert (seen.group, seen.queue) == ("g", queue)
