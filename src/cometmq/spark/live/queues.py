"""Track the queues of a running query, and the offsets that brokers have of them.

Name servers and brokers come and go while a query runs. Without a name server, the query goes on
with the queues that it knows. A queue whose broker does not answer keeps its offset, and the query
goes on without it. While no broker answers, the query waits as long as the option `timeoutMs` says.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Final

from cometmq.bulk.range_reader import BlockingRangeReader
from cometmq.errors import CometMQError, IllegalArgumentError, RemotingError, RouteNotFoundError
from cometmq.logs.loggers import get_logger
from cometmq.model.queue import MessageQueue
from cometmq.runtime.clock import SYSTEM_CLOCK, BlockingClock
from cometmq.spark.live.identity import LiveIdentity
from cometmq.spark.live.options import LiveOptions
from cometmq.spark.live.plan import Range, check_selection, find_queues, listed
from cometmq.spark.live.unknown_topics import unknown_topics

log = get_logger(__name__)

# The queues are looked up again only after some seconds, because an idle query plans a hundred
# batches a second.
LOOK_EVERY_S: Final = 5.0
_LOOK_AGAIN_S: Final = 1.0
_PAUSE_S: Final = 0.2

Bounds = dict[MessageQueue, Range]


class LiveQueues:
    """Tracks queues for the planner of a query, which has one `LiveQueues` for as long as the query
    runs.
    """

    def __init__(self, options: LiveOptions, clock: BlockingClock = SYSTEM_CLOCK) -> None:
        self._options = options
        self._clock = clock
        self._patience_s = options.timeout_ms / 1000
        self._queues: list[MessageQueue] = []
        self._look_after_s = 0.0
        # The topics for which a broker has confirmed that it can select as the options say.
        self._checked: set[str] = set()
        # Since when each queue has been shorter than its known offset.
        self._shorter_since_s: dict[MessageQueue, float] = {}
        # Why the last look-up of the queues failed, so that each reason is logged once.
        self._refused = ""
        self._away: list[MessageQueue] = []
        self._gone: frozenset[str] = frozenset()
        self.identity = LiveIdentity(LOOK_EVERY_S, clock)

    def bounds(
        self,
        reader: BlockingRangeReader,
        known: Mapping[MessageQueue, int],
        *,
        all_of_them: bool,
    ) -> Bounds:
        """Return the first offset and the end of each queue.

        Unless `all_of_them` are needed, leave out queues whose broker does not answer. Also leave
        out queues that are shorter than `known` says while that may be temporary, or if only a
        slave says so, which lags behind its master. Queues of a topic that was created again stay
        shorter: `identity` has them.

        Raise IllegalArgumentError, RouteNotFoundError or RemotingError if queues cannot be looked
        up and none are `known`; raise a broker's failure when patience is over.
        """
        deadline = self._clock.monotonic() + self._patience_s
        while True:
            self._look(reader, known)
            answers = reader.offsets_or_failures(self._queues, known)
            bounds: Bounds = {}
            failures: list[CometMQError] = []
            for queue, answer in answers.items():
                if isinstance(answer, CometMQError):
                    failures.append(answer)
                else:
                    bounds[queue] = answer
            self._report(queue for queue in self._queues if queue not in bounds)
            self.identity.compare(reader, bounds, known)
            waiting = self._without_shorter(bounds, known)
            if not failures and not waiting:
                return bounds
            if bounds and not all_of_them:
                return bounds
            if failures and self._clock.monotonic() >= deadline:
                raise failures[0]
            self._clock.sleep(_PAUSE_S)

    def fix(self) -> None:
        """Keep to the present queues, and look up no others."""
        self._look_after_s = float("inf")

    # Inside

    def _look(self, reader: BlockingRangeReader, known: Collection[MessageQueue]) -> None:
        if self._clock.monotonic() < self._look_after_s:
            return
        try:
            queues = find_queues(reader, self._options, self._queues or known)
            new = [queue for queue in queues if queue.topic not in self._checked]
            check_selection(reader, self._options, new)
        except (RouteNotFoundError, RemotingError, IllegalArgumentError) as error:
            self._queues = self._queues or sorted(known)
            if not self._queues:
                if isinstance(error, RouteNotFoundError):
                    namesrv, topics = self._options.namesrv, self._options.named_topics
                    raise unknown_topics(reader, namesrv, topics, error) from error
                raise
            if str(error) != self._refused:
                self._refused = str(error)
                log.warning(
                    "the queues are not looked up, those known are read on", reason=self._refused
                )
            self._look_after_s = self._clock.monotonic() + _LOOK_AGAIN_S
            return
        self._checked.update(queue.topic for queue in new)
        self._report_gone({queue.topic for queue in known} - {queue.topic for queue in queues})
        self._queues, self._refused = queues, ""
        self._look_after_s = self._clock.monotonic() + LOOK_EVERY_S

    def _report_gone(self, topics: AbstractSet[str]) -> None:
        """Log once which topics of the query, found by a pattern, no longer exist."""
        if new := topics - self._gone:
            log.warning(
                "topics of the query are gone: they were deleted, or their brokers have been away "
                "for a long time; messages that the query had not read from them are missing",
                topics=listed(new),
            )
        self._gone = frozenset(topics)

    def _without_shorter(self, bounds: Bounds, known: Mapping[MessageQueue, int]) -> bool:
        """Remove from `bounds` the queues that may still grow to their known offset; return whether
        there were any.
        """
        now = self._clock.monotonic()
        shorter = {
            queue
            for queue, (_, high) in bounds.items()
            if known.get(queue, 0) > high and queue not in self.identity.made_again
        }
        self._shorter_since_s = {queue: self._shorter_since_s.get(queue, now) for queue in shorter}
        passing = [
            queue
            for queue, since_s in self._shorter_since_s.items()
            if now - since_s < self._patience_s
        ]
        for queue in passing:
            del bounds[queue]
        return bool(passing)

    def _report(self, queues: Iterable[MessageQueue]) -> None:
        away = list(queues)
        if away != self._away:
            if away:
                log.warning("brokers do not answer", queues=listed(away))
            else:
                log.info("all brokers answer")
            self._away = away
