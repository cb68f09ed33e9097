"""Settings and key-value entries of name servers: shown, and changed after a preview."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path

import pytest
from tests.console.running import Served, Visitor, running_console

from cometmq import AdminClient
from cometmq.admin.name_servers import CHANGEABLE_SETTINGS
from cometmq.console.pages import name_servers
from cometmq.namesrv.config import CHANGEABLE_KEYS
from cometmq.namesrv.kv_config import MAX_KV_NAME_LENGTH, MAX_KV_VALUE_LENGTH
from cometmq.testing import Cluster


def test_what_can_be_changed_is_what_name_servers_let_change() -> None:
    assert CHANGEABLE_SETTINGS == CHANGEABLE_KEYS == name_servers.EFFECTS.keys()
    assert (name_servers.MAX_ENTRY_NAME, name_servers.MAX_ENTRY_VALUE) == (
        MAX_KV_NAME_LENGTH,
        MAX_KV_VALUE_LENGTH,
    )


def test_a_setting_is_changed_after_a_preview_and_told_in_the_audit_log(
    cluster: Cluster, admin: AdminClient, operator: Visitor, served: Served
) -> None:
    where = {"address": cluster.namesrv, "key": "waitSecondsForService"}
    was = admin.name_servers.config()[cluster.namesrv]["waitSecondsForService"]
    listed = operator.get("/name-server", address=cluster.namesrv, q="waitSeconds")
    assert "Change waitSecondsForService" in listed.html
    form = operator.get("/name-server", address=cluster.namesrv, edit=where["key"])
    assert f'name="was" value="{was}"' in form.html
    asked = operator.post("/name-server/set", **where, was=was, value="46")
    assert f"{cluster.namesrv}: waitSecondsForService = {was} → 46" in asked.text
    assert admin.name_servers.config()[cluster.namesrv][where["key"]] == was
    done = operator.act("/name-server/set", **where, was=was, value="46", confirm=where["key"])
    assert f"waitSecondsForService is now 46; it was {was}" in done.text
    assert admin.name_servers.config()[cluster.namesrv][where["key"]] == "46"
    entry = json.loads((served.root / "audit.jsonl").read_text().splitlines()[-1])
    assert (entry["what"], entry["target"]) == ("change setting of name servers", where["key"])
    late = operator.post("/name-server/set", **where, was=was, value="47")
    assert late.status == 409
    assert "somebody has changed it" in late.text
    operator.act("/name-server/set", **where, was="46", value=was, confirm=where["key"])


def test_a_setting_that_another_tool_has_changed_is_left(
    cluster: Cluster, admin: AdminClient, operator: Visitor
) -> None:
    """The console knew the settings as they were 10 s ago, and undid what mqadmin had done since."""
    where = {"address": cluster.namesrv, "key": "waitSecondsForService"}
    was = admin.name_servers.config()[cluster.namesrv][where["key"]]
    operator.get("/name-server", address=cluster.namesrv, edit=where["key"])
    admin.name_servers.update_config({where["key"]: "48"})
    try:
        late = operator.post("/name-server/set", **where, was=was, value="49", confirm=where["key"])
        assert late.status == 409
        assert admin.name_servers.config()[cluster.namesrv][where["key"]] == "48"
    finally:
        admin.name_servers.update_config({where["key"]: was})


@pytest.mark.parametrize("key", ["kvConfigPath", "listenPort", "adminFrom", "<b>", ""])
def test_a_setting_that_names_a_file_or_a_right_is_refused(
    cluster: Cluster, operator: Visitor, key: str
) -> None:
    refused = operator.post("/name-server/set", address=cluster.namesrv, key=key, was="", value="1")
    assert refused.status == 400
    assert "is no setting that takes effect" in refused.text


def test_the_order_of_a_topic_is_set_shown_and_deleted(
    cluster: Cluster, admin: AdminClient, operator: Visitor, reader: Visitor
) -> None:
    name, value = "ordered-here", f"{admin.brokers.addresses()[0].broker_name}:4"
    entry = {"namespace": "ORDER_TOPIC_CONFIG", "key": name}
    asked = operator.post("/name-servers/put", **entry, was="", value=value)
    assert f"ORDER_TOPIC_CONFIG: {name} = – → {value}" in asked.text
    operator.act("/name-servers/put", **entry, was="", value=value, confirm=name)
    assert admin.topics.order_config(name) == value
    page = reader.get("/name-servers")
    assert f"{name} {value}" in page.text
    assert "/name-servers/delete" not in page.html
    again = operator.post("/name-servers/put", **entry, was="", value=f"{value};b:1")
    assert again.status == 409
    for wrong in ("4", "a:", "a:x", "a:4;", "a b:4"):
        refused = operator.post("/name-servers/put", **entry, was=value, value=wrong)
        assert refused.status == 400
        assert "is no order configuration" in refused.text
    assert reader.post("/name-servers/delete", **entry).status == 403
    assert admin.topics.order_config(name) == value
    late = operator.post("/name-servers/delete", **entry, was="another:1", confirm=name)
    assert (late.status, "somebody has changed it" in late.text) == (409, True)
    assert admin.topics.order_config(name) == value
    operator.act("/name-servers/delete", **entry, was=value, confirm=name)
    assert admin.topics.order_config(name) is None
    gone = operator.post("/name-servers/delete", **entry, was=value)
    assert (gone.status, "no name server that answers has the entry" in gone.text) == (404, True)


def test_a_value_of_several_lines_keeps_them(admin: AdminClient, operator: Visitor) -> None:
    """Its form was one line long, so a change joined them; and one with \\r\\n could not be changed."""
    entry = {"namespace": "of-lines", "key": "list"}
    for was, after in (("", "a\nb "), ("a\nb ", "\na\n\nc\n")):
        sent = {"was": was.replace("\n", "\r\n"), "value": after.replace("\n", "\r\n")}
        operator.act("/name-servers/put", **entry, **sent, confirm="list")
        assert admin.name_servers.entry("of-lines", "list") == after
    page = operator.get("/name-servers", namespace="of-lines", edit="list")
    assert re.search(r"<textarea [^>]*>\n\na\n\nc\n</textarea>", page.html)
    admin.name_servers.put_entry("of-lines", "list", "x\r\ny")
    sent = {"was": "x\r\ny", "value": "x\r\nz"}
    operator.act("/name-servers/put", **entry, **sent, confirm="list")
    assert admin.name_servers.entry("of-lines", "list") == "x\r\nz"


def test_an_entry_with_white_space_around_its_name_is_changed_and_deleted(
    admin: AdminClient, operator: Visitor
) -> None:
    """Other tools make such entries; the console looked for the name without it."""
    entry = {"namespace": " odd", "key": "a  key\n"}
    admin.name_servers.put_entry(**entry, value="1")
    assert "a key" in operator.get("/name-servers", namespace=" odd").text
    sent = {**entry, "was": "1", "confirm": "a key"}
    operator.act("/name-servers/put", **sent, value="2")
    assert admin.name_servers.entries(" odd") == {"a  key\n": "2"}
    operator.act("/name-servers/delete", **{**sent, "was": "2"})
    assert admin.name_servers.entries(" odd") == {}


def test_a_name_server_that_is_away_is_told_before_a_change(tmp_path: Path) -> None:
    with Cluster() as cluster, socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # it does not listen
        away = f"127.0.0.1:{taken.getsockname()[1]}"
        with running_console(f"{cluster.namesrv};{away}", tmp_path) as served:
            operator = Visitor(served)
            entry = {"namespace": "half", "key": "k", "was": ""}
            asked = operator.post("/name-servers/put", **entry, value="1")
            assert "Not all name servers answer: those keep what they have" in asked.text
            assert away in asked.text
            done = operator.act("/name-servers/put", **entry, value="1", confirm="k")
            assert "setting the entry k of half failed at 1 of 2 servers" in done.text
            asked = operator.post("/name-servers/delete", **{**entry, "was": "1"})
            assert "Not all name servers answer" in asked.text
            other = operator.post("/name-servers/delete", **{**entry, "key": "other"})
            assert (other.status, away in other.text) == (404, True)


def test_entries_of_programs_are_shown_as_text_and_bounded(
    admin: AdminClient, operator: Visitor
) -> None:
    hostile = "<script>alert(1)</script>"
    entry = {"namespace": "of-a-program", "key": "setting"}
    operator.act("/name-servers/put", **entry, was="", value=hostile, confirm="setting")
    page = operator.get("/name-servers", namespace="of-a-program")
    assert hostile in page.text
    assert hostile not in page.html
    assert admin.name_servers.entries_by_server("of-a-program")
    long = operator.post("/name-servers/put", namespace="n" * 513, key="k", was="", value="v")
    assert (long.status, "the limit MAX_ENTRY_NAME is 512; give" in long.text) == (400, True)
    assert "There is no entry" in operator.get("/name-servers", namespace="empty").text
