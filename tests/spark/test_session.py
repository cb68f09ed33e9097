"""Settings that `spark_session` makes for a JVM that it starts, and those that it leaves to others."""

from __future__ import annotations

from pathlib import Path

import pytest

from cometmq.spark import session

OPTIONS = "spark.driver.extraJavaOptions"


@pytest.fixture(autouse=True)
def nothing_elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("PYSPARK_SUBMIT_ARGS", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("SPARK_SUBMIT_OPTS", raising=False)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))


def test_a_new_jvm_gets_the_collector_that_takes_least_time() -> None:
    assert session.of_new_jvm({"spark.driver.memory": "1g"})[OPTIONS] == "-XX:+UseParallelGC"


@pytest.mark.parametrize("name", [OPTIONS, "spark.driver.defaultJavaOptions"])
def test_whoever_gives_options_of_java_chooses_the_collector(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Java does not start with two collectors."""
    assert OPTIONS not in session.of_new_jvm({name: "-XX:+UseZGC"})
    with monkeypatch.context() as patch:
        patch.setenv("PYSPARK_SUBMIT_ARGS", f"--conf {name}=-XX:+UseZGC pyspark-shell")
        assert OPTIONS not in session.of_new_jvm({})
    with monkeypatch.context() as patch:
        patch.setenv("JAVA_TOOL_OPTIONS", "-XX:+UseZGC")
        assert OPTIONS not in session.of_new_jvm({})
    (tmp_path / "spark-defaults.conf").write_text(f"{name} -XX:+UseZGC\n")
    assert OPTIONS not in session.of_new_jvm({})


def test_a_jar_that_others_name_stays(tmp_path: Path) -> None:
    (tmp_path / "spark-defaults.conf").write_text("spark.jars /theirs.jar\n")
    assert "spark.jars" not in session.of_new_jvm({})
