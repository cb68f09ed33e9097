"""Write docs/reference/configuration.md and pipeline-keys.md: every key and option, out of the code.

    .venv-spark/bin/python scripts/config_reference.py    # without PySpark only the first one

Keys, types, defaults and limits come from the classes; what they mean comes from
`docs/reference/meanings.toml`, and for pipelines from the docstrings that `-h` shows, too.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib.util
import inspect
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from cometmq import aio
from cometmq.access.config import AccessConfig
from cometmq.broker.config import BrokerConfig
from cometmq.broker.operation.config_handlers import LIVE_KEYS as BROKER_LIVE_KEYS
from cometmq.namesrv.config import CHANGEABLE_KEYS as NAMESRV_LIVE_KEYS
from cometmq.namesrv.config import NamesrvConfig
from cometmq.pipelines.catalogue import PIPELINES, pipeline
from cometmq.pipelines.configuration import ClusterConfig, Decode, SparkConfig
from cometmq.pipelines.key_help import keys_of_table
from cometmq.replication.config import LIVE_KEYS as REPLICATION_LIVE_KEYS
from cometmq.replication.config import ReplicationConfig
from cometmq.runtime.configuration.config import keys_of
from cometmq.runtime.configuration.java_keys import JAVA_KEYS
from cometmq.store.config import LIVE_KEYS as STORE_LIVE_KEYS
from cometmq.store.config import StoreConfig

REFERENCE: Final = Path(__file__).parents[1] / "docs" / "reference"
PAGE: Final = REFERENCE / "configuration.md"
PIPELINE_PAGE: Final = REFERENCE / "pipeline-keys.md"
HEAD: Final = """\
<!-- Written by scripts/config_reference.py: change the code or meanings.toml, then run it. -->
# Configuration

Servers read a properties file (`cometmq broker -c broker.conf`, `cometmq namesrv -c namesrv.conf`) with RocketMQ's
own keys; `-p` prints what counts. A key that RocketMQ has and CometMQ does not use is kept and named in the log. Keys
marked *own* are CometMQ's. Keys marked *live* may be changed by requests while the server runs (codes 25 and 318), and no others.
"""
PIPELINE_HEAD: Final = """\
<!-- Written by scripts/config_reference.py: change the docstrings of the code, then run it. -->
# Keys of pipelines

One TOML file holds all of these tables; [the guide](../pipelines.md) says how they work together.
`cometmq pipeline NAME -h` shows the same."""
# The site lays these tables out for phones, too.
TABLE: Final = '<div class="keys" markdown>\n'
END: Final = "\n</div>"
CLIENTS: Final = (
    aio.Producer,
    aio.TransactionProducer,
    aio.PushConsumer,
    aio.LitePullConsumer,
    aio.SimpleConsumer,
)


LIVE_KEYS: Final = {
    BrokerConfig: BROKER_LIVE_KEYS,
    StoreConfig: STORE_LIVE_KEYS,
    ReplicationConfig: REPLICATION_LIVE_KEYS,
    NamesrvConfig: NAMESRV_LIVE_KEYS,
}


def page() -> str:
    """Return the page. Raises ValueError unless each key has a meaning and the other way round."""
    meanings = tomllib.loads((REFERENCE / "meanings.toml").read_text())
    return "\n".join(
        [
            HEAD,
            "## Broker\n",
            *_server_table(BrokerConfig, meanings["broker"]),
            "\n## Store of a broker\n\nIn the broker's file, too.\n",
            *_server_table(StoreConfig, meanings["store"]),
            "\n## Copies of a broker\n\nIn the broker's file, too.\n",
            *_server_table(ReplicationConfig, meanings["replication"]),
            "\n## Name server\n",
            *_server_table(NamesrvConfig, meanings["namesrv"]),
            "\n## Access control\n\nOf brokers and name servers, in their files. See [Security](../security.md).\n",
            *_server_table(AccessConfig, meanings["access"]),
            "\n## Clients\n\nThe same for the blocking classes and for those of `cometmq.aio`.\n",
            *_client_table(meanings["client"]),
            "",
        ]
    )


def pipeline_page() -> str:
    """Return the page on the keys of the pipelines' file. Needs PySpark."""
    return "\n".join([PIPELINE_HEAD, *_pipeline_tables(), ""])


