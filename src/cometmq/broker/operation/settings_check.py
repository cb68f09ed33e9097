"""Find the settings of a broker that do not fit, do nothing, or contradict each other.

A setting that keeps a broker from starting is an error, found by the same functions as at a start. A
setting that lets it start and surprises its operator later is a warning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from cometmq.broker.config import BROKER_PROMISES, CONFIG_CLASSES, BrokerConfig
from cometmq.errors import ConfigError, ConnectError
from cometmq.model.reports.finding import Finding, error, ok, warning
from cometmq.model.route import MASTER_ID
from cometmq.remoting.client import split_address
from cometmq.replication.config import ReplicationConfig
from cometmq.runtime.clock import SYSTEM_CLOCK
from cometmq.runtime.configuration.check import find_mistakes
from cometmq.runtime.configuration.config import line_numbers, unknown_keys
from cometmq.runtime.sockets.addresses import (
    ANY_IPV4,
    Reach,
    bare_host,
    is_own_address,
    look_up,
    reach_of,
)
from cometmq.store.config import StoreConfig
from cometmq.store.retention.retention import surprises
from cometmq.tls.certificate_files import WARN_BEFORE_S
from cometmq.tls.server import certificate_left_s

_MOST_SHOWN: Final = 8
# Room in a frame besides the body of its message: header, topic, properties.
_FRAME_ROOM: Final = 64 * 1024
_RECORD_ROOM: Final = 64 * 1024


def check_settings(
    properties: Mapping[str, str],
    *,
    file: Path | None = None,
    name_servers: str | None = None,
    memory_bytes: int | None = None,
    address_of: Callable[[str], str | None] = look_up,
    is_own: Callable[[str], bool] = is_own_address,
) -> tuple[list[Finding], StoreConfig | None]:
    """Judge the entries of a broker's configuration; return the settings of its store, too.

    `name_servers` override `namesrvAddr`, as the option `-n` does at a start. The settings are None
    if they cannot be made. Blocks while the name in `brokerIP1` is looked up.
    """
    configs, misspelt, mistakes = find_mistakes(
        CONFIG_CLASSES, properties, server="broker", promises=BROKER_PROMISES
    )
    lines = line_numbers(file) if file is not None else {}
    findings = []
    for key, text in mistakes:
        what, _, remedy = text.partition(": ")
        findings.append(
            error(_key(key, lines), what, remedy or "correct the value; the broker does not start")
        )
    for key, text in misspelt:
        what, _, guess = text.partition("; ")
        findings.append(error(_key(key, lines), what, _remedy_of_guess(guess)))
    config, store_config, replication, _access = configs
    if config is not None:
        config.namesrv_addr = name_servers or config.namesrv_addr
        findings += _of_broker(config, address_of, is_own)
        findings += _of_tls(config)
        if replication is not None:
            findings += _of_role(config, replication)
    if store_config is not None:
        findings += _of_store(store_config, memory_bytes)
    if config is not None and store_config is not None:
        findings += _of_sizes(config, store_config)
    wrong = {mistake.key for mistake in (*misspelt, *mistakes)}
    silent = [k for k in unknown_keys(properties, *CONFIG_CLASSES) if k not in wrong]
    if silent:
        shown = ", ".join(silent[:_MOST_SHOWN]) + (", …" if len(silent) > _MOST_SHOWN else "")
        findings.append(ok("keys without effect", f"{len(silent)} of Java's: {shown}"))
    if not any(finding.severity for finding in findings):
        findings.insert(0, ok("settings", f"{len(properties)} keys, all of them fit"))
    return findings, store_config


def _key(key: str, lines: Mapping[str, int]) -> str:
    return f"{key} (line {lines[key]})" if key in lines else key


def _remedy_of_guess(guess: str) -> str:
    return (
        f"{guess} Correct the key, or start with --lenient"
        if guess
        else ("correct the key or take it out; --lenient starts all the same")
    )


def _of_broker(
    config: BrokerConfig,
    address_of: Callable[[str], str | None],
    is_own: Callable[[str], bool],
) -> Iterator[Finding]:
    if not config.name_servers():
        yield warning(
            "namesrvAddr",
            "not set",
            "no client finds the broker: set namesrvAddr, or start with -n HOST:9876",
        )
    for address in config.name_servers():
        try:
            split_address(address)
        except ConnectError as fault:
            yield error("namesrvAddr", str(fault), "give 10.0.0.1:9876;10.0.0.2:9876")
    yield check_advertised(config.broker_ip1, config.bind_address, address_of, is_own)
    if config.broker_ip2 is not None:
        yield check_advertised(
            config.broker_ip2, config.bind_address, address_of, is_own, key="brokerIP2"
        )


def _of_tls(config: BrokerConfig) -> Iterator[Finding]:
    key = "tls.server.certPath"
    try:
        left_s = certificate_left_s(config, SYSTEM_CLOCK)
    except ConfigError as fault:
        yield error(key, str(fault), "correct the file; the broker does not start")
        return
    if left_s is None:
        return
    days = f"{left_s / 86_400:.1f} days"
    if left_s > WARN_BEFORE_S:
        yield ok(key, f"the certificate is valid for {days} more")
    else:
        yield warning(
            key,
            f"the certificate expires in {days}" if left_s else "the certificate has expired",
            "put a new certificate and its key in place; no restart is needed",
        )


def _of_role(config: BrokerConfig, replication: ReplicationConfig) -> Iterator[Finding]:
    role = f"brokerRole={replication.broker_role}"
    if replication.is_slave and config.broker_id == MASTER_ID:
        yield error(
            "brokerId",
            f"{MASTER_ID} is the master's, and {role}",
            f"give an id of 1 or more that no other slave of {config.broker_name} has",
        )
    if not replication.is_slave and config.broker_id != MASTER_ID:
        yield warning(
            "brokerId",
            f"{config.broker_id} counts as {MASTER_ID}, because {role}",
            "take brokerId out, or set brokerRole=SLAVE",
        )


def check_advertised(
    advertised: str,
    bound: str,
    address_of: Callable[[str], str | None] = look_up,
    is_own: Callable[[str], bool] = is_own_address,
    *,
    key: str = "brokerIP1",
) -> Finding:
    """Judge the address that clients, or by `brokerIP2` slaves, are sent to.

    For the machine where the broker shall run.
    """
    check, peers = key, "slaves" if key == "brokerIP2" else "clients"
    address = address_of(advertised)
    if address is None:
        return error(
            check,
            f"{advertised} is neither an IP address nor a name with one",
            f"set {key} to the address at which {peers} reach this machine",
        )
    shown = advertised if address == advertised else f"{advertised} ({address})"
    reach, bound_reach = reach_of(address), _reach_or_none(bound)
    if reach is Reach.THIS_MACHINE and bound_reach is Reach.THIS_MACHINE:
        return ok(check, f"{shown}: for {peers} on this machine only, as bindAddress={bound} is")
    if reach is not Reach.ANYBODY:
        return warning(
            check,
            f"{shown} is reached by {reach.value}",
            f"set {key} to the address at which {peers} reach this machine",
        )
    if not is_own(address):
        return warning(
            check,
            f"{shown} is no address of this machine",
            "that is right behind a port mapping or a load balancer; else set "
            f"{key} to an address of this machine",
        )
    if ":" in address and bound == ANY_IPV4:
        return warning(
            check,
            f"{peers} are sent to {shown}, and the broker listens on {bound}, which is IPv4 only",
            "set bindAddress=::, which stands for all addresses, IPv4 and IPv6",
        )
    if bound_reach not in (Reach.NOBODY, None) and address != bare_host(bound):
        return warning(
            check,
            f"{peers} are sent to {shown}, and the broker listens on {bound}",
            "set bindAddress=0.0.0.0, or both keys to the same address",
        )
    return ok(check, f"{shown} is an address of this machine")


def _reach_or_none(bound: str) -> Reach | None:
    try:
        return reach_of(bare_host(bound))
    except ValueError:  # a name
        return None


def _of_store(config: StoreConfig, memory_bytes: int | None) -> Iterator[Finding]:
    for surprise in surprises(config):
        what, _, remedy = surprise.partition("; set ")
        yield warning(surprise.partition("=")[0], what, f"set {remedy or 'the value that counts'}")
    try:
        _ = config.delay_levels_ms
    except ConfigError as fault:
        yield error("messageDelayLevel", str(fault), "write delays such as 1s 5s 1m 2h")
    if not config.transient_store_pool_enable:
        return
    if not config.uses_transient_pool:
        yield warning(
            "transientStorePoolEnable",
            "has no effect with flushDiskType=SYNC_FLUSH",
            "take one of the two out: a message is on disk before it is acknowledged",
        )
        return
    pool = config.transient_store_pool_size * config.mapped_file_size_commit_log
    if memory_bytes is not None and pool > memory_bytes // 2:
        yield warning(
            "transientStorePoolSize",
            f"the pool takes {pool / 2**30:.1f} GiB of {memory_bytes / 2**30:.1f} GiB of memory",
            "lower transientStorePoolSize or take transientStorePoolEnable out",
            "half of the memory",
        )


def _of_sizes(config: BrokerConfig, store: StoreConfig) -> Iterator[Finding]:
    frame = config.max_frame_length
    if store.max_message_size > frame - _FRAME_ROOM:
        yield warning(
            "maxMessageSize",
            f"{store.max_message_size}: such messages do not fit into a frame",
            "lower maxMessageSize, or raise com.rocketmq.remoting.frameMaxLength here and in clients",
            f"{frame - _FRAME_ROOM} (com.rocketmq.remoting.frameMaxLength={frame})",
        )
    if store.max_message_size > store.mapped_file_size_commit_log - _RECORD_ROOM:
        yield warning(
            "maxMessageSize",
            f"{store.max_message_size}: such messages do not fit into a file of the log",
            "lower maxMessageSize, or raise mappedFileSizeCommitLog for a new store",
            f"mappedFileSizeCommitLog={store.mapped_file_size_commit_log}",
        )
    if config.enable_calc_filter_bit_map and not store.enable_consume_queue_ext:
        yield warning(
            "enableCalcFilterBitMap",
            "has no effect without enableConsumeQueueExt=true",
            "the bit maps are kept in the extension: set both keys or none",
        )
