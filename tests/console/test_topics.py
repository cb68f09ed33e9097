"""Pages of topics, and what they do."""

from __future__ import annotations

import json

from tests.console.running import Visitor

from cometmq import AdminClient


def test_a_topic_is_deleted_after_its_name_is_typed(admin: AdminClient, operator: Visitor) -> None:
    admin.topics.create("to-delete")
    asked = operator.post("/topics/delete", name="to-delete")
    assert asked.status == 200
    assert "goes away" in asked.text or "go away" in asked.text
    wrong = operator.post("/topics/delete", name="to-delete", confirm="to delete")
    assert wrong.status == 422
    assert "to-delete" in operator.get("/topics").text
    done = operator.act("/topics/delete", name="to-delete", confirm="to-delete", why="a test")
    assert "delete topic to-delete: deleted" in done.text
    assert operator.get("/topics", q="to-delete").text.count("to-delete") == 0
    log = operator.served.root / "audit.jsonl"
    written = [json.loads(line) for line in log.read_text().splitlines()]
    ours = [(entry["outcome"], entry["why"]) for entry in written if entry["target"] == "to-delete"]
    assert ours == [("begun", "a test"), ("done", "a test")]