def _server_table(config: type[Any], meanings: dict[str, str]) -> Iterator[str]:
    fields = dict(zip(keys_of(config), dataclasses.fields(config), strict=True))
    _check(fields, meanings, config.__name__)
    yield TABLE
    yield "| key | default | meaning |"
    yield "| --- | --- | --- |"
    for key, field in fields.items():
        marks = ["own"] if key not in JAVA_KEYS else []
        marks += ["live"] if key in LIVE_KEYS.get(config, ()) else []
        limits = [
            f"{word} {field.metadata[word]:,}" for word in ("min", "max") if word in field.metadata
        ]
        extra = f" *{', '.join(marks)}*" if marks else ""
        bounds = f" ({', '.join(limits)})" if limits else ""
        yield f"| `{key}`{extra} | {_default(field)} | {_cell(meanings[key])}{bounds} |"
    yield END


def _default(field: dataclasses.Field[Any]) -> str:
    """Return a default as the file writes it; empty where it depends on the machine or is none."""
    value = field.default
    if value is dataclasses.MISSING or value in (None, ""):
        return ""
    if isinstance(value, enum.Enum):
        value = value.value
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _client_table(meanings: dict[str, list[str]]) -> Iterator[str]:
    options: dict[str, tuple[inspect.Parameter, list[str]]] = {}
    for client in CLIENTS:
        for name, parameter in inspect.signature(client).parameters.items():
            if parameter.kind is not inspect.Parameter.VAR_KEYWORD:
                options.setdefault(name, (parameter, []))[1].append(client.__name__)
    _check(options, meanings, "clients")
    yield TABLE
    yield "| option | default | of | Java's name | meaning |"
    yield "| --- | --- | --- | --- | --- |"
    for name, (parameter, clients) in options.items():
        java, meaning = meanings[name]
        of = "all" if name in ("group",) else ", ".join(clients)
        if {"Producer", "PushConsumer", "LitePullConsumer"} <= set(clients):
            of = "all"
        default = _client_default(parameter.default)
        yield f"| `{name}` | {default} | {of} | {java and f'`{java}`'} | {_cell(meaning)} |"
    yield END


def _client_default(value: Any) -> str:
    if value is inspect.Parameter.empty or value is None:
        return ""
    if isinstance(value, enum.Enum):
        return f"`{value.name}`"
    if callable(value):
        return f"`{value.__name__}`"
    return f"`{value!r}`" if isinstance(value, str | int | bool | tuple) else ""


def _pipeline_tables() -> Iterator[str]:
    tables: dict[str, type[Any]] = {
        "cluster": ClusterConfig,
        "spark": SparkConfig,
        "decode.TOPIC": Decode,
    }
    tables |= {name: pipeline(name).Config for name in PIPELINES}
    for name, config in tables.items():
        yield f"\n### [{name}]\n"
        if name in PIPELINES:
            yield f"{PIPELINES[name]}.\n"
        yield TABLE
        yield "| key | type | default | meaning |"
        yield "| --- | --- | --- | --- |"
        for key in keys_of_table(config):
            default = "**needed**" if key.default is None else key.default and f"`{key.default}`"
            yield f"| `{key.key}` | {_cell(key.type)} | {default} | {_cell(key.meaning)} |"
        yield END


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def _check(keys: Iterable[str], meanings: Iterable[str], whose: str) -> None:
    without = sorted(set(keys) - set(meanings))
    beyond = sorted(set(meanings) - set(keys))
    if without or beyond:
        raise ValueError(
            f"meanings.toml, {whose}: no meaning of {without}, and no key {beyond}; "
            "give each key of the code one line"
        )


if __name__ == "__main__":
    PAGE.write_text(page())
    if importlib.util.find_spec("pyspark"):
        PIPELINE_PAGE.write_text(pipeline_page())
