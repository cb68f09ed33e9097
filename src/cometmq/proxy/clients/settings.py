"""Answer a client's settings with the merged ones (Java: GrpcClientSettingsManager)."""

from __future__ import annotations

from typing import Final

from cometmq.model.group import SubscriptionGroupConfig
from cometmq.proxy.configuration.keys import ProxySettings
from cometmq.proxy.wire import messaging_pb2 as wire

# The delays before each retry, in ms, for groups without a list of their own.
_NEXT_MS: Final = tuple(
    seconds * 1000
    for seconds in (
        1,
        5,
        10,
        30,
        *(60 * minutes for minutes in (*range(1, 11), 20, 30)),
        3600,
        7200,
    )
)


# The most steps of an exponential delay, as in Java.
_MOST_STEPS: Final = 32


def merged(
    given: wire.Settings, group: SubscriptionGroupConfig | None, own: ProxySettings
) -> wire.Settings:
    """Return the client's settings completed by the proxy's; `group` has those of a consumer's group."""
    settings = wire.Settings()
    settings.CopyFrom(given)
    settings.metric.on = False
    if group is None:
        _set_exponential(
            settings.backoff_policy,
            own.grpc_client_producer_max_attempts,
            own.grpc_client_producer_backoff_initial_millis,
            own.grpc_client_producer_backoff_max_millis,
            own.grpc_client_producer_backoff_multiplier,
        )
        settings.publishing.max_body_size = own.max_message_size
        settings.publishing.validate_message_type = own.enable_topic_message_type_check
        return settings
    _set_retries(settings.backoff_policy, group)
    subscription = settings.subscription
    subscription.fifo = group.consume_message_orderly
    subscription.receive_batch_size = own.grpc_client_consumer_long_polling_batch_size
    subscription.long_polling_timeout.FromMilliseconds(
        own.grpc_client_consumer_max_long_polling_timeout_millis
    )
    return settings


def retry_delay_ms(group: SubscriptionGroupConfig, reconsume_times: int) -> int:
    """Return how long a broker waits before the next delivery (Java: CustomizedRetryPolicy, which skips the first
    two delays, and ExponentialRetryPolicy).
    """
    policy = wire.RetryPolicy()
    _set_retries(policy, group)
    if policy.HasField("exponential_backoff"):
        backoff = policy.exponential_backoff
        most_ms = float(backoff.max.ToMilliseconds())
        delay_ms = float(backoff.initial.ToMilliseconds())
        # A producer may write any number of deliveries into its message.
        for _ in range(min(reconsume_times, _MOST_STEPS)):
            delay_ms = min(delay_ms * backoff.multiplier, most_ms)
        return int(delay_ms)
    delays = policy.customized_backoff.next
    return delays[min(reconsume_times + 2, len(delays) - 1)].ToMilliseconds()


def _set_retries(policy: wire.RetryPolicy, group: SubscriptionGroupConfig) -> None:
    attempts = group.retry_max_times + 1
    given = group.group_retry_policy
    exponential = given.get("exponentialRetryPolicy")
    if given.get("type") == "EXPONENTIAL" and isinstance(exponential, dict):
        _set_exponential(
            policy,
            attempts,
            int(exponential.get("initial", 5000)),
            int(exponential.get("max", 2 * 3600 * 1000)),
            float(exponential.get("multiplier", 2)),
        )
        return
    customized = given.get("customizedRetryPolicy")
    delays = customized.get("next") if isinstance(customized, dict) else None
    policy.Clear()
    policy.max_attempts = attempts
    for delay_ms in delays or _NEXT_MS:
        policy.customized_backoff.next.add().FromMilliseconds(int(delay_ms))


def _set_exponential(
    policy: wire.RetryPolicy, attempts: int, first_ms: int, last_ms: int, multiplier: float
) -> None:
    policy.Clear()
    policy.max_attempts = attempts
    backoff = policy.exponential_backoff
    backoff.initial.FromMilliseconds(first_ms)
    backoff.max.FromMilliseconds(last_ms)
    backoff.multiplier = multiplier
