"""The configuration file of pipelines, right and wrong."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Literal

import pytest
import structlog

from cometmq.errors import ConfigError
from cometmq.pipelines.configuration import ClusterConfig, ConfigFile, Decode, Settings
from cometmq.spark.connecting import CONNECTING

WHOLE = """
[cluster]
namesrv = "127.0.0.1:9876;127.0.0.2:9876"
namespace = "shop"

[spark]
master = "local[2]"
config = { "spark.driver.memory" = "2g" }

[archive]
topics = ["orders"]
"""


class Config(Settings, frozen=True):
    topics: list[str]
    mode: Literal["once", "stream"] = "once"
    since: datetime | None = None


def file_of(directory: Path, text: str) -> ConfigFile:
    path = directory / "pipeline.toml"
    path.write_text(text)
    return ConfigFile(path)


def test_tables_become_settings(tmp_path: Path) -> None:
    file = file_of(tmp_path, WHOLE)
    assert file.cluster().options() == {
        "namesrv": "127.0.0.1:9876;127.0.0.2:9876",
        "namespace": "shop",
    }
    assert file.spark().master == "local[2]"
    assert file.spark().config == {"spark.driver.memory": "2g"}
    assert file.table("archive", Config) == Config(topics=["orders"], mode="once")


def test_shared_tables_may_be_left_out(tmp_path: Path) -> None:
    file = file_of(tmp_path, "")
    assert file.spark().master is None
    assert file.cluster() == ClusterConfig()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[archive", "is no TOML"),
        (
            "[archiv]\n",
            r"a table \[archiv\], which no pipeline reads; tables are cluster, spark, decode, archive",
        ),
        (
            "[cluster]\nnamesrv = 1\n[archive]\ntopics = []",
            r"\[cluster\]: `namesrv`: give text in quotes, not a whole number",
        ),
        ("archive = 3", r"archive is a table; write \[archive\]"),
        ("[archive]\nmode = 'once'", "the key `topics` is missing"),
        (
            "[archive]\ntopics = 'orders'",
            "`topics` is 'orders'; give a list in brackets, not text in quotes",
        ),
        (
            "[archive]\ntopics = ['orders', 7]",
            r"`topics` is \['orders', 7\]; give text in quotes, .* \(at `topics\[1\]`\)",
        ),
        ("[archive]\ntopics = ['o']\nmode = 'often'", "`mode` is 'often'; give one of 'once', 'st"),
        (
            "[archive]\ntopics = ['o']\nsince = 2026-11-20",
            "`since` is 2026-11-20; give a time such as 2026-11-20T16:00:00Z, not a day",
        ),
        (
            "[archive]\ntopics = ['o']\nsince = 'yesterday'",
            "`since` is 'yesterday'; give a time such as",
        ),
        ("[archive]\ntopic = ['orders']", r"table \[archive\].*topic"),
        (
            "[archive]\ntopics = ['orders']\nmodes = 'once'",
            r"table \[archive\].*no key `modes`; keys are topics, mode, since",
        ),
        ("[replay]\n", r"has no table \[archive\]"),
    ],
)
def test_what_does_not_fit_is_named(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        _read(tmp_path, text)


def _read(directory: Path, text: str) -> None:
    file = file_of(directory, text)
    file.cluster()
    file.table("archive", Config)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nothing\.toml cannot be read: No such file"):
        ConfigFile(tmp_path / "nothing.toml")


def test_a_cluster_needs_a_name_server() -> None:
    with pytest.raises(ConfigError, match=r"set namesrv in the table \[cluster\]"):
        ClusterConfig().options()


def test_access_is_told_by_the_names_of_the_sources_options(tmp_path: Path) -> None:
    keys = [name for name in ClusterConfig.__struct_fields__ if name != "namesrv"]
    flags = {"tls": "true", "tls_verify": "false", "tls_check_hostname": "true"}
    lines = "\n".join(f"{key} = {flags.get(key, repr(key))}" for key in keys)
    options = file_of(tmp_path, f"[cluster]\nnamesrv = 'a:1'\n{lines}").cluster().options()
    assert set(options) == set(CONNECTING)
    assert options["secretKeyFile"] == "secret_key_file"
    assert options["tlsKeyPasswordEnv"] == "tls_key_password_env"
    assert (options["tls"], options["tlsVerify"], options["tlsCheckHostname"]) == tuple(
        flags.values()
    )


def test_a_secret_in_the_file_is_refused_without_showing_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="secret_key") as error:
        _read(tmp_path, "[cluster]\nsecret_key = 'the-secret-itself'")
    assert "the-secret-itself" not in str(error.value)


def test_misspelt_words_are_told_what_they_are_like(tmp_path: Path) -> None:
    file = file_of(tmp_path, "[cluster]\nnamesvr = 'a:1'\ntsl = true\n")
    with pytest.raises(ConfigError, match="did you mean namesrv for namesvr") as raised:
        file.cluster()
    assert "there is no key `namesvr`, `tsl`" in str(raised.value)
    with pytest.raises(ConfigError, match=r"did you mean archive for archiv\?"):
        file_of(tmp_path, "[archiv]\n")


def test_lenient_leaves_out_what_nothing_reads(tmp_path: Path) -> None:
    path = tmp_path / "lenient.toml"
    path.write_text("[archiv]\n[cluster]\nnamesvr = 'b:1'\nnamesrv = 'a:1'\n")
    with structlog.testing.capture_logs() as logs:
        cluster = ConfigFile(path, lenient=True).cluster()
    assert cluster.namesrv == "a:1"
    assert [entry["log_level"] for entry in logs] == ["warning", "warning"]


def test_topics_are_decoded_as_their_tables_say(tmp_path: Path) -> None:
    file = file_of(
        tmp_path,
        "[decode.orders]\nformat = 'json'\nschema = 'schemas/order.json'\n"
        "[decode.'pay-*']\nformat = 'protobuf'\nschema = '/etc/pay.proto'\nmessage = 'Payment'\n"
        "[decode.events]\nformat = 'json'\n",
    )
    assert file.decode() == {
        "orders": Decode(format="json", schema=str(tmp_path / "schemas" / "order.json")),
        "pay-*": Decode(format="protobuf", schema="/etc/pay.proto", message="Payment"),
        "events": Decode(format="json"),
    }
    assert file_of(tmp_path, "").decode() == {}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("decode = 1", r"decode is a table; write \[decode\]"),
        ("[decode]\norders = 'json'", r"decode.orders is a table; write \[decode.orders\]"),
        ("[decode.orders]\nschema = 'a'", r"table \[decode.orders\]: the key `format` is missing"),
        (
            "[decode.orders]\nformat = 'xml'",
            r"table \[decode.orders\]: `format` is 'xml'; give one of 'json', 'avro', 'protobuf'",
        ),
        (
            "[decode.orders]\nformat = 'json'\nshema = 'a'",
            r"table \[decode.orders\]: there is no key `shema`.* did you mean schema for shema",
        ),
        (
            "[decode.orders]\nformat = 'avro'",
            r"table \[decode.orders\]: format is 'avro', .* give schema",
        ),
        ("[decode.o]\nformat = 'json'\nwire = 'property'", "which needs a registry"),
        ("[decode.o]\nformat = 'avro'\nregistry_user = 'a'", "without a registry"),
        ("[decode.o]\nformat = 'avro'\nregistry = 'http://a'\nschema = 'b'", "leave schema out"),
        ("[decode.o]\nformat = 'json'\nmessage = 'M'", "message is 'M', which is for format"),
        ("[decode.o]\nformat = 'json'\ntable = 'a-b'", "table is 'a-b', give a name of letters"),
    ],
)
def test_a_table_of_decode_that_does_not_fit_is_named(
    tmp_path: Path, text: str, complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        file_of(tmp_path, text).decode()
