from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from cometmq.broker.config import BROKER_PROMISES, broker_configs
from cometmq.errors import ConfigError
from cometmq.namesrv.config import NAMESRV_PROMISES, namesrv_configs
from cometmq.runtime.configuration.check import (
    MAX_UPDATE_BYTES,
    Promise,
    check_update,
    checked_configs,
    decode_update,
    is_true,
)
from cometmq.runtime.configuration.java_keys import JAVA_KEYS
from cometmq.runtime.spelling import likely_meant


@dataclass
class Sample:
    listen_port: int = field(default=1, metadata={"min": 0, "max": 65535})
    broker_name: str = "a"
    even: int = 2

    def __post_init__(self) -> None:
        if self.even % 2:
            raise ConfigError(f"even={self.even}: must be even")


PROMISES = {"aclEnable": Promise(is_true, "asks for what is not there")}


def complaint(
    properties: dict[str, str], file: Path | None = None, *, lenient: bool = False
) -> str:
    with pytest.raises(ConfigError) as raised:
        checked_configs(
            [Sample],
            properties,
            server="broker",
            source=str(file or "the properties"),
            file=file,
            promises=PROMISES,
            lenient=lenient,
        )
    return str(raised.value)


def test_a_misspelt_key_stops_the_start_and_is_told_what_it_is_like() -> None:
    assert complaint({"listenPrt": "1"}) == (
        "the properties: this broker knows no listenPrt, nor does any of Java's; did you mean "
        "listenPort? (--lenient starts all the same)"
    )
    assert "did you mean" not in complaint({"xyzzy": "1"})


def test_lenient_takes_misspelt_keys_and_nothing_else() -> None:
    (config,) = checked_configs(
        [Sample],
        {"listenPrt": "1", "brokerName": "b"},
        server="broker",
        source="",
        promises=PROMISES,
        lenient=True,
    )
    assert config == Sample(broker_name="b")
    text = complaint({"listenPrt": "1", "aclEnable": "true"}, lenient=True)
    assert "aclEnable=true asks for what is not there" in text
    assert "listenPrt" not in text


def test_keys_that_some_release_of_java_has_are_no_mistakes() -> None:
    properties = {"sendMessageThreadPoolNums": "4", "aclEnable": "false", "storeType": "default"}
    checked_configs([Sample], properties, server="broker", source="", promises=PROMISES)


def test_every_mistake_is_told_at_once_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text(
        "# a\nbrokerName=a\\\n  b\nlistenPrt=1\n\naclEnable = true\r\nlistenPort=many\n"
    )
    properties = {"brokerName": "ab", "listenPrt": "1", "aclEnable": "true", "listenPort": "many"}
    lines = complaint(properties, file).splitlines()
    assert lines[0] == f"{file} has 3 mistakes:"
    assert [line.split(": ")[0] for line in lines[1:]] == ["  line 4", "  line 6", "  line 7"]
    assert "listenPort=many does not fit" in lines[3]


def test_one_mistake_is_one_sentence_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("brokerName=a\neven=3\n")
    text = complaint({"brokerName": "a", "even": "3"}, file)
    assert text == f"{file}: even=3: must be even (line 2)"


def test_very_many_mistakes_are_not_all_told() -> None:
    text = complaint({f"listenPrt{n}": "" for n in range(500)})
    assert text.startswith("the properties has 500 mistakes:")
    assert text.endswith("and 480 more")


ASKED = {
    "tlsEnable": "true",
    "tlsServerMode": "ENFORCING",
    "tlsMode": "enforcing",
    "tlsServerAuthClient": "true",
    "tlsServerNeedClientAuth": "optional",
    "tlsClientAuthServer": "true",
    "enableDLegerCommitLog": "true",
    "enableControllerMode": "true",
    "enabledAppendPropCRC": "true",
    "forceVerifyPropCRC": "true",
    "enableControllerInNamesrv": "true",
    "metricsExporterType": "OTLP_GRPC",
}
HARMLESS = {
    "metricsExporterType": "PROM",
    "tlsServerMode": "disabled",
    "tlsMode": "permissive",
    "tlsServerNeedClientAuth": "none",
}


@pytest.mark.parametrize("key", sorted(BROKER_PROMISES))
def test_a_broker_does_not_start_without_the_protection_that_is_asked_for(key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        broker_configs({key: ASKED[key]}, source="broker.conf", lenient=True)
    broker_configs({key: HARMLESS.get(key, "false")}, source="broker.conf")


@pytest.mark.parametrize("key", sorted(NAMESRV_PROMISES))
def test_a_name_server_does_not_start_without_the_protection_that_is_asked_for(key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        namesrv_configs({key: ASKED[key]}, source="namesrv.conf", lenient=True)
    namesrv_configs({key: HARMLESS.get(key, "false")}, source="namesrv.conf")


def test_every_promise_is_tried_above() -> None:
    assert {*BROKER_PROMISES, *NAMESRV_PROMISES} == ASKED.keys()


def test_an_update_is_held_to_the_same() -> None:
    def update(**changes: str) -> None:
        steps = check_update(
            changes,
            [Sample],
            server="broker",
            source="the update",
            promises=PROMISES,
            given=["mine"],
        )
        for _ in steps:
            pass

    update(mine="1", listenPort="5", storeType="x", aclEnable="false")
    with pytest.raises(ConfigError, match="aclEnable=true asks for"):
        update(aclEnable="true")
    with pytest.raises(ConfigError, match="did you mean listenPort"):
        update(listenPrt="1")


def test_an_update_has_a_limit() -> None:
    def decode(body: bytes) -> dict[str, str]:
        changes: dict[str, str] = {}
        for _ in decode_update(body, "the update", changes):
            pass
        return changes

    assert decode(b"a=1\n") == {"a": "1"}
    with pytest.raises(ConfigError, match=f"the limit is {MAX_UPDATE_BYTES}"):
        decode(b"a" * (MAX_UPDATE_BYTES + 1))
    with pytest.raises(ConfigError, match="is not UTF-8"):
        decode(b"\xff")


def test_an_update_of_thousands_of_keys_was_read_and_refused_in_one_piece() -> None:
    """3,000 wrong keys held the loop of a server for 50 ms."""
    body = b"".join(b"wrong%d=1\n" % number for number in range(3_000))
    changes: dict[str, str] = {}
    assert sum(1 for _ in decode_update(body, "the update", changes)) > 150
    assert len(changes) == 3_000
    steps = check_update(changes, [Sample], server="broker", source="the update", promises=PROMISES)
    for _ in range(30):  # the first are compared one by one with all that is known
        next(steps)
    with pytest.raises(ConfigError) as refused:
        list(steps)
    assert "has 3000 mistakes" in str(refused.value)
    assert "and 2980 more" in str(refused.value)


def test_javas_keys_are_those_of_its_configuration_classes() -> None:
    assert {"brokerRole", "aclEnable", "controllerAddr", "kvConfigPath", "useTLS"} <= JAVA_KEYS
    assert "listenPrt" not in JAVA_KEYS


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("listenPrt", "listenPort"),
        ("LISTENPORT", "listenPort"),
        ("namesrvAdrr", "namesrvAddr"),
        ("enableDLedgerCommitLog", "enableDLegerCommitLog"),
        ("xyzzy", None),
        ("listenPort" * 1000, None),
    ],
)
def test_the_nearest_word_is_found(word: str, meant: str | None) -> None:
    assert likely_meant(word, JAVA_KEYS) == meant
