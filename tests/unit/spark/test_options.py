"""Paths, as users of Spark write them."""

from __future__ import annotations

from pathlib import Path

import pytest

from cometmq.errors import IllegalArgumentError
from cometmq.spark.options import Options


def options(**given: str) -> Options:
    return Options("rocketmq-store", given, ("path", "commitLogPath"))


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("/data/store", "/data/store"),
        (" /data/a b/ ", "/data/a b"),
        ("file:/data/store", "/data/store"),
        ("file:///data/store", "/data/store"),
        ("FILE://localhost/data", "/data"),
        ("store", str(Path("store").absolute())),
        ("/data/a:b", "/data/a:b"),
    ],
)
def test_a_path_is_one_of_this_machine(text: str, path: str) -> None:
    assert options(path=text).path("path") == path
    assert options(path=text).need_path("path", "/data/store") == path
    assert options(commitLogPath=f"{text}, /b").paths("commitLogPath") == (path, "/b")


@pytest.mark.parametrize(
    "text", ["hdfs://nn/store", "s3a://bucket", "file://other/data", "file://"]
)
def test_other_file_systems_are_refused(text: str) -> None:
    words = rf"path of the source rocketmq-store is {text}; it must be a path that .* mount"
    with pytest.raises(IllegalArgumentError, match=words):
        options(path=text).path("path")


def test_a_path_that_is_not_given() -> None:
    assert options().path("path") is None
    assert options().paths("commitLogPath") == ()
    with pytest.raises(IllegalArgumentError, match="needs the option path"):
        options().need_path("path", "/data/store")
