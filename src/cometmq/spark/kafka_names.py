"""Know the options of Spark's Kafka connector, to which many users are accustomed.

docs/spark-options.md sets them beside ours; a test compares that page with these tables.
"""

from __future__ import annotations

from typing import Final

# Other names of our options, which mean the same.
ALIASES: Final = {
    "maxOffsetsPerTrigger": "maxMessagesPerTrigger",
    "minOffsetsPerTrigger": "minMessagesPerTrigger",
    "maxRecordsPerPartition": "maxMessagesPerPartition",
}

# The replacement for options that we do not have, by their names in Kafka's connector.
INSTEAD: Final = {
    "kafka.bootstrap.servers": "give namesrv, the addresses of the name servers",
    "kafka.group.id": "give group, the group that brokers see reading, or commitGroup, for which "
    "a stream commits its progress",
    "groupIdPrefix": "give group, the group that brokers see reading",
    "includeHeaders": "leave it out: the column properties has them always",
    "kafkaConsumer.pollTimeoutMs": "give timeoutMs, how long a broker that does not answer is "
    "asked again",
    "fetchOffset.numRetries": "give timeoutMs, how long a broker that does not answer is asked "
    "again",
    "fetchOffset.retryIntervalMs": "give timeoutMs, how long a broker that does not answer is "
    "asked again",
    "useDeprecatedOffsetFetching": "leave it out: offsets are always asked of brokers by the driver",
    "kafka.security.protocol": "give tls=true for servers that talk TLS, and accessKey where "
    "requests are signed",
    "kafka.ssl.truststore.location": "give tls=true and tlsCaFile, the certificates that may sign "
    "a server's",
    "kafka.ssl.keystore.location": "give tls=true, tlsCertFile and tlsKeyFile",
    "kafka.sasl.mechanism": "give accessKey with secretKeyFile or secretKeyEnv",
    "kafka.sasl.jaas.config": "give accessKey with secretKeyFile or secretKeyEnv",
    "kafka.compression.type": "give compression",
    "kafka.batch.size": "give batchBytes",
    "kafka.acks": "leave it out: brokers acknowledge every message, when it is as safe as their "
    "flushDiskType and brokerRole say",
    "kafka.max.in.flight.requests.per.connection": "give sendsInFlight",
    "kafka.enable.idempotence": "give delivery=exactly-once",
    "kafka.transactional.id": "give delivery=exactly-once, and transactionId for a batch",
}
_OF_KAFKA_ITSELF: Final = "kafka."
_ALIASES: Final = {name.lower(): ours for name, ours in ALIASES.items()}
_INSTEAD: Final = {name.lower(): advice for name, advice in INSTEAD.items()}


def ours(name: str) -> str | None:
    """Return our name of an option that has another one at Kafka's connector, else None."""
    return _ALIASES.get(name.lower())


def alias_of(official: str) -> str | None:
    """Return the other name of an option of ours, None if it has none."""
    return next((alias for alias, name in ALIASES.items() if name == official), None)


def instead_of(name: str) -> str | None:
    """Return what to do in place of an option of Kafka's connector, None for any other name."""
    advice = _INSTEAD.get(name.lower())
    if advice is None and name.lower().startswith(_OF_KAFKA_ITSELF):
        return "leave it out: settings of Kafka's clients mean nothing to RocketMQ's"
    return advice
