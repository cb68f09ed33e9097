"""Servers that die, freeze or lose their links under producers and consumers of both faces.

Every acknowledged message is consumed in the end, whatever happened; how soon sending went on after the
recovery is printed beside the promise of 5 s.
"""

from __future__ import annotations

import itertools
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.crash.bad_link import BadLink
from tests.integration.client_faces import Face, Received, open_face
from tests.interop.comet_servers import CometBroker, CometNamesrv
from tests.interop.peers import HOST
from tests.waits import WAIT_S, eventually

from cometmq import ConsumeFromWhere, Message, MessageQueue, SendStatus
from cometmq.client.producing.producer import SEND_TIMEOUT_MS
from cometmq.errors import CometMQError

pytestmark = [pytest.mark.crash, pytest.mark.timeout(900)]

TOPIC = "cuts"
# Where the broker says it is, and its link listens; the broker itself is at HOST.
LINK_HOST = "127.0.0.2"
PROMISED_S = 5.0
DEADLINE_S = 2 * WAIT_S


class Traffic:
    """Sends without pause, one message after the other, and notes what became of each."""

    def __init__(self, face: Face, label: str, send_timeout_ms: int) -> None:
        self.received = Received()
        self.acknowledged: list[tuple[float, bytes]] = []
        self.failures: list[CometMQError] = []
        self._places: dict[bytes, tuple[int, int]] = {}
        self._label = label
        self._producer = face.producer(f"cuts-{label}", send_timeout_ms=send_timeout_ms)
        face.consumer(
            f"cuts-{label}", TOPIC, self.received.handle, consume_from=ConsumeFromWhere.FIRST_OFFSET
        )
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"traffic-{label}")
        self._thread.start()

    def resumed_s(self, recovered: float) -> float:
        """Seconds from `recovered` (of the monotonic clock) to the first acknowledgement after it."""

        def first() -> float | None:
            return next((at for at, _ in self.acknowledged if at > recovered), None)

        return float(eventually(first, wait_s=DEADLINE_S)) - recovered

    def consumed_s(self, recovered: float) -> float:
        """Seconds from `recovered` until a message came that was sent after it."""
        eventually(lambda: any(at > recovered for at, _ in self.acknowledged), wait_s=DEADLINE_S)
        body = next(body for at, body in self.acknowledged if at > recovered)
        eventually(lambda: body in self.received.bodies, wait_s=DEADLINE_S)
        return time.monotonic() - recovered

    def stop(self) -> None:
        self._end.set()
        self._thread.join()

    def expect_everything(self) -> None:
        """Check that every acknowledged message is consumed in the end."""
        sent = {body for _, body in self.acknowledged}
        eventually(
            lambda: sorted(self._places[body] for body in sent - set(self.received.bodies)),
            lambda missing: not missing,
            wait_s=DEADLINE_S,
            pause_s=0.05,
        )

    def _run(self) -> None:
        for number in itertools.count():
            if self._end.wait(0.005):
                return
            body = b"%s-%d" % (self._label.encode(), number)
            try:
                result = self._producer.send(Message(TOPIC, body))
            except CometMQError as error:
                self.failures.append(error)
            else:
                assert result.status is SendStatus.SEND_OK
                self._places[body] = (result.queue.queue_id, result.queue_offset)
                self.acknowledged.append((time.monotonic(), body))


class Cut:
    """The servers, each behind a link, and the traffic of both faces over them."""

    def __init__(
        self,
        namesrv: CometNamesrv,
        broker: CometBroker,
        namesrv_link: BadLink,
        broker_link: BadLink,
        faces: dict[str, Face],
        send_timeout_ms: int,
    ) -> None:
        self.namesrv = namesrv
        self.broker = broker
        self.namesrv_link = namesrv_link
        self.broker_link = broker_link
        self.faces = faces
        self.traffic = {
            label: Traffic(face, label, send_timeout_ms) for label, face in faces.items()
        }

    def pause(self, seconds: float) -> float:
        """Let the traffic meet what was done; the moment afterwards."""
        time.sleep(seconds)
        return time.monotonic()


@pytest.fixture
def send_timeout_ms() -> int:
    """As clients have it."""
    return SEND_TIMEOUT_MS


@pytest.fixture
def cut(tmp_path: Path, send_timeout_ms: int) -> Iterator[Cut]:
    with CometNamesrv(directory=tmp_path / "n") as namesrv:
        conf = {"brokerIP1": LINK_HOST, "bindAddress": HOST, "brokerIP2": HOST}
        broker = CometBroker(namesrv.address, directory=tmp_path / "b", conf=conf)
        with (
            broker,
            # Not at LINK_HOST, where it could be given the port of another test's broker.
            BadLink((HOST, 0), (HOST, namesrv.port)) as namesrv_link,
            BadLink((LINK_HOST, broker.port), (HOST, broker.port)) as broker_link,
            open_face("blocking", namesrv_link.address) as blocking,
            open_face("asyncio", namesrv_link.address) as aio,
        ):
            make_topic(blocking)
            faces = {"blocking": blocking, "asyncio": aio}
            cut = Cut(namesrv, broker, namesrv_link, broker_link, faces, send_timeout_ms)
            try:
                yield cut
            finally:
                for traffic in cut.traffic.values():
                    traffic.stop()


