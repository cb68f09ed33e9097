"""Register subscribers and publishers with a broker, or with a router that brokers include."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

from faststream._internal.broker.registrator import Registrator
from faststream._internal.broker.router import BrokerRouter
from faststream._internal.constants import EMPTY
from faststream.middlewares import AckPolicy

from cometmq.faststream.config import RocketMQBrokerConfig
from cometmq.faststream.publisher import (
    RocketMQPublisher,
    RocketMQPublisherConfig,
    RocketMQPublisherSpecification,
    RocketMQPublisherSpecificationConfig,
)
from cometmq.faststream.subscriber import (
    RocketMQSubscriber,
    RocketMQSubscriberConfig,
    Selection,
    Work,
)
from cometmq.model.durations import Duration
from cometmq.model.message import MessageExt

if TYPE_CHECKING:
    from fast_depends.dependencies import Dependant
    from faststream._internal.parser import CodecProto
    from faststream._internal.types import BrokerMiddleware, CustomCallable


class RocketMQRegistrator(Registrator[MessageExt, RocketMQBrokerConfig]):
    """Provides the decorators of brokers and routers."""

    def subscriber(  # type: ignore[override]  # other arguments, as FastStream's own brokers
        self,
        topic: str,
        *,
        group: str,
        tags: str = "*",
        sql: str | None = None,
        predicate: str | None = None,
        from_newest: bool = False,
        max_workers: int = 1,
        prefetch: int = 16,
        invisible_ms: Duration = 60_000,
        longest_ms: Duration = 6 * 3600 * 1000,
        retry_delay_ms: Duration = 10_000,
        ack_policy: AckPolicy = EMPTY,
        no_reply: bool = False,
        dependencies: Sequence[Dependant] = (),
        parser: CustomCallable | None = None,
        decoder: CustomCallable | None = None,
        codec: CodecProto | None = None,
        persistent: bool = True,
        title: str | None = None,
        description: str | None = None,
        include_in_schema: bool = True,
    ) -> RocketMQSubscriber:
        """Have a handler work on the messages of `topic`, as a member of `group`.

        Each group receives each message. The members of a group, in any number of processes, share the messages.
        All of them must select the same messages, so an application has only one subscriber in a group. `tags`,
        `sql` and `predicate` select as in PushConsumer.subscribe. A group that never committed begins with the
        oldest messages, or with `from_newest` at the end.

        The handler works on up to `max_workers` messages at once (1 to 1,000), in no certain order. The subscriber
        receives up to `prefetch` messages at a time (1 to 32). While a message waits or the handler works on it,
        the subscriber hides it from the other members, for `invisible_ms` again and again, `longest_ms` at most.

        `ack_policy` decides how the subscriber settles a message. By default (NACK_ON_ERROR) it acknowledges the
        message when the handler ends. If the handler raises an exception, the message comes again after
        `retry_delay_ms`, and becomes a dead letter after the group's `retryMaxTimes` deliveries. With
        REJECT_ON_ERROR the first exception makes it a dead letter.

        Raises IllegalArgumentError for a wrong option, such as a number out of range.
        """
        selection = Selection(
            topic=topic, group=group, tags=tags, sql=sql, predicate=predicate, from_newest=from_newest
        )  # fmt: skip
        work = Work(
            max_workers=max_workers, prefetch=prefetch, invisible_ms=invisible_ms,
            longest_ms=longest_ms, retry_delay_ms=retry_delay_ms,
        )  # fmt: skip
        config = RocketMQSubscriberConfig(
            selection=selection,
            work=work,
            no_reply=no_reply,
            _ack_policy=ack_policy,
            _outer_config=cast("RocketMQBrokerConfig", self.config),
        )
        subscriber = RocketMQSubscriber.of(config, title, description, include_in_schema)
        super().subscriber(subscriber, persistent=persistent)
        return subscriber.add_call(
            parser_=parser or self._parser,
            decoder_=decoder or self._decoder,
            codec_=codec,
            dependencies_=dependencies,
        )

    def publisher(  # type: ignore[override]  # other arguments, as FastStream's own brokers
        self,
        topic: str,
        *,
        tags: str = "",
        headers: dict[str, str] | None = None,
        persistent: bool = True,
        title: str | None = None,
        description: str | None = None,
        schema: Any | None = None,
        include_in_schema: bool = True,
    ) -> RocketMQPublisher:
        """Return a publisher to `topic`. As a decorator it sends the results of the handler; `publish` sends others.

        Its messages have this tag and these headers, unless they bring their own.
        """
        config = cast("RocketMQBrokerConfig", self.config)
        publisher = RocketMQPublisher(
            RocketMQPublisherConfig(
                topic=topic, tags=tags, headers=headers or {}, _outer_config=config
            ),
            RocketMQPublisherSpecification(
                config,
                RocketMQPublisherSpecificationConfig(
                    topic=topic,
                    schema_=schema,
                    title_=title,
                    description_=description,
                    include_in_schema=include_in_schema,
                ),
            ),
        )
        super().publisher(publisher, persistent=persistent)
        return publisher

    def include_router(  # type: ignore[override]  # other arguments, as FastStream's own brokers
        self,
        router: RocketMQRegistrator,
        *,
        prefix: str = "",
        dependencies: Sequence[Dependant] = (),
        middlewares: Sequence[BrokerMiddleware[Any, Any]] = (),
        include_in_schema: bool | None = None,
    ) -> None:
        """Include the subscribers and publishers of a router. Raises TypeError for another kind of router."""
        if not isinstance(router, RocketMQRegistrator):
            raise TypeError(f"the router is a {type(router).__name__}; include a RocketMQRouter")
        super().include_router(
            router,
            prefix=prefix,
            dependencies=dependencies,
            middlewares=middlewares,
            include_in_schema=include_in_schema,
        )


class RocketMQRouter(RocketMQRegistrator, BrokerRouter[MessageExt, RocketMQBrokerConfig]):
    """Collects subscribers and publishers that `RocketMQBroker.include_router` adds to a broker.

    `prefix` stands before the names of their topics.
    """

    def __init__(
        self,
        prefix: str = "",
        *,
        dependencies: Sequence[Dependant] = (),
        middlewares: Sequence[BrokerMiddleware[Any, Any]] = (),
        routers: Iterable[RocketMQRegistrator] = (),
        parser: CustomCallable | None = None,
        decoder: CustomCallable | None = None,
        ack_policy: AckPolicy = EMPTY,
        include_in_schema: bool | None = None,
    ) -> None:
        super().__init__(
            handlers=(),
            routers=routers,
            config=RocketMQBrokerConfig(
                prefix=prefix,
                ack_policy=ack_policy,
                broker_dependencies=dependencies,
                broker_middlewares=middlewares,
                broker_parser=parser,
                broker_decoder=decoder,
                include_in_schema=include_in_schema,
            ),
        )
