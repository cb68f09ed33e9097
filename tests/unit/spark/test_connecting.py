"""Access options of sources and sinks: secrets are named by their places, and read where they are
used.
"""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import Any

import pytest

from cometmq import Credentials, Tls
from cometmq.errors import CometMQError, ConfigError, IllegalArgumentError
from cometmq.spark.connecting import CONNECTING, Connecting
from cometmq.spark.live.options import LiveOptions
from cometmq.spark.options import Options

SECRET = "the-secret-itself"
TOKEN = "the-token-itself"
NAMESRV = {"namesrv": "127.0.0.1:9876"}


def connecting(**given: Any) -> Connecting:
    return Connecting(Options("rocketmq", NAMESRV | given, CONNECTING))


@pytest.fixture
def key_file(tmp_path: Path) -> str:
    path = tmp_path / "key"
    path.write_text(f"  {SECRET}\n")
    return str(path)


def test_without_more_than_name_servers_there_is_nothing_to_prove() -> None:
    assert connecting(namespace="n").parameters() == {
        "namesrv": "127.0.0.1:9876",
        "namespace": "n",
        "credentials": None,
        "tls": None,
    }


def test_secrets_are_read_where_they_are_used(
    key_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_TOKEN", TOKEN)
    here = connecting(accessKey="key", secretKeyFile=key_file, securityTokenEnv="A_TOKEN")
    travels = pickle.dumps(here)
    for secret in (SECRET, TOKEN):
        assert secret.encode() not in travels
        assert secret not in repr(here)
        assert secret not in repr(vars(here))
    # Elsewhere, and later: secrets change.
    Path(key_file).write_text("another-secret")
    monkeypatch.setenv("A_TOKEN", "another-token")
    there = pickle.loads(travels).parameters()["credentials"]
    assert there == Credentials("key", "another-secret", "another-token")


def test_a_worker_without_the_secret_says_so(key_file: str) -> None:
    there = pickle.loads(pickle.dumps(connecting(accessKey="key", secretKeyFile=key_file)))
    Path(key_file).unlink()
    with pytest.raises(ConfigError, match=rf"secretKeyFile: the file {key_file} cannot be read"):
        there.parameters()


def test_tls_is_told_by_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tls, "context", lambda _: None)
    monkeypatch.setenv("A_PASSWORD", SECRET)
    assert connecting(tls="true").parameters()["tls"] == Tls()
    assert connecting(tls="false").parameters()["tls"] is None
    full = connecting(
        TLS="true",
        tlsCaFile="ca.pem",
        tlsCertFile="own.pem",
        tlsKeyFile="own.key",
        tlsKeyPasswordEnv="A_PASSWORD",
        tlsCheckHostname="false",
    )
    assert SECRET.encode() not in pickle.dumps(full)
    tls = full.parameters()["tls"]
    assert tls == Tls("ca.pem", "own.pem", "own.key", SECRET, check_hostname=False)
    assert connecting(tls="true", tlsVerify="false").parameters()["tls"] == Tls(verify=False)


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        ({"secretKeyFile": "f"}, "secretKeyFile of the source rocketmq needs accessKey"),
        ({"securityTokenEnv": "f"}, "securityTokenEnv of the source rocketmq needs accessKey"),
        (
            {"accessKey": "k"},
            "accessKey of the source rocketmq needs secretKeyFile or secretKeyEnv",
        ),
        ({"accessKey": "k", "secretKeyFile": "f", "secretKeyEnv": "v"}, "takes one of"),
        ({"accessKey": "k", "secretKeyEnv": "NO_SUCH"}, "the environment variable NO_SUCH is not"),
        ({"accessKey": "k", "secretKeyFile": "/no/file"}, "the file /no/file cannot be read here"),
        # What may be a secret, put where its place belongs, is not shown.
        (
            {"accessKey": "k", "secretKeyEnv": "hunter2"},
            "the environment variable that it names is",
        ),
        ({"accessKey": "k", "secretKeyFile": "hunter2"}, "the file that it names cannot be read"),
        ({"accessKey": "k", "secretKeyEnv": "EMPTY"}, "the environment variable EMPTY is empty"),
        ({"tlsCaFile": "f"}, "tlsCaFile of the source rocketmq is for TLS; give tls=true too"),
        ({"tlsVerify": "false"}, "tlsVerify of the source rocketmq is for TLS"),
        ({"tls": "true", "tlsCaFile": "/no/file"}, "ca_file of Tls is /no/file"),
        ({"tls": "true", "tlsKeyFile": "f"}, "private key without its certificate"),
        ({"tls": "perhaps"}, "must be true or false"),
    ],
)
def test_what_does_not_fit_is_refused_on_the_driver(
    given: dict[str, str], fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMPTY", " \n")
    with pytest.raises(CometMQError, match=re.escape(fault)) as caught:
        connecting(**given)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "name",
    ["secretKey", "SECRETKEY", "secret_key", "secret-key", "securityToken", "tlsKeyPassword"],
)
@pytest.mark.parametrize("streaming", [True, False])
def test_a_secret_in_an_option_is_refused_without_showing_it(name: str, streaming: bool) -> None:
    given = NAMESRV | {"subscribe": "orders", name: SECRET}
    with pytest.raises(IllegalArgumentError, match=r"give \w+File, or .* give \w+Env") as error:
        LiveOptions(given, streaming=streaming)
    assert name in str(error.value)
    assert SECRET not in str(error.value)


def test_the_options_of_a_reader_travel_without_secrets(key_file: str) -> None:
    given = NAMESRV | {"accessKey": "key", "secretKeyFile": key_file, "subscribe": "orders"}
    travels = pickle.dumps(LiveOptions(given, streaming=True))
    assert SECRET.encode() not in travels
    there = pickle.loads(travels).connecting.parameters()
    assert there["credentials"] == Credentials("key", SECRET)
