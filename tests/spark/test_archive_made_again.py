"""Archives of a store directory whose topic was deleted and made again since the last archive."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.spark.archives import archived_rows, run
from tests.spark.changing_cluster import ChangingCluster
from tests.spark.test_topics_made_again import TOPIC, fill, make_again

from cometmq.errors import ConfigError, DataLossError
from cometmq.pipelines.archive.layout import Layout

BROKER = "broker-a"


@pytest.fixture
def stores(tmp_path: Path) -> Path:
    return tmp_path / "stores"


def store_with(stores: Path, count: int, *, again: bool) -> None:
    """A broker is sent messages and stops, perhaps after its topic was deleted and made again."""
    with ChangingCluster(directory=stores) as cluster:
        if again:
            make_again(cluster)
        fill(cluster, count)


def kill(stores: Path) -> None:
    """Leave the store as a broker that was killed leaves it."""
    (stores / BROKER / "abort").touch()


def archive(spark: Any, stores: Path, path: Path, **more: Any) -> Any:
    store = {"store": str(stores / BROKER), "broker": BROKER}
    return run(spark, None, path, topics=[TOPIC], compact_files=0, **store, **more)


@pytest.mark.parametrize("is_clean", [True, False], ids=["clean", "killed"])
def test_a_topic_made_again_in_an_archived_store_is_data_loss_by_name(
    spark: Any, stores: Path, tmp_path: Path, is_clean: bool
) -> None:
    path = tmp_path / "archive"
    store_with(stores, 49, again=False)
    if not is_clean:
        kill(stores)
    assert archive(spark, stores, path).holds
    archived = archived_rows(spark, path)
    assert len(archived) == 49
    # Shorter, equally long and longer than what is archived.
    for count in (12, 49, 60):
        store_with(stores, count, again=True)
        if not is_clean:
            kill(stores)
        with pytest.raises(DataLossError, match=f"topic {TOPIC} was deleted and made again"):
            archive(spark, stores, path)
    assert archived_rows(spark, path) == archived


def test_a_topic_made_again_and_empty_in_an_archived_store_is_named(
    spark: Any, stores: Path, tmp_path: Path
) -> None:
    path = tmp_path / "archive"
    store_with(stores, 49, again=False)
    assert archive(spark, stores, path).holds
    store_with(stores, 0, again=True)
    with pytest.raises(
        (DataLossError, ConfigError), match=f"no queues of {TOPIC}|{TOPIC}@{BROKER}:0"
    ):
        archive(spark, stores, path)


def test_the_next_archive_of_a_store_continues_the_last_one(
    spark: Any, stores: Path, tmp_path: Path
) -> None:
    path = tmp_path / "archive"
    for count in (49, 98, 147):
        store_with(stores, 49, again=False)
        if count == 98:
            kill(stores)
        assert archive(spark, stores, path, max_messages=20).holds
        assert len(archived_rows(spark, path)) == count
        (queue,) = [one for one in Layout(path).load_state().queues if one.to]
        assert queue.mark is not None
        assert queue.mark[0] == count - 1
