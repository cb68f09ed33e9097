"""The rates of a topic are kept while somebody looks, with gaps where nobody did or none was known."""

from __future__ import annotations

from cometmq.console.watching.topic_trends import TopicTrends


def test_an_unknown_rate_and_a_pause_are_gaps_and_no_zeros() -> None:
    trends = TopicTrends()
    trends.add("t", 0, 3.0)
    assert trends.add("t", 1000, 9.0) == [[0], [3.0]], "a second look at once adds nothing"
    trends.add("t", 5000, None)
    assert trends.add("t", 60_000, 4.0) == [[0, 5, 6, 60], [3.0, None, None, 4.0]]


def test_topics_that_nobody_looks_at_are_forgotten() -> None:
    trends = TopicTrends()
    for number in range(65):
        trends.add(f"t{number}", 0, 1.0)
    assert trends.add("t0", 9000, 2.0) == [[9], [2.0]]
