"""Pages of brokers and name servers, and what they do."""

from __future__ import annotations

import json
from functools import partial

import pytest
from tests.console.running import Served, Visitor
from tests.waits import eventually

import cometmq
from cometmq import AdminClient, Message, Producer
from cometmq.testing import Cluster

LOOK_S = 0.3


@pytest.fixture
def address(admin: AdminClient) -> str:
    return admin.brokers.addresses()[0].address


@pytest.fixture
def name(admin: AdminClient) -> str:
    return admin.brokers.addresses()[0].broker_name


def test_brokers_and_name_servers_are_listed(
    cluster: Cluster, reader: Visitor, address: str, name: str
) -> None:
    text = eventually(
        lambda: reader.get("/brokers").text, lambda text: address in text, pause_s=LOOK_S
    )
    assert f"{name} {address} master" in text
    assert cluster.namesrv in text
    assert reader.get("/brokers", q="no-such-broker").text.count("No broker matches") == 1
    settings = reader.get("/name-server", address=cluster.namesrv)
    assert "listenPort" in settings.text
    assert "does not use" in reader.get("/name-server", address="elsewhere:1").text


def test_the_version_of_cometmq_stands_beside_that_of_the_protocol(
    reader: Visitor, address: str
) -> None:
    """V5_3_3 was all that the console showed."""
    versions = f"CometMQ {cometmq.__version__} · protocol V5_3_3"
    assert versions in reader.get("/broker", address=address).text
    for page in ("/", "/brokers"):
        eventually(partial(shows, reader, page, versions.replace(" ·", "")), pause_s=LOOK_S)


def shows(reader: Visitor, page: str, text: str) -> bool:
    return text in reader.get(page).text


@pytest.mark.parametrize("part", ["state", "settings", "files", "replication", "values"])
def test_each_part_of_a_broker_is_shown(reader: Visitor, address: str, part: str) -> None:
    answer = reader.get("/broker", address=address, part=part)
    assert answer.status == 200
    assert "Not known" not in answer.text


@pytest.mark.parametrize("part", ["state", "settings", "files", "replication", "values"])
@pytest.mark.parametrize("wrong", ["127.0.0.1:1", "nonsense", "", "<script>:1"])
def test_a_broker_that_is_not_there_is_told(reader: Visitor, wrong: str, part: str) -> None:
    answer = reader.get("/broker", address=wrong, part=part)
    assert answer.status == 404
    assert "No broker is registered with this address" in answer.text
    assert "<script>" not in answer.html.partition("<body>")[2]


def test_files_say_when_they_can_be_deleted(
    cluster: Cluster, admin: AdminClient, reader: Visitor, address: str
) -> None:
    admin.topics.create("broker-files")
    with Producer("broker-files", namesrv=cluster.namesrv) as producer:
        producer.send(Message("broker-files", b"x"))
    text = eventually(
        lambda: reader.get("/broker", address=address, part="files").text,
        lambda text: "00000000000000000000" in text,
        pause_s=LOOK_S,
    )
    assert "the newest file always stays" in text


def test_a_setting_is_changed_and_differs_from_its_default(
    admin: AdminClient, operator: Visitor, served: Served, address: str
) -> None:
    asked = operator.get("/broker", address=address, part="settings", show="all", edit="traceOn")
    assert 'name="value" value="true"' in asked.html
    done = operator.act(
        "/broker/set", address=address, key="traceOn", was="true", value="false", why="test"
    )
    assert "traceOn is now false; it was true" in done.text
    assert admin.brokers.config(broker=address)[address]["traceOn"] == "false"
    assert "traceOn false true" in operator.get("/broker", address=address, part="settings").text
    operator.act("/broker/set", address=address, key="traceOn", was="false", value="true")
    lines = (served.root / "audit.jsonl").read_text().splitlines()
    entries = [json.loads(line) for line in lines]
    about = [entry for entry in entries if entry["what"] == "change setting of broker"]
    ours = [entry for entry in about if entry["details"].get("key") == "traceOn"]
    assert [entry["outcome"] for entry in ours] == ["begun", "done", "begun", "done"]
    assert ours[0]["details"] == {
        "address": address, "key": "traceOn", "before": "true", "after": "false",
    }  # fmt: skip


def test_a_setting_that_deletes_messages_is_confirmed(
    admin: AdminClient, operator: Visitor, address: str, name: str
) -> None:
    fields = {"address": address, "key": "fileReservedTime", "was": "72", "value": "71"}
    asked = operator.post("/broker/set", **fields)
    assert asked.status == 200
    assert "are deleted, and their messages" in asked.text
    assert admin.brokers.config(broker=address)[address]["fileReservedTime"] == "72"
    operator.act("/broker/set", **fields, confirm=name)
    assert admin.brokers.config(broker=address)[address]["fileReservedTime"] == "71"
    operator.act("/broker/set", **{**fields, "was": "71", "value": "72"}, confirm=name)


@pytest.mark.parametrize("key", ["listenPort", "storePathRootDir", "noSuchKey"])
def test_a_setting_that_takes_a_restart_is_refused(
    operator: Visitor, address: str, key: str
) -> None:
    answer = operator.post("/broker/set", address=address, key=key, was="0", value="1")
    assert answer.status == 400
    assert "is no setting that takes effect while" in answer.text


def test_a_setting_that_somebody_else_has_changed_is_left(
    admin: AdminClient, operator: Visitor, address: str
) -> None:
    """Two operators had the same form open, and the second one undid the first one's change."""
    fields = {"address": address, "key": "maxTopics", "was": "50001", "value": "60000"}
    answer = operator.post("/broker/set", **fields)
    assert answer.status == 409
    assert "was '50001' when the form was shown" in answer.text
    assert admin.brokers.config(broker=address)[address]["maxTopics"] != "60000"


def test_a_value_that_the_broker_refuses_is_told(
    admin: AdminClient, operator: Visitor, address: str
) -> None:
    page = operator.act(
        "/broker/set",
        address=address,
        key="maxTopics",
        was=admin.brokers.config(broker=address)[address]["maxTopics"],
        value="many",
    )
    assert "change setting of broker" in page.text
    assert 'class="note failed"' in page.html


def test_the_write_permission_is_taken_and_given_back(
    admin: AdminClient, operator: Visitor, address: str, name: str
) -> None:
    asked = operator.post("/broker/wipe", name=name, address=address)
    assert "producers no longer send to broker" in asked.text
    taken = operator.act("/broker/wipe", name=name, address=address, confirm=name)
    assert "writes to it were stopped here" in taken.text
    given = operator.act("/broker/permit", name=name, address=address)
    assert "Producers choose it." in given.text


@pytest.mark.parametrize("kind", ["files", "queues", "topics"])
def test_a_clean_up_is_confirmed(operator: Visitor, address: str, name: str, kind: str) -> None:
    asked = operator.post("/broker/clean", address=address, kind=kind)
    assert asked.status == 200
    assert f"Type {name} to confirm" in asked.text
    done = operator.act("/broker/clean", address=address, kind=kind, confirm=name)
    assert "begun; the broker does it within a minute" in done.text


def test_a_reader_sees_no_buttons(reader: Visitor, address: str) -> None:
    for part in ("state", "settings", "files"):
        page = (
            reader.get("/broker", address=address, part=part)
            .html.partition("<main")[2]
            .partition("</main>")[0]
        )
        assert "<button" not in page.replace("<button>Search</button>", "")
