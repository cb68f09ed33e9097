"""The files of `deploy/` and the operator's page name commands, settings and ports that exist.

Whether a container, a unit or a cluster starts with them is not shown here.
"""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml
from examples.service.orders import TOPIC
from examples.service.settings import Settings

from cometmq.broker.config import CONFIG_CLASSES, BrokerConfig
from cometmq.broker.operation.settings_check import check_settings
from cometmq.broker.server import VIP_PORT_DISTANCE
from cometmq.cli.main import app
from cometmq.console.config import PORT as CONSOLE_PORT
from cometmq.metrics.catalogue import METRICS
from cometmq.model.reports.finding import Severity
from cometmq.namesrv.config import DEFAULT_PORT, NamesrvConfig
from cometmq.runtime.configuration.config import parse_properties, unknown_keys

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
DOCKERFILE = DEPLOY / "docker" / "Dockerfile"
MONITORING = DEPLOY / "monitoring"
COMPOSE = DEPLOY / "docker" / "compose.yaml"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
MANIFESTS = [DEPLOY / "kubernetes" / name for name in ("namesrv.yaml", "broker.yaml")]
PAGE = ROOT / "docs" / "operations.md"
SERVICE = ROOT / "examples" / "service"
HOME = "/var/lib/cometmq"
LONGEST_STOP_S = 60

# Of systemd.unit, systemd.service, systemd.exec, systemd.kill, systemd.resource-control. One that
# does not stand here is misspelt, or has to be looked up and added.
DIRECTIVES = frozenset(
    [
        "After",
        "CapabilityBoundingSet",
        "Description",
        "Documentation",
        "Environment",
        "ExecStart",
        "Group",
        "KillMode",
        "KillSignal",
        "LimitNOFILE",
        "LockPersonality",
        "NoNewPrivileges",
        "PrivateDevices",
        "PrivateTmp",
        "ProtectClock",
        "ProtectControlGroups",
        "ProtectHome",
        "ProtectHostname",
        "ProtectKernelLogs",
        "ProtectKernelModules",
        "ProtectKernelTunables",
        "ProtectSystem",
        "Restart",
        "RestartPreventExitStatus",
        "RestartSec",
        "RestrictAddressFamilies",
        "RestrictNamespaces",
        "RestrictRealtime",
        "RestrictSUIDSGID",
        "StateDirectory",
        "StateDirectoryMode",
        "SystemCallArchitectures",
        "SystemCallFilter",
        "TimeoutStopSec",
        "Type",
        "UMask",
        "User",
        "WantedBy",
        "Wants",
    ]
)


def command_fault(words: list[str]) -> str | None:
    """Return why the command line does not take `words`, None if it does. Nothing is run."""
    name, rest = "cometmq", list(words)
    command: Any = typer.main.get_command(app)
    try:
        while True:
            context: Any = command.make_context(name, rest)
            if not hasattr(command, "resolve_command"):
                return None
            rest = [*context._protected_args, *context.args]
            name, command, rest = command.resolve_command(context, rest)
    except SystemExit:
        return None  # shows the version or the help
    except Exception as error:  # noqa: BLE001 - typer's errors are not public
        if type(error).__name__ in ("Exit", "NoArgsIsHelpError"):
            return None
        return f"{' '.join(words)}: {error}"


def commands_of(text: str) -> Iterator[list[str]]:
    """Find `cometmq …` at the beginning of lines of a shell, behind `exec` and after a prompt."""
    pattern = r"^\s*(?:\$ |#   |exec )*(?:/opt/cometmq/bin/)?cometmq ([^\n|>&;#]+)"
    for match in re.finditer(pattern, text, re.MULTILINE):
        yield shlex.split(match[1])


def documents(path: Path) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all(path.read_text()) if document]


def manifests(kind: str) -> dict[str, dict[str, Any]]:
    return {
        document["metadata"]["name"]: document
        for path in MANIFESTS
        for document in documents(path)
        if document["kind"] == kind
    }