def make_topic(face: Face) -> None:
    producer = face.producer("cuts-make")
    producer.send(Message(TOPIC, b"made"), queue=MessageQueue(TOPIC, "broker-a", 0))
    face.until_routed(TOPIC, "broker-a")


def kill_broker(cut: Cut) -> float:
    cut.broker.kill()
    cut.pause(2)
    cut.broker.start()
    return time.monotonic()


def restart_broker(cut: Cut) -> float:
    cut.broker.stop()
    cut.pause(2)
    cut.broker.start()
    return time.monotonic()


def freeze_broker(cut: Cut) -> float:
    assert cut.broker.process is not None
    cut.broker.process.send_signal(signal.SIGSTOP)
    moment = cut.pause(7)
    cut.broker.process.send_signal(signal.SIGCONT)
    return moment


def reset_connections(cut: Cut) -> float:
    cut.broker_link.reset()
    return time.monotonic()


def refuse_connections(cut: Cut) -> float:
    cut.broker_link.reset(refusing=True)
    moment = cut.pause(4)
    cut.broker_link.heal()
    return moment


def swallow_everything(cut: Cut) -> float:
    cut.broker_link.swallow()
    moment = cut.pause(7)
    cut.broker_link.heal()
    return moment


def swallow_everything_briefly(cut: Cut) -> float:
    cut.broker_link.swallow()
    moment = cut.pause(0.5)
    cut.broker_link.heal()
    return moment


def swallow_answers(cut: Cut) -> float:
    cut.broker_link.swallow_answers()
    return time.monotonic()


BROKER_CUTS = [
    kill_broker,
    restart_broker,
    freeze_broker,
    reset_connections,
    refuse_connections,
    swallow_everything,
    swallow_everything_briefly,
    swallow_answers,
]


@pytest.mark.parametrize("break_and_mend", BROKER_CUTS, ids=lambda f: f.__name__)
def test_sending_resumes_and_nothing_acknowledged_is_lost(
    cut: Cut, break_and_mend: Callable[[Cut], float], capsys: pytest.CaptureFixture[str]
) -> None:
    for traffic in cut.traffic.values():
        traffic.received.wait_for(100)
    recovered = break_and_mend(cut)
    reported = []
    for label, traffic in cut.traffic.items():
        sending_s, consuming_s = traffic.resumed_s(recovered), traffic.consumed_s(recovered)
        reported.append(
            f"{label} sends after {sending_s:.2f} s, consumes after {consuming_s:.2f} s"
        )
    for traffic in cut.traffic.values():
        traffic.stop()
        traffic.expect_everything()
    tell(capsys, break_and_mend.__name__, *reported)


def freeze_name_server(cut: Cut) -> float:
    assert cut.namesrv.process is not None
    cut.namesrv.process.send_signal(signal.SIGSTOP)
    moment = cut.pause(4)
    cut.namesrv.process.send_signal(signal.SIGCONT)
    return moment


def kill_name_server(cut: Cut) -> float:
    cut.namesrv.kill()
    cut.pause(2)
    cut.namesrv.start()
    return time.monotonic()


def reset_name_server(cut: Cut) -> float:
    cut.namesrv_link.reset(refusing=True)
    moment = cut.pause(2)
    cut.namesrv_link.heal()
    return moment


def swallow_name_server(cut: Cut) -> float:
    cut.namesrv_link.swallow()
    moment = cut.pause(7)
    cut.namesrv_link.heal()
    return moment


NAME_SERVER_CUTS = [freeze_name_server, kill_name_server, reset_name_server, swallow_name_server]


@pytest.mark.parametrize("send_timeout_ms", [60_000], ids=["patient"])
@pytest.mark.parametrize("break_and_mend", NAME_SERVER_CUTS, ids=lambda f: f.__name__)
def test_known_topics_do_not_notice_a_name_server_and_new_ones_are_found_again(
    cut: Cut, break_and_mend: Callable[[Cut], float], capsys: pytest.CaptureFixture[str]
) -> None:
    for traffic in cut.traffic.values():
        traffic.received.wait_for(100)
    newcomers = {label: face.producer(f"new-{label}") for label, face in cut.faces.items()}
    recovered = break_and_mend(cut)
    reported = []
    for label, producer in newcomers.items():
        eventually(partial(sends, producer, f"new-{label}"), wait_s=DEADLINE_S)
        reported.append(f"{label} sends to a new topic after {time.monotonic() - recovered:.2f} s")
    for label, traffic in cut.traffic.items():
        traffic.stop()
        assert traffic.failures == [], label
        traffic.expect_everything()
    tell(capsys, break_and_mend.__name__, *reported)


def sends(producer: Any, topic: str) -> bool:
    try:
        return bool(producer.send(Message(topic, b"x")).status is SendStatus.SEND_OK)
    except CometMQError:
        return False


def tell(capsys: pytest.CaptureFixture[str], what: str, *reported: str) -> None:
    with capsys.disabled():
        sys.stdout.write(f"\n{what}: {'; '.join(reported)} (promised: {PROMISED_S} s) ")
