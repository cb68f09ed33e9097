"""The table of Java's default settings is what its broker says of itself."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from tests.interop.conftest import Namesrv, need
from tests.interop.on_java import MARKS
from tests.interop.peers import JavaBroker

from cometmq import AdminClient
from cometmq.admin.brokers.settings import settings_of

pytestmark = MARKS
# Java computes these from processors, host name, home or other settings, or they are secrets.
OF_THE_MACHINE = re.compile(
    "(?i)ThreadPoolNums?$|Threads$|^broker(Name|IP)|Path|Home|Authentication|^haListenPort|^bitMapLength"
)


@pytest.fixture
def broker(comet_namesrv: Namesrv) -> Iterator[JavaBroker]:
    """A broker at a name server of its own: it would stay in the list of one that others ask."""
    need("java", "mvn")
    with JavaBroker(comet_namesrv, broker_name="settings") as made:
        yield made


def test_only_what_was_set_differs_from_javas_defaults(broker: JavaBroker) -> None:
    with AdminClient(broker.namesrv) as admin:
        config = admin.brokers.config(broker=broker.address)[broker.address]
    settings = {setting.key: setting for setting in settings_of(config)}
    assert {key for key, setting in settings.items() if setting.is_changed} <= set(broker.config())
    assert settings["maxHashSlotNum"].is_changed
    unknown = {key for key, setting in settings.items() if setting.default is None}
    assert {key for key in unknown if not OF_THE_MACHINE.search(key)} <= set(broker.config())
    assert settings["fileReservedTime"].is_changeable
    assert not settings["listenPort"].is_changeable
