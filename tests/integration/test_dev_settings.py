"""`cometmq dev -c FILE --set KEY=VALUE`: what the servers get, and what the options decide."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.integration.test_dev_json import dev, reported
from typer.testing import CliRunner

from cometmq import AdminClient
from cometmq.cli.dev.screen import DevScreen
from cometmq.cli.dev.servers import DevPlan, DevServers
from cometmq.cli.dev.settings import NO_SETTINGS, dev_settings
from cometmq.cli.main import app
from cometmq.errors import ConfigError


def plan(root: Path, file: Path | None = None, *given: str) -> DevPlan:
    return DevPlan(
        root=root,
        host="127.0.0.1",
        port=0,
        broker_port=0,
        settings=dev_settings(file, given),
    )


async def test_filters_of_sql92_are_served_unasked(tmp_path: Path) -> None:
    servers = DevServers(DevPlan(root=tmp_path, host="127.0.0.1", port=0, broker_port=0))
    await servers.start()
    try:
        assert servers.masters[0].broker.config.enable_property_filter
    finally:
        await servers.close()
    assert (
        dev_settings(None, ["enablePropertyFilter=false"]).of_brokers["enablePropertyFilter"]
        == "false"
    )


def test_an_option_overrides_the_file_and_the_broker_shows_it(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("brokerClusterName=shop\ntransactionTimeOut=1000\ndeleteWhen=05\n")
    options = ("-c", str(file), "--set", "transactionTimeOut=60000", "--no-console")
    with dev(*options) as process:
        found = reported(process)
        assert found["brokers"][0]["cluster"] == "shop"
        with AdminClient(found["namesrv"]) as admin:
            [shown] = admin.brokers.config().values()
        assert (shown["transactionTimeOut"], shown["deleteWhen"]) == ("60000", "05")


async def test_a_broker_conf_of_another_machine_runs_and_the_screen_names_what_it_leaves_aside(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "broker.conf"
    file.write_text(
        "brokerName=broker-a\nlistenPort=10911\nnamesrvAddr=10.0.0.1:9876\n"
        "storePathRootDir=/nowhere/store\nbrokerRole=SYNC_MASTER\n"
    )
    servers = DevServers(plan(tmp_path / "store", file))
    await servers.start()
    try:
        broker = servers.masters[0].broker
        assert broker.config.broker_name == "dev"
        assert broker.replication.broker_role == "SYNC_MASTER"
        screen = DevScreen(servers, temporary=True, keeps_log=False)
        screen.show()
        shown = capsys.readouterr().out
    finally:
        await servers.close()
    assert "brokerName, listenPort, namesrvAddr, storePathRootDir: options decide these" in shown


async def test_a_key_of_the_name_server_reaches_it(tmp_path: Path) -> None:
    servers = DevServers(plan(tmp_path, None, "scanNotActiveBrokerInterval=1234"))
    assert servers.namesrv.config.scan_not_active_broker_interval == 1234


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ("transactionTimeOut", "this is no KEY=VALUE; write, say, --set transactionTimeOut=60000"),
        ("listenPort=1", "cometmq dev takes listenPort from --port and --broker-port"),
        ("brokerRole=SLAVE", "--slaves adds slaves"),
        ("transactionTimeout=1", "did you mean transactionTimeOut"),
        ("transactionTimeOut=soon", "transactionTimeOut"),
        ("aclEnable=true", "add --no-console"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_with_its_remedy(given: str, complaint: str) -> None:
    done = CliRunner().invoke(
        app, ["dev", "--port", "0", "--broker-port", "0", "--console-port", "0", "--set", given]
    )
    assert done.exit_code != 0
    assert complaint in f"{done.output}{done.exception}"


def test_settings_of_nobody_are_the_defaults() -> None:
    assert dev_settings(None, ()) == NO_SETTINGS
    with pytest.raises(ConfigError, match="cannot be read"):
        dev_settings(Path("/nowhere/broker.conf"), ())
