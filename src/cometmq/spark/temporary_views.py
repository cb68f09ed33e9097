"""Make temporary views of topics, for SQL.

    from cometmq.spark import views

    views(spark, namesrv="127.0.0.1:9876", topics="orders,payments")
    spark.sql("SELECT tags, count(*) FROM orders GROUP BY tags").show()

The first query over a view fixes the range of messages that it reads, as for every DataFrame of the source.
To read later messages, make the view again.
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

    topics: names, as a list or separated by commas; or pattern: a regular expression that matches whole
        names. It does not choose RocketMQ's own topics.
    prefix: a text before the topic's name in the name of the view, for several clusters or stores.
    options: options of the source `rocketmq` or `rocketmq-store`, such as columns="all".

    Return the name of each topic's view as SQL needs it: a name like `orders-eu` is in backticks. A topic that
    appears later gets a view at the next call.

    Raise IllegalArgumentError for values that do not fit, for a topic that does not exist, and for two topics
    with names that differ only in case. Raise RemotingError if no name server answers.
    """
    if (namesrv is None) == (store is None):
        raise IllegalArgumentError(
            'give one of namesrv and store: namesrv="127.0.0.1:9876" for a cluster, store="/data/store" '
            "for the store directory of a broker"
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
    # The pattern has no effect: only the options of the connection are used.
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
                f"pattern is {pattern!r}, which is no regular expression: {error}"
            ) from error
        if found := sorted(topic for topic in own if matches.fullmatch(topic)):
            return found
        raise IllegalArgumentError(f"no topic of {where} matches pattern, which is {pattern!r}")
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
    """Refuse topics with views that would replace each other, because Spark ignores case in names."""
    seen: dict[str, str] = {}
    for topic in topics:
        other = seen.setdefault(topic.lower(), topic)
        if other != topic:
            raise IllegalArgumentError(
                f"the topics {other} and {topic} would have one view, because Spark SQL ignores case in "
                "names: make their views in two calls, each with another prefix"
            )


def _quoted(name: str) -> str:
    return name if _PLAIN.fullmatch(name) else "`" + name.replace("`", "``") + "`"
