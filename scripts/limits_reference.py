"""Write docs/reference/limits.md: every limit of the servers, out of the catalogue.

    .venv/bin/python scripts/limits_reference.py

The defaults come from the configuration classes and from the constants themselves.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, cast

from cometmq.broker.config import CONFIG_CLASSES
from cometmq.broker.operation.config_handlers import LIVE_KEYS
from cometmq.console.limit_catalogue import CONSOLE_LIMITS
from cometmq.metrics.catalogue import Server
from cometmq.metrics.limits import LIMITS, Limit
from cometmq.namesrv.config import NamesrvConfig
from cometmq.protocol.requests import REQUESTS
from cometmq.proxy.configuration.front_config import FrontConfig
from cometmq.proxy.configuration.keys import ProxySettings
from cometmq.proxy.limit_catalogue import PROXY_LIMITS
from cometmq.runtime.configuration.config import keys_of

PAGE: Final = Path(__file__).parents[1] / "docs" / "reference" / "limits.md"
HEAD: Final = """\
<!-- Written by scripts/limits_reference.py: change cometmq/metrics/limits.py, cometmq/proxy/limit_catalogue.py or cometmq/console/limit_catalogue.py, then run it. -->
# Limits

Everything that others send to a broker or a name server is bounded. A refusal says what there was, the name of the
limit, its value and what to do: `this broker has 200000 topics, the limit maxTopics is 200000; remove some, or raise it`. The
metric `cometmq_limit_hits_total` counts the refusals of each limit by its name, from 0 on, so that
an alert can report the first one ([metrics](metrics.md), alert `CometMQLimitHit`).

Names in capitals are constants of the code. All others are [configuration keys](configuration.md); those marked *live* may
be changed while the broker runs. Names of topics (127 characters) and groups (120) follow RocketMQ's rules, which are no
limits of this list.
"""
BODIES: Final = """\
## Bodies of requests

`MAX_BODY_LENGTH` is one limit for each request; a longer body is refused before it is decoded. Sends have
`maxMessageSize` instead, and requests that are not here need no body.

| request | bytes |
| --- | ---: |"""
CLIENTS: Final = """\
## Clients

CometMQ's clients defend themselves, too: they take no frame and no header beyond the two limits above, they unpack a compressed
message to at most 64 MiB (`MAX_BODY_BYTES` of `cometmq.client.pulling.received`; what would be longer is treated as a damaged
message, [operations](../operations.md) says how), and options bound what they hold: `max_pending_sends`,
`max_pending_bytes`, `pull_threshold_for_queue`, `pull_threshold_size_for_queue_bytes` and those beside them
([their options](configuration.md)). Their errors name the limit, too."""
CONSOLE: Final = """\
## The console

A console bounds what browsers send and what its pages read. Its refusals name the limit, its value and the remedy, too, in the language
of the page, and `/metrics` at its port counts them in the same metric (`node_type="console"`). All are constants.

| limit | value | bounds | beyond it | why real use stays below |
| --- | ---: | --- | --- | --- |"""
PROXY: Final = """\
## The proxy

A proxy bounds what gRPC clients send. Refusals are in the Status of an answer, and name the limit, its value and the remedy;
`/metrics` counts them in the same metric (`node_type="proxy"`). Names in capitals are constants, the others keys of
`rmq-proxy.json` ([the proxy](../proxy.md#settings)).

| limit | default | bounds | beyond it | why real use stays below |
| --- | ---: | --- | --- | --- |"""
TITLES: Final = {Server.BROKER: "broker", Server.NAMESRV: "name server"}


def default_of(
    limit: Limit, classes: tuple[type[Any], ...] = (*CONFIG_CLASSES, NamesrvConfig)
) -> int:
    """Return the default of a limit that is a key, or the value of one that is a constant.

    Raises ValueError if both or neither exist.
    """
    if limit.at:
        module, _, name = limit.at.partition(":")
        return int(getattr(importlib.import_module(module), name))
    if limit.name in SPECIAL:
        return SPECIAL[limit.name]
    defaults = set()
    for cls in classes:
        for key, field in zip(keys_of(cls), dataclasses.fields(cls), strict=True):
            if key == limit.name:
                defaults.add(int(cast("Any", field.default)))
    if len(defaults) != 1:
        raise ValueError(f"{limit.name} has the defaults {defaults} in the configuration classes")
    return defaults.pop()


# Limits with many values, or with one that the machine gives.
SPECIAL: Final = {"MAX_BODY_LENGTH": 0, "RLIMIT_NOFILE": 0}


def page() -> str:
    """Return the page."""
    return "\n".join(
        [
            HEAD,
            *_table(),
            "",
            BODIES,
            *_bodies(),
            "",
            CLIENTS,
            "",
            PROXY,
            *_of_proxy(),
            "",
            CONSOLE,
            *_of_console(),
            "",
        ]
    )


def _table() -> Iterator[str]:
    yield "| limit | default | bounds | beyond it | why real use stays below | servers |"
    yield "| --- | ---: | --- | --- | --- | --- |"
    for limit in LIMITS.values():
        live = " *live*" if limit.name in LIVE_KEYS else ""
        value = "see its text" if limit.name in SPECIAL else f"{default_of(limit):,} {limit.unit}"
        servers = ", ".join(TITLES[server] for server in limit.servers)
        yield (
            f"| `{limit.name}`{live} | {value} | {limit.bounds} | {limit.beyond} | {limit.ample} "
            f"| {servers} |"
        )


def _of_proxy() -> Iterator[str]:
    for limit in PROXY_LIMITS.values():
        default = 0 if limit.name in SPECIAL else default_of(limit, (FrontConfig, ProxySettings))
        value = "see its text" if limit.name in SPECIAL else f"{default:,} {limit.unit}"
        yield f"| `{limit.name}` | {value} | {limit.bounds} | {limit.beyond} | {limit.ample} |"


def _of_console() -> Iterator[str]:
    for limit in CONSOLE_LIMITS.values():
        value = f"{default_of(limit):,} {limit.unit}" if limit.at else "see its text"
        yield f"| `{limit.name}` | {value} | {limit.bounds} | {limit.beyond} | {limit.ample} |"


def _bodies() -> Iterator[str]:
    for row in sorted(REQUESTS.values(), key=lambda each: each.name):
        if row.body.max_length is not None:
            yield f"| {row.name} | {row.body.max_length:,} |"


if __name__ == "__main__":
    PAGE.write_text(page())
