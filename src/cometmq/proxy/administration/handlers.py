"""List the handlers of the service Admin by call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, NamedTuple

from cometmq.proxy.administration import groups, members, messages, process, subscriptions, topics
from cometmq.proxy.administration.asking import Parts
from cometmq.proxy.calls import Caller
from cometmq.proxy.wire import admin_pb2 as admin

_Serve = Callable[[Parts, Caller, Any], Awaitable[Any]]

_CALLS: Final[dict[str, _Serve]] = {
    "ChangeLogLevel": process.change_log_level_of,
    "DescribeTopicStatus": topics.describe_topic_status,
    "ListSubscription": subscriptions.list_subscription,
    "DescribeSubscription": subscriptions.describe_subscription,
    "DeleteSubscription": subscriptions.delete_subscription,
    "DescribeGroupAccumulation": groups.describe_group_accumulation,
    "ListConsumerConnection": members.list_consumer_connection,
    "ResetGroupOffset": groups.reset_group_offset,
    "QueryMessage": messages.query_message,
    "PrintThreadStackTrace": members.print_thread_stack_trace,
    "VerifyMessage": messages.verify_message,
    "AdminSendMessage": messages.admin_send_message,
    "GetConsumerRunningInfo": members.get_consumer_running_info,
    "GetTopicRoute": topics.get_topic_route,
    "QueryTimeSpan": groups.query_time_span,
    "GetProxyRuntimeStats": process.get_proxy_runtime_stats,
}


class Handler(NamedTuple):
    """Serves one call. `outcome` is the class that carries a refusal; with `has_status` it is the answer's class."""

    serve: Callable[[Caller, Any], Awaitable[Any]]
    request: Any
    outcome: Any
    has_status: bool
    names_deployment: bool


class Administration:
    """Holds the handlers by call, and the connections behind them."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        methods = admin.DESCRIPTOR.services_by_name["Admin"].methods_by_name
        assert _CALLS.keys() == set(methods), (
            "a call without a handler, or a handler without a call"
        )
        self.handlers = {
            name: self._handler(methods[name], serve) for name, serve in _CALLS.items()
        }

    async def close(self) -> None:
        await self._parts.remoting.close()

    def _handler(self, method: Any, serve: _Serve) -> Handler:
        request = getattr(admin, method.input_type.name)
        answer = getattr(admin, method.output_type.name)
        has_status = "status" in method.output_type.fields_by_name
        return Handler(
            partial(serve, self._parts),
            request,
            answer if has_status else process.ChangedLevel,
            has_status,
            "deployment_name" in method.input_type.fields_by_name,
        )
