"""Brokers report when the files of their log can be deleted."""

from __future__ import annotations

from cometmq.admin.brokers.room import FileDeletion, file_deletions


def test_files_have_times_or_stay() -> None:
    found = file_deletions({"fileDeletions": "0:1760000000000 1073741824:"})
    assert found == [FileDeletion(0, 1_760_000_000_000), FileDeletion(1_073_741_824, None)]
    assert found[1].name == "00000000001073741824"


def test_a_broker_without_files_is_told_from_one_that_does_not_tell() -> None:
    assert file_deletions({"nextDeletedFile": ""}) is None
    assert file_deletions({"fileDeletions": ""}) == []
