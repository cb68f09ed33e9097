"""Source and sink at Java servers that want signed requests over TLS."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.interop.conftest import JAVA_BROKER_CONF, need
from tests.interop.guarded import OWNER, TlsFiles, tls_servers
from tests.spark.sink_query import run_to_end
from tests.waits import SEND_WAIT_MS

from cometmq import Message, Producer, Tls

pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]

COUNT = 60


def test_only_a_job_with_the_secret_reads_and_writes(spark: Any, tmp_path: Path) -> None:
    need("java", "mvn")
    files = TlsFiles(tmp_path / "tls")
    key, wrong = tmp_path / "key", tmp_path / "wrong"
    key.write_text(OWNER.secret_key)
    wrong.write_text("not-the-secret")
    namesrv, broker = tls_servers(files, JAVA_BROKER_CONF)
    with namesrv, broker:
        tls = Tls(**files.options())
        with Producer(
            "f", namesrv=namesrv.address, send_timeout_ms=SEND_WAIT_MS, credentials=OWNER, tls=tls
        ) as producer:
            producer.send(Message("again", b"makes the topic"))
            for at in range(COUNT):
                producer.send(Message("orders", b"%d" % at))
        plain = {"namesrv": namesrv.address, "timeoutMs": "3000"}
        encrypted = {
            **plain,
            "tls": "true",
            "tlsCaFile": str(files.authority.certificate),
            "tlsCertFile": str(files.client.certificate),
            "tlsKeyFile": str(files.client.key),
        }
        access = {**encrypted, "accessKey": OWNER.access_key, "secretKeyFile": str(key)}

        def read(topic: str, **options: str) -> Any:
            reader = spark.read.format("rocketmq").options(**options)
            return reader.option("subscribe", topic).load()

        rows = read("orders", minPartitions="6", **access)
        assert sorted(int(row.body) for row in rows.collect()) == list(range(COUNT))
        rows.select("body").write.format("rocketmq").mode("append").options(
            topic="again", **access
        ).save()
        stream = spark.readStream.format("rocketmq").options(**access)
        stream = stream.options(subscribe="again", startingOffsets="earliest").load()
        copy = stream.where("body != 'makes the topic'").writeStream.format("parquet")
        copy = copy.option("checkpointLocation", str(tmp_path / "checkpoint"))
        copy = copy.trigger(availableNow=True)
        run_to_end(lambda: copy.start(str(tmp_path / "copied")))
        copied = spark.read.parquet(str(tmp_path / "copied")).collect()
        assert sorted(int(row.body) for row in copied) == list(range(COUNT))

        for options, fault in (
            ({**access, "secretKeyFile": str(wrong)}, "AccessDeniedError.*check secret_key"),
            (encrypted, "AccessDeniedError.*pass credentials="),
            ({**access, "tlsCaFile": str(files.stranger.certificate)}, "certificate is refused"),
            (plain, "never answered.*may require TLS"),
        ):
            with pytest.raises(Exception, match=f"(?s){fault}") as refused:
                read("orders", **options).count()
            for secret in (OWNER.secret_key, "not-the-secret"):
                assert secret not in str(refused.value)
        writer = rows.select("body").write.format("rocketmq").mode("append")
        # On the driver, by whoever makes the writer, before a task runs.
        on_driver = "(?s)initialize Python data source writer.*AccessDeniedError.*check secret_key"
        with pytest.raises(Exception, match=on_driver):
            writer.options(**access | {"topic": "again", "secretKeyFile": str(wrong)}).save()
        broker.kill()  # a clean stop takes ten seconds
        namesrv.kill()
