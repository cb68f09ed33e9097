"""Serve the metrics of a proxy, as our other servers do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from cometmq.access.doors import pages_protection
from cometmq.metrics import catalogue as m
from cometmq.metrics.exposition import Exposition
from cometmq.proxy.limit_catalogue import PROXY_LIMITS
from cometmq.remoting.http.monitoring import Monitoring
from cometmq.runtime.clock import Clock
from cometmq.runtime.sockets.addresses import host_name

if TYPE_CHECKING:
    from cometmq.proxy.server import Proxy


def monitoring_of(proxy: Proxy, clock: Clock) -> Monitoring:
    """Return what serves `/metrics`, `/health` and `/ready` of a proxy that listens; not started yet."""
    config = proxy.config
    front = config.front
    monitoring = Monitoring(
        front.metrics_prom_exporter_host.strip() or config.bind_address,
        front.metrics_prom_exporter_port,
        base={
            "cluster": front.rocketmq_cluster_name,
            "node_type": m.Server.PROXY.value,
            "node_id": f"{host_name()}:{proxy.port}",
        },
        clock=clock,
        handlers=None,
        holdings=None,
        connection_count=lambda: proxy.front.open_count,
        limit_hits=proxy.limit_hits,
        limits=PROXY_LIMITS,
        protection=pages_protection(config.control),
    )
    monitoring.collectors.append(lambda out: _collect(proxy, out))
    if proxy.tls is not None:
        monitoring.collectors.append(proxy.tls.collect)
    return monitoring


def _collect(proxy: Proxy, out: Exposition) -> Iterator[None]:
    out.begin(m.PROXY_CALLS)
    for (call, status), count in sorted(proxy.calls.counts.items()):
        out.sample(count, call, status)
    yield
    out.one(m.PROXY_CALLS_OPEN, proxy.calls.open_count)
    out.one(m.PROXY_STREAMS, proxy.clients.stream_count)
    out.one(m.PROXY_CLIENTS, len(proxy.clients))
    out.one(m.PROXY_WAITING, proxy.receives.waiting)
    out.one(m.PROXY_RENEWED, len(proxy.handles))
    out.begin(m.PROXY_RENEWALS)
    for outcome, count in proxy.handles.outcomes.items():
        out.sample(count, outcome)
    if proxy.gate is not None:
        out.begin(m.ACCESS_REFUSED)
        for reason, count in sorted(proxy.gate.refusals.items()):
            out.sample(count, reason)
        out.one(m.ACCESS_ACCOUNTS, proxy.gate.accounts.count)
    yield
