"""The part of the one configuration that each broker of `cometmq broker --processes` gets."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from cometmq.broker.config import BrokerConfig, broker_configs
from cometmq.broker.processes import (
    Configs,
    check_ports,
    check_root,
    check_single,
    member_configs,
    ports_of,
)
from cometmq.errors import ConfigError


def configs(**keys: Any) -> Configs:
    given = {"brokerName": "m", "brokerIP1": "127.0.0.1", "storePathRootDir": "/r", **keys}
    return broker_configs({key: str(value) for key, value in given.items()}, source="test")


def members(count: int, **keys: Any) -> list[Configs]:
    return [member_configs(configs(**keys), index) for index in range(count)]


def free(_host: str, _port: int) -> None:
    """Say that every port is free."""


def test_names_stores_and_ports_follow_from_one_base() -> None:
    third, store, replication, _ = members(
        3,
        listenPort=20_000,
        metricsPromExporterPort=5557,
        storePathCommitLog="/logs",
        haListenPort=20_500,
        advertisedPort=30_000,
        advertisedHaPort=30_500,
        haMasterAddress="10.0.0.1:20500",
    )[2]
    assert (third.broker_name, third.listen_port) == ("m-2", 20_020)
    assert third.metrics_prom_exporter_port == 5577
    assert store.store_path_root_dir == Path("/r/m-2")
    assert store.store_path_commit_log == Path("/logs/m-2")
    assert replication.ha_listen_port == 20_520
    assert (third.advertised_port, replication.advertised_ha_port) == (30_020, 30_520)
    assert replication.ha_master_address == "10.0.0.1:20520"


def test_what_the_machine_chooses_is_left_to_it() -> None:
    config, _, replication, access = members(2, listenPort=0)[1]
    assert (config.listen_port, replication.ha_listen_port) == (0, 0)
    assert list(ports_of((config, configs()[1], replication, access))) == []
    assert replication.ha_master_address is None


def test_the_defaults_leave_room_for_all_ports_of_the_most_processes() -> None:
    check_ports(members(64, metricsExporterType="PROM"), free)


@pytest.mark.parametrize(
    ("keys", "reported"),
    [
        ({"listenPort": 65_530}, "listenPort=65530 leaves no port for the broker m-1"),
        ({"listenPort": 65_525}, "replication port of the broker m-1 would be 65536"),
        (
            {"metricsPromExporterPort": 10_921, "metricsExporterType": "PROM"},
            "10921 would be the metrics port of the broker m-0 and the port of m-1",
        ),
        ({"haListenPort": 10_909}, "10909 would be the VIP port of the broker m-0 and the repl"),
    ],
)
def test_ports_that_cannot_be_are_named_with_their_broker(
    keys: dict[str, Any], reported: str
) -> None:
    with pytest.raises(ConfigError, match=reported):
        check_ports(members(2, **keys), free)


@pytest.mark.parametrize(
    ("taken", "use", "key"),
    [
        (10_921, "port", "listenPort"),
        (10_922, "replication port", "listenPort"),
        (5567, "metrics port", "metricsPromExporterPort"),
    ],
)
def test_a_taken_port_is_named_with_its_broker_and_its_key(taken: int, use: str, key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_ports(
            members(3, metricsExporterType="PROM"),
            lambda _, port: "another process has the port" if port == taken else None,
        )
    reported = str(caught.value)
    assert f"m-1 cannot have its {use} {taken}: another process has the port" in reported
    assert f"set another {key}" in reported


def test_a_slave_listens_for_no_slaves() -> None:
    for slave in members(2, brokerRole="SLAVE", brokerId=1):
        assert [port.use for port in ports_of(slave)] == ["port", "VIP port"]
        assert slave[0].broker_id == 1


def test_a_broker_starts_without_its_vip_channel_if_it_must() -> None:
    check_ports(members(1), lambda _, port: "taken" if port == 10_909 else None)


# -- stores --


def store_in(directory: Path) -> None:
    (directory / "commitlog").mkdir(parents=True)
    (directory / "commitlog" / f"{0:020}").touch()


def test_the_store_of_a_single_broker_is_refused_with_the_commands_that_keep_it(
    tmp_path: Path,
) -> None:
    assert check_root(tmp_path / "new", ["m-0", "m-1"]) == []
    store_in(tmp_path)
    with pytest.raises(ConfigError, match=f"mkdir -p {tmp_path}/m-0 && find {tmp_path} "):
        check_root(tmp_path, ["m-0", "m-1"])


@pytest.mark.parametrize("log_root", ["root/commitlog", "logs", "root/my logs"])
def test_a_log_that_lies_elsewhere_is_found_and_moved_to_where_its_broker_looks(
    tmp_path: Path, log_root: str
) -> None:
    root, logs = tmp_path / "root", tmp_path / log_root
    (root / "config").mkdir(parents=True)
    logs.mkdir()
    (logs / f"{0:020}").touch()
    with pytest.raises(ConfigError) as caught:
        check_root(root, ["m-0", "m-1"], logs)
    commands = str(caught.value).partition("make it the store of m-0: ")[2]
    subprocess.run(["sh", "-ec", commands], check=True)
    assert (root / "m-0" / "config").is_dir()
    assert (logs / "m-0" / f"{0:020}").is_file()
    assert check_root(root, ["m-0", "m-1"], logs) == []


def test_brokers_of_another_name_do_not_begin_anew_beside_the_stores_of_these(
    tmp_path: Path,
) -> None:
    # As in a container without brokerName, which has another host name at each start.
    store_in(tmp_path / "4f2a-host-0")
    with pytest.raises(ConfigError, match="set brokerName=4f2a-host, rename the directories"):
        check_root(tmp_path, ["m-0", "m-1"])
    store_in(tmp_path / "m-1")
    assert check_root(tmp_path, ["m-0", "m-1"]) == []


def test_stores_that_fewer_processes_would_not_serve_are_named(tmp_path: Path) -> None:
    for name in ("m-0", "m-1", "m-2", "m-3", "other-5"):
        store_in(tmp_path / name)
    (tmp_path / "m-9").mkdir()
    assert check_root(tmp_path, ["m-0", "m-1"]) == ["m-2", "m-3"]


def test_a_single_broker_does_not_begin_anew_beside_the_stores_of_several(tmp_path: Path) -> None:
    check_single(tmp_path, "m")
    store_in(tmp_path / "m-0")
    with pytest.raises(ConfigError, match="give --processes"):
        check_single(tmp_path, "m")
    check_single(tmp_path, "other")
    store_in(tmp_path)
    check_single(tmp_path, "m")


def test_logs_of_several_brokers_beside_their_stores_are_none_of_a_single_one(
    tmp_path: Path,
) -> None:
    # As storePathCommitLog=ROOT/commitlog has it.
    (tmp_path / "commitlog" / "m-0").mkdir(parents=True)
    assert check_root(tmp_path, ["m-0", "m-1"]) == []
    (tmp_path / "checkpoint").touch()
    with pytest.raises(ConfigError, match="checkpoint"):
        check_root(tmp_path, ["m-0", "m-1"])


def test_the_default_name_is_the_hosts() -> None:
    one = configs()
    config = BrokerConfig()
    assert member_configs((config, *one[1:]), 0)[0].broker_name == f"{config.broker_name}-0"
