"""Apply the rules on delays to every message on its way into the store (Java: HookUtils)."""

from __future__ import annotations

import re
from typing import Final

from cometmq.broker.config import BrokerConfig
from cometmq.broker.delays.messages import DelayedMessages
from cometmq.broker.incoming import IncomingMessage
from cometmq.broker.refusal import Refused
from cometmq.model import names
from cometmq.model import properties as p
from cometmq.model.sysflag import TRANSACTION_COMMIT, TRANSACTION_MASK, TRANSACTION_NOT
from cometmq.protocol.codes import ResponseCode
from cometmq.runtime.clock import Clock, ahead_ms
from cometmq.store.store import MessageStore

_TIMER_PROPERTIES: Final = (p.TIMER_DELAY_SEC, p.TIMER_DELAY_MS, p.TIMER_DELIVER_MS)
# Java's Long and Integer have at most 19 digits; a text with more is no number to Java.
_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,19}")
_INT32_MAX: Final = 2**31 - 1
_INT64_MAX: Final = 2**63 - 1


class MessagePut:
    """Stores messages in their topic, or first in the topic in which delayed messages wait.

    For the loop's thread only.
    """

    def __init__(
        self,
        config: BrokerConfig,
        store: MessageStore,
        clock: Clock,
        delayed: DelayedMessages,
    ) -> None:
        self._config = config
        self._store = store
        self._clock = clock
        self._delayed = delayed

    def put(self, message: IncomingMessage) -> tuple[int, int]:
        """Store `message`; return the queue offset and the commit-log offset where it was stored.

        The topic, queue and properties of a message that has to wait are changed. Raises Refused
        for an impossible delay, and the store's errors; nothing is then stored.
        """
        if message.sys_flag & TRANSACTION_MASK in (TRANSACTION_NOT, TRANSACTION_COMMIT):
            level = delay_level(message.properties)
            if level > 0:
                # The level wins, as in Java; a retried message may still carry its first delay.
                for name in _TIMER_PROPERTIES:
                    message.properties.pop(name, None)
                return self._delayed.levels.put(message, level, self._clock.now_ms())
            if _is_timed(message):
                now_ms = self._clock.now_ms()
                deliver_ms = self._deliver_ms(message.properties, now_ms)
                if deliver_ms > now_ms:
                    return self._delayed.timers.put(message, deliver_ms, now_ms)
        return message.append_to(self._store)

    def _deliver_ms(self, properties: dict[str, str], now_ms: int) -> int:
        if not self._config.timer_wheel_enable:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                "accurate timer message is not enabled, timerWheelEnable is false; "
                f"send with a delay level ({p.DELAY_TIME_LEVEL}) instead",
            )
        max_delay_ms = self._config.timer_max_delay_sec * 1000
        name = next(name for name in _TIMER_PROPERTIES if name in properties)
        value = _number(properties[name], _INT64_MAX)
        if value is None:
            raise _illegal(name, properties[name], "is no number of 64 bits", max_delay_ms)
        if name == p.TIMER_DELAY_SEC:
            deliver_ms = now_ms + value * 1000
        elif name == p.TIMER_DELAY_MS:
            deliver_ms = now_ms + value
        elif p.TIMER_DEL_UNIQKEY in properties:
            # A recall must get into the slot of the message that it recalls.
            deliver_ms = value
        else:
            deliver_ms = value + ahead_ms(self._clock)
        if deliver_ms - now_ms > max_delay_ms:
            raise _illegal(
                name, properties[name], f"is {deliver_ms - now_ms}ms from now", max_delay_ms
            )
        if deliver_ms <= now_ms and p.TIMER_DEL_UNIQKEY in properties:
            raise _illegal(name, properties[name], "is over, nothing can be recalled", max_delay_ms)
        return deliver_ms


def delay_level(properties: dict[str, str]) -> int:
    """Return the delay level that a message asks for, 0 if none. A negative one counts as none.

    Raises Refused for a text that is no number.
    """
    text = properties.get(p.DELAY_TIME_LEVEL)
    if text is None:
        return 0
    level = _number(text, _INT32_MAX)
    if level is None:
        raise Refused(
            ResponseCode.MESSAGE_ILLEGAL,
            f"property {p.DELAY_TIME_LEVEL}={text[:40]}: a delay level is a number of 32 bits",
        )
    return level


def _is_timed(message: IncomingMessage) -> bool:
    """Say whether a message is to be delayed by the timer.

    A message that was delivered once has TIMER_OUT_MS and is not delayed again.
    """
    properties = message.properties
    return (
        message.topic != names.TIMER_TOPIC
        and p.TIMER_OUT_MS not in properties
        and any(name in properties for name in _TIMER_PROPERTIES)
    )


def _number(text: str, limit: int) -> int | None:
    if not _NUMBER.fullmatch(text):
        return None
    value = int(text)
    return value if -limit - 1 <= value <= limit else None


def _illegal(name: str, value: str, reason: str, max_delay_ms: int) -> Refused:
    return Refused(
        ResponseCode.MESSAGE_ILLEGAL,
        "timer message illegal, the delay time should not be bigger than the max delay "
        f"{max_delay_ms}ms; or if set del msg, the delay time should be bigger than the current "
        f"time (property {name}={value[:40]} {reason}; the limit is timerMaxDelaySec)",
    )
