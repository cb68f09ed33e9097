"""Provide the base of clients that write message traces."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from cometmq.client.access import PLAIN
from cometmq.client.hooks import Hook
from cometmq.client.instance import ClientInstance, release_instance
from cometmq.client.lifecycle import AsyncClient, ClientOptions
from cometmq.client.limits import check_flag
from cometmq.forks import PROCESS
from cometmq.model.names import check_topic

if TYPE_CHECKING:
    from cometmq.client.tracing.dispatcher import TraceDispatcher


@dataclass(repr=False, kw_only=True)
class TracedOptions(ClientOptions):
    """Holds the options of clients that write traces; TracedClient explains them."""

    enable_trace: bool = False
    trace_topic: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.trace_topic is not None:
            check_topic(self.trace_topic)
        check_flag("enable_trace", self.enable_trace)


class TracedClient(AsyncClient):
    """Is the base of the producers and consumers.

    With `enable_trace` the client writes traces of its sends and consumptions to `trace_topic`
    (default: RMQ_SYS_TRACE_TOPIC), in the background.
    """

    _trace_kind: ClassVar[str]

    def __init__(self, options: TracedOptions) -> None:
        super().__init__(options)
        self._enable_trace = options.enable_trace
        self._trace_topic = options.trace_topic
        self._tracer: TraceDispatcher | None = None
        self._trace_instance: ClientInstance | None = None
        self._trace_hook: Hook | None = None

    @abstractmethod
    def _trace(self, dispatcher: TraceDispatcher) -> Hook:
        """Make the hook that traces what this client does."""

    def _begin_trace(self) -> None:
        if not self._enable_trace:
            return
        # Few clients write traces, and the import takes 3 ms.
        from cometmq.client.tracing.dispatcher import TraceDispatcher, trace_instance_name

        # Clients without credentials and TLS share one instance. Each other client has its own: a
        # shared one's name would have to hold secrets, to tell clients with different ones apart.
        name = trace_instance_name(self._namesrv, alone=self._access != PLAIN)
        self._trace_instance = self._acquire(name, None)
        self._tracer = TraceDispatcher(
            self._trace_instance,
            self._visible_group,
            self._trace_kind,
            topic=self._trace_topic,
            rpc_hooks=self._hooks.rpc,
        )
        self._tracer.start()
        self._trace_hook = self._trace(self._tracer)
        self._hooks.add(self._trace_hook)

    async def _end_trace(self) -> None:
        tracer, self._tracer = self._tracer, None
        if tracer is None:
            return
        assert self._trace_hook is not None, "set with the tracer"
        assert self._trace_instance is not None, "set with the tracer"
        self._hooks.remove(self._trace_hook)
        await tracer.close()
        await release_instance(self._trace_instance)

    def _abandon(self) -> None:
        PROCESS.keep(self._tracer)
        super()._abandon()
