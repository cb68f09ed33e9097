"""Make temporary views of topics, for SQL.

    from cometmq.spark import views

    views(spark, namesrv="127.0.0.1:9876", topics="orders,payments")
    spark.sql("SELECT tags, count(*) FROM orders GROUP BY tags").show()

The first query over a view fixes what it reads, as with every DataFrame of the source. A view that is made
again reads what came since.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from cometmq.errors import IllegalArgumentError
from cometmq.model.names import is_system_topic, topic_fault
from cometmq.spark.live.options import NAME, LiveOptions
from cometmq.store.reading.files import StoreFiles

_STORE: Final = "rocketmq-store"
_PLAIN: Final = re.compile(r"[A-Za-z_]\w*", re.ASCII)


def views(
    spark: Any,
    *,
    namesrv: str | None = None,
    store: str | None = None,
    topics: str | Iterable[str] | None = None,
    pattern: str | None = None,
    prefix: str = "",
    **options: str,
) -> dict[str, str]:
    """Make or replace a temporary view for each topic of a cluster (`namesrv`) or of a `store` directory.

    topics: names, as a list or separated by commas; or pattern: a regular expression that whole names match,
        without RocketMQ's own topics.
    prefix: in front of the topic's name, for topics of several clusters and stores.
    options: of the sources `rocketmq` or `rocketmq-store`, such as columns="all".

    Return the views by topic, as SQL has them: a name like `orders-eu` stands in backticks. Topics that
    appear later get no view until this is called again.

    Raise IllegalArgumentError for values that do not fit, for a topic that is not there, and for two topics
    whose names differ in case only; RemotingError when no name server answers.
    """
    if (namesrv is None) == (store is None):
        raise IllegalArgumentError(
            'give one of namesrv and store: namesrv="127.0.0.1:9876" for a cluster, store="/data/store" '
            "for the directory of a broker"
        )
    if (topics is None) == (pattern is None):
        raise IllegalArgumentError(
            'give one of topics and pattern: topics="orders,payments" or pattern="orders-.*"'
        )
    if namesrv is not None:
        source, given = NAME, {"namesrv": namesrv, **options}
        there = _of_cluster(given)
    else:
        assert store is not None
        source, given = _STORE, {"path": store, **options}
        there = {queue.topic for queue in StoreFiles(store).queues()}
    chosen = _chosen(there, topics, pattern, namesrv or store or "")
    names = {topic: _quoted(prefix + topic) for topic in chosen}
    _check_case(chosen)
    for topic, name in names.items():
        frame = spark.read.format(source).options(**given, subscribe=topic).load()
        frame.createOrReplaceTempView(name)
    return names


def _of_cluster(options: Mapping[str, str]) -> set[str]:
    # Any topic does: only the options of the connection are used.
    planned = LiveOptions({**options, "subscribePattern": ".*"}, streaming=False)
    reader = planned.new_reader()
    reader.start()
    try:
        return set(reader.topics())
    finally:
        reader.close()


def _chosen(
    there: set[str], topics: str | Iterable[str] | None, pattern: str | None, where: str
) -> list[str]:
    own = {topic for topic in there if not is_system_topic(topic)}
    if topics is None:
        assert pattern is not None
        try:
            matches = re.compile(pattern)
        except re.error as error:
            raise IllegalArgumentError(
                f"pattern is {pattern!r}, no regular expression: {error}"
            ) from error
        if found := sorted(topic for topic in own if matches.fullmatch(topic)):
            return found
        raise IllegalArgumentError(f"no topic of {where} matches {pattern!r}")
    names = topics.split(",") if isinstance(topics, str) else list(topics)
    found = list(dict.fromkeys(name.strip() for name in names))
    for topic in found:
        if fault := topic_fault(topic):
            raise IllegalArgumentError(f"topics: {fault}")
        if topic not in there:
            near = difflib.get_close_matches(topic, sorted(own), 1)
            meant = f"; did you mean {near[0]}?" if near else ""
            raise IllegalArgumentError(f"topics names {topic}, which {where} does not have{meant}")
    return found


def _check_case(topics: Iterable[str]) -> None:
    """Refuse topics whose views would replace each other: Spark's names have no case."""
    seen: dict[str, str] = {}
    for topic in topics:
        other = seen.setdefault(topic.lower(), topic)
        if other != topic:
            raise IllegalArgumentError(
                f"the topics {other} and {topic} would have one view, because names in Spark's SQL have no "
                "case: make views of them in two calls, with a prefix each"
            )


def _quoted(name: str) -> str:
    return name if _PLAIN.fullmatch(name) else "`" + name.replace("`", "``") + "`"