def containers_of(template: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = template["spec"]["containers"]
    return found


def containers() -> list[dict[str, Any]]:
    return [
        container
        for workload in manifests("StatefulSet").values()
        for container in containers_of(workload["spec"]["template"])
    ]


def settings_faults(properties: dict[str, str]) -> list[str]:
    assert unknown_keys(properties, *CONFIG_CLASSES) == []
    found, _ = check_settings(properties, address_of=lambda host: "10.0.0.5", is_own=lambda _: True)
    return [f"{f.check}: {f.value}" for f in found if f.severity is not Severity.OK]


def compose() -> dict[str, Any]:
    (project,) = documents(COMPOSE)
    return project


def cometmq_services() -> dict[str, Any]:
    services = compose()["services"]
    return {name: service for name, service in services.items() if service["image"] == "cometmq"}


def compose_settings(source: str) -> dict[str, str]:
    text = re.sub(r"\$\{\w+:\?[^}]*\}", "10.0.0.5", compose()["configs"][source]["content"])
    return parse_properties(text, source)


# The checks themselves


@pytest.mark.parametrize(
    "line", ["brokr", "broker --no-such", "probe", "probe nobody", "store check", "doctor -o xml"]
)
def test_a_command_that_does_not_exist_is_found(line: str) -> None:
    assert command_fault(line.split()) is not None


@pytest.mark.parametrize(
    "line",
    ["broker -c x -n y", "probe broker 127.0.0.1:1 --ready", "store check /x", "--version", "-h"],
)
def test_a_command_that_exists_is_not(line: str) -> None:
    assert command_fault(line.split()) is None


def test_commands_are_found_in_texts() -> None:
    text = (
        "cometmq dev\n  exec cometmq broker -c x\n#   /opt/cometmq/bin/cometmq doctor\nof cometmq x"
    )
    assert [words[0] for words in commands_of(text)] == ["dev", "broker", "doctor"]


# All files


@pytest.mark.parametrize(
    "path", [p for p in sorted(DEPLOY.rglob("*")) if p.is_file()] + [PAGE], ids=lambda p: p.name
)
def test_commands_in_comments_and_pages_exist(path: Path) -> None:
    found = list(commands_of(path.read_text()))
    assert [fault for words in found if (fault := command_fault(words))] == []


def test_the_operators_page_shows_commands() -> None:
    assert len(list(commands_of(PAGE.read_text()))) > 5


# The image


def test_the_image_is_made_of_files_that_exist_and_are_let_through() -> None:
    let_through = {
        line[1:]
        for line in DOCKERFILE.with_suffix(".dockerignore").read_text().splitlines()
        if line.startswith("!")
    }
    copied = {
        source
        for match in re.finditer(r"^COPY (?!--from)(.+)$", DOCKERFILE.read_text(), re.MULTILINE)
        for source in match[1].split()[:-1]
    }
    assert copied == let_through
    assert [path for path in copied if not (ROOT / path).exists()] == []


def test_the_image_runs_servers_as_a_user_without_rights() -> None:
    final = DOCKERFILE.read_text().rpartition("\nFROM ")[2]
    (user,) = re.findall(r"^USER (\d+):(\d+)$", final, re.MULTILINE)
    assert user == ("10001", "10001")
    assert f"HOME={HOME}" in final
    assert re.findall(r"^EXPOSE (.+)$", final, re.MULTILINE) == [
        (
            f"{DEFAULT_PORT} {BrokerConfig.listen_port} {BrokerConfig.listen_port - VIP_PORT_DISTANCE}"
            f" {CONSOLE_PORT}"
        )
    ]


def test_the_health_check_of_the_image_is_a_command() -> None:
    """A container of the console was reported as unhealthy, because only brokers and name servers
    were asked.
    """
    (check,) = re.findall(r'CMD (\["/bin/sh", .+\])$', DOCKERFILE.read_text(), re.MULTILINE)
    *servers, console = json.loads(check)[2].split(" || ")
    asked = [part.split()[1:] for part in servers]
    assert [words[1] for words in asked] == ["broker", "namesrv"]
    assert [fault for words in asked if (fault := command_fault(words))] == []
    python, option, code = shlex.split(console)
    assert (python, option) == ("python", "-c")
    compile(code, "health check", "exec")
    assert f"http://127.0.0.1:{CONSOLE_PORT}/healthz" in code


# The compose file


def test_compose_starts_and_asks_servers_by_commands_that_exist() -> None:
    for name, service in cometmq_services().items():
        assert command_fault(service["command"]) is None, name
        first, second, *asked = service["healthcheck"]["test"]
        assert (first, second) == ("CMD", "cometmq")
        assert command_fault(asked) is None, name
        assert service["stop_grace_period"] == "2m"


def test_compose_hands_out_ports_that_are_the_same_inside_and_outside() -> None:
    services = cometmq_services()
    brokers = {name: service for name, service in services.items() if name.startswith("broker")}
    assert len(brokers) == 2
    for name, service in brokers.items():
        settings = compose_settings(service["configs"][0]["source"])
        assert settings_faults(settings) == []
        port = int(settings["listenPort"])
        wanted = [f"{p}:{p}" for p in (port, port - VIP_PORT_DISTANCE)]
        assert service["ports"] == wanted
        assert service["healthcheck"]["test"][-1] == f"127.0.0.1:{port}"
        assert service["command"][-1] == service["configs"][0]["target"]
        assert settings["storePathRootDir"].startswith(f"{HOME}/")
        assert service["volumes"] == [f"{name}:{HOME}"]
        assert settings["brokerName"] == name
        servers = [server for server in services if server.startswith("namesrv")]
        assert settings["namesrvAddr"] == ";".join(f"{s}:{DEFAULT_PORT}" for s in servers)
        assert list(service["depends_on"]) == servers
    volumes = {
        v.partition(":")[0] for s in compose()["services"].values() for v in s.get("volumes", ())
    }
    assert {volume for volume in volumes if "/" not in volume} == compose()["volumes"].keys()


def test_compose_has_prometheus_ask_all_servers_and_grafana_show_what_it_has() -> None:
    project = compose()
    servers = cometmq_services()
    (scraped,) = documents(MONITORING / "prometheus.yaml")
    job, clients = scraped["scrape_configs"]
    port = BrokerConfig.metrics_prom_exporter_port
    assert port == NamesrvConfig.metrics_prom_exporter_port
    assert job["static_configs"] == [{"targets": [f"{name}:{port}" for name in servers]}]
    for service in servers.values():
        (given,) = service["configs"]
        assert service["command"][1:] == ["-c", given["target"]]
        assert compose_settings(given["source"])["metricsExporterType"] == "PROM"
    mounted = {
        config["target"]: project["configs"][config["source"]]["file"]
        for name in ("prometheus", "grafana")
        for config in project["services"][name]["configs"]
    }
    assert [file for file in mounted.values() if not (COMPOSE.parent / file).is_file()] == []
    # Rules are named relative to the configuration.
    rules = {f"/etc/prometheus/{name}" for name in scraped["rule_files"]}
    assert rules <= mounted.keys()
    (provider,) = documents(MONITORING / "grafana" / "dashboards.yaml")
    path = provider["providers"][0]["options"]["path"]
    (volume,) = project["services"]["grafana"]["volumes"]
    assert volume == f"../monitoring/dashboards:{path}:ro"
    (found,) = documents(MONITORING / "grafana" / "datasource.yaml")
    for source in found["datasources"]:
        asked = project["services"][source["type"]]["ports"][-1].rpartition(":")[2]
        assert source["url"] == f"http://{source['type']}:{asked}"
    for name in ("prometheus", "grafana", "jaeger"):
        assert all(p.startswith("127.0.0.1:") for p in project["services"][name]["ports"])
    # Alerts are about the jobs of servers; clients come and go.
    assert not clients["job_name"].startswith("cometmq")


def test_the_services_compose_file_extends_this_one() -> None:
    (example,) = documents(SERVICE / "compose.yaml")
    project = compose()
    api, billing = (example["services"][name] for name in ("orders-api", "billing"))
    given = dataclasses.fields(Settings)
    assert set(api["environment"]) == {"NAMESRV_ADDR", "OTEL_EXPORTER_OTLP_ENDPOINT"}
    assert api["environment"]["NAMESRV_ADDR"] == compose_settings("broker-a")["namesrvAddr"]
    otlp = api["environment"]["OTEL_EXPORTER_OTLP_ENDPOINT"].rpartition(":")[2]
    assert f"127.0.0.1:{otlp}:{otlp}" in project["services"]["jaeger"]["ports"]
    # All variables are read, of compose file and image.
    dockerfile = (SERVICE / "Dockerfile").read_text()
    set_there = dict(re.findall(r"(\w+)=(\S+)", re.findall(r"^ENV (.+)$", dockerfile, re.M)[0]))
    source = (SERVICE / "settings.py").read_text()
    read = set(re.findall(r'found\.get\("(\w+)"', source))
    assert len(read) == len(given)
    assert {*api["environment"], *set_there} <= read
    # Prometheus scrapes both, by a file that its job of clients reads.
    (scraped,) = documents(MONITORING / "prometheus.yaml")
    (target,) = [each["target"] for each in example["services"]["prometheus"]["configs"]]
    pattern = scraped["scrape_configs"][1]["file_sd_configs"][0]["files"][0]
    assert fnmatch(target, f"/etc/prometheus/{pattern}")
    (listed,) = yaml.safe_load(example["configs"]["orders-targets"]["content"])
    port = set_there["METRICS_PORT"]
    assert listed["targets"] == [f"orders-api:{port}", f"billing:{port}"]
    assert billing["volumes"] == [f"orders:{set_there['LEDGER']}"]
    # The topic is made by a command that exists, on the servers that are there.
    (made,) = [s for s in example["services"].values() if s.get("image") == "cometmq"]
    assert command_fault(made["command"]) is None
    assert (
        set(made["depends_on"]) | {made["command"][3].partition(":")[0]}
        <= cometmq_services().keys()
    )
    assert made["command"][-1] == TOPIC


def test_the_services_image_is_made_of_files_that_exist_and_are_let_through() -> None:
    dockerfile = SERVICE / "Dockerfile"
    ignored = (SERVICE / "Dockerfile.dockerignore").read_text().splitlines()
    let_through = {line[1:] for line in ignored if line.startswith("!")}
    lines = re.findall(r"^COPY (.+)$", dockerfile.read_text(), re.MULTILINE)
    copied = {source for line in lines for source in line.split()[:-1]}
    assert copied == let_through
    assert [path for path in copied if not (ROOT / path).exists()] == []
    assert "USER 10002:10002" in dockerfile.read_text()


# The units


def directives(unit: Path) -> list[tuple[str, str]]:
    lines = [line for line in unit.read_text().splitlines() if line and line[0] not in "#["]
    return [(line.partition("=")[0], line.partition("=")[2]) for line in lines]


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_a_unit_has_known_directives_and_starts_a_command_that_exists(unit: Path) -> None:
    given = directives(unit)
    assert [name for name, _ in given if name not in DIRECTIVES] == []
    values = dict(given)
    program, *words = shlex.split(values["ExecStart"].replace("%i", "broker-a"))
    assert program == "/opt/cometmq/bin/cometmq"
    assert command_fault(words) is None
    assert values["RestartPreventExitStatus"] == "2"
    assert values["Environment"] == f"HOME=/var/lib/{values['StateDirectory']}"
    assert (values["User"], values["KillSignal"]) == ("cometmq", "SIGTERM")
    assert "NOFILE=655350" in unit.read_text()


def test_a_brokers_unit_waits_for_a_clean_stop() -> None:
    (broker,) = [unit for unit in UNITS if "broker" in unit.name]
    assert int(dict(directives(broker))["TimeoutStopSec"]) >= LONGEST_STOP_S


# Kubernetes


def test_kustomize_names_files_that_exist() -> None:
    (kustomization,) = documents(DEPLOY / "kubernetes" / "kustomization.yaml")
    assert kustomization["resources"] == [path.name for path in MANIFESTS]
    images = {image["name"] for image in kustomization["images"]}
    assert {container["image"] for container in containers()} == images


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_no_key_of_a_manifest_is_given_twice(path: Path) -> None:
    """Kubernetes' strict decoding refuses a key that a YAML merge brings and the map has itself."""
    assert "<<:" not in path.read_text()


@pytest.mark.parametrize("kind", ["Service", "PodDisruptionBudget", "StatefulSet"])
def test_every_part_selects_the_pods_of_its_workload(kind: str) -> None:
    found = manifests(kind)
    assert found.keys() == manifests("StatefulSet").keys()
    for name, manifest in found.items():
        workload = manifests("StatefulSet")[name]["spec"]
        selector = manifest["spec"]["selector"]
        wanted = selector.get("matchLabels", selector)
        assert wanted.items() <= workload["template"]["metadata"]["labels"].items()
        assert workload["serviceName"] == name


@pytest.mark.parametrize(
    ("probe", "path"),
    [("startupProbe", "/health"), ("livenessProbe", "/health"), ("readinessProbe", "/ready")],
)
def test_probes_ask_pages_that_servers_have(probe: str, path: str) -> None:
    """Only readiness may depend on the disk: a restart frees none."""
    for container in containers():
        assert container[probe]["httpGet"] == {"path": path, "port": "metrics"}
        assert "metrics" in [port["name"] for port in container["ports"]]
        assert container[probe]["timeoutSeconds"] >= 10


def test_pods_tell_prometheus_where_their_metrics_are() -> None:
    examples = DEPLOY / "kubernetes" / "examples"
    (monitor,) = documents(examples / "podmonitor.yaml")
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    for name, workload in manifests("StatefulSet").items():
        template = workload["spec"]["template"]
        ports = {p["name"]: p["containerPort"] for c in containers_of(template) for p in c["ports"]}
        port = ports[endpoint["port"]]
        assert port == BrokerConfig.metrics_prom_exporter_port
        annotations = {"prometheus.io/scrape": "true", "prometheus.io/port": str(port)}
        assert template["metadata"]["annotations"] == annotations
        wanted = monitor["spec"]["selector"]["matchLabels"]
        assert wanted.items() <= template["metadata"]["labels"].items()
        (text,) = manifests("ConfigMap")[name]["data"].values()
        assert parse_properties(text, name)["metricsExporterType"] == "PROM"


def test_the_example_for_keda_asks_for_a_metric_that_brokers_have() -> None:
    (scaled,) = documents(DEPLOY / "kubernetes" / "examples" / "keda.yaml")
    (trigger,) = scaled["spec"]["triggers"]
    (name,) = re.findall(r"\b(rocketmq_\w+)", trigger["metadata"]["query"])
    assert {"consumer_group", "is_system"} <= set(METRICS[name].labels)


def test_pods_start_servers_without_rights() -> None:
    for name, workload in manifests("StatefulSet").items():
        pod = workload["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        (started,) = (
            [container["args"]] if name.endswith("namesrv") else commands_of(container["args"][0])
        )
        assert command_fault(started) is None
        assert started[0] == container["name"]
        assert pod["securityContext"]["runAsUser"] == 10001
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert HOME in [mount["mountPath"] for mount in container["volumeMounts"]]
        volumes = {volume["name"] for volume in pod["volumes"]}
        claims = {claim["metadata"]["name"] for claim in workload["spec"]["volumeClaimTemplates"]}
        assert {mount["name"] for mount in container["volumeMounts"]} == volumes | claims


def test_brokers_in_pods_have_settings_that_fit_and_know_all_name_servers() -> None:
    text = manifests("ConfigMap")["cometmq-broker"]["data"]["broker.conf"]
    settings = parse_properties(text, "broker.conf")
    added = {"brokerName": "cometmq-broker-0", "brokerIP1": "cometmq-broker-0.cometmq-broker"}
    assert settings_faults({**settings, **added}) == []
    assert settings["storePathRootDir"].startswith(f"{HOME}/")
    namesrv = manifests("StatefulSet")["cometmq-namesrv"]["spec"]
    names = [
        f"cometmq-namesrv-{number}.{namesrv['serviceName']}:{DEFAULT_PORT}"
        for number in range(namesrv["replicas"])
    ]
    assert settings["namesrvAddr"] == ";".join(names)
    broker = manifests("StatefulSet")["cometmq-broker"]["spec"]["template"]["spec"]
    assert broker["terminationGracePeriodSeconds"] >= LONGEST_STOP_S
    ports = {
        port["name"]: port["port"]
        for port in manifests("Service")["cometmq-broker"]["spec"]["ports"]
    }
    listen = int(settings["listenPort"])
    assert ports == {"remoting": listen, "vip": listen - VIP_PORT_DISTANCE}
