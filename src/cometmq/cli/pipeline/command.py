"""Define `cometmq pipeline NAME --config pipeline.toml`: bulk work on Spark.

The exit status is 0 if all is well; 1 if the report names something to look at, or the pipeline
ended before it was done; 2 if it could not begin; 130 or 143 if it was stopped.
"""

from __future__ import annotations

from enum import Enum
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from cometmq import extras
from cometmq.cli.forms import Form, Output
from cometmq.cli.pipeline.failure import StoppedError, said_in_a_sentence, stoppable
from cometmq.cli.pipeline.service import is_supervised, supervise
from cometmq.errors import ConfigError
from cometmq.logs.loggers import get_logger
from cometmq.pipelines.catalogue import PIPELINES, SERVICES
from cometmq.pipelines.table.notes import Notes

if TYPE_CHECKING:
    from cometmq.pipelines.configuration import ConfigFile
    from cometmq.pipelines.report import Report

log: Final = get_logger(__name__)

_SETTINGS: Final = {
    # Spark's own bars would be drawn over ours.
    "spark.ui.showConsoleProgress": "false",
    # Spark keeps past queries for its pages, each with a plan of up to a megabyte. Its default of 1,000
    # queries, jobs and stages would fill the driver of a stream.
    "spark.sql.ui.retainedExecutions": "50",
    "spark.ui.retainedJobs": "200",
    "spark.ui.retainedStages": "200",
    "spark.ui.retainedTasks": "10000",
}

Name = Enum("Name", {name: name for name in PIPELINES})  # type: ignore[misc]  # mypy wants an Enum's members written out


def _show_script(wanted: bool) -> None:
    if wanted:
        found = find_spec("pyspark_cometmq")
        assert found is not None
        assert found.origin is not None
        typer.echo(Path(found.origin).with_name("submit.py"))
        raise typer.Exit


_Config = Annotated[
    Path,
    typer.Option(
        "-c",
        "--config",
        metavar="FILE",
        help="TOML, with a table [NAME]; its keys are shown by NAME -h.",
    ),
]
_Reports = Annotated[
    Path,
    typer.Option(metavar="DIR", help="Where NAME.json and NAME.html are written."),
]
_Lenient = Annotated[
    bool, typer.Option("--lenient", help="Take misspelt keys, too, and log them as warnings.")
]
_Script = Annotated[
    bool,
    typer.Option(
        "--script",
        help="Print the file that spark-submit takes in place of `cometmq pipeline`, and exit.",
        callback=_show_script,
        is_eager=True,
    ),
]


def pipeline(
    name: Annotated[Name, typer.Argument(metavar="NAME", help="A pipeline of the list below.")],
    config: _Config,
    reports: _Reports = Path("reports"),
    output: Output = Form.TABLE,
    lenient: _Lenient = False,
    _script: _Script = False,
) -> None:
    """Run a pipeline on Spark: on this machine, or where the file or spark-submit says."""
    if package := extras.lacking("pyspark"):
        raise extras.missing("spark", "a pipeline", package)
    from cometmq.pipelines.catalogue import pipeline as module_of
    from cometmq.pipelines.configuration import ConfigFile

    title = str(name.value)
    with Notes().failure_noted():
        file = ConfigFile(config, lenient=lenient)
        settings = file.table(title, module_of(title).Config)
        check_reports(reports)
    if title in SERVICES and not is_supervised():
        raise typer.Exit(supervise(settings, title, config, reports, output, lenient=lenient))
    report = run_here(title, file, settings, reports)
    try:
        files = write_report(report, reports, title)
    except OSError as error:
        raise ConfigError(
            f"the report cannot be written to {reports}: {error.strerror or error}; "
            "name another directory with --reports"
        ) from error
    if output is Form.JSON:
        typer.echo(files[0].read_bytes(), nl=False)
    else:
        from cometmq.cli.pipeline import screen

        screen.print_report(report, files)
    if not report.holds:
        raise typer.Exit(1)


def run_here(title: str, file: ConfigFile, settings: Any, reports: Path) -> Report:
    """Run a pipeline in this process, and return its report. Raise typer.Exit after a signal."""
    from cometmq.cli.pipeline import screen
    from cometmq.pipelines.catalogue import pipeline as module_of
    from cometmq.pipelines.configuration import SparkConfig
    from cometmq.pipelines.context import open_context, silence_spark

    cluster, spark, decode = file.cluster(), file.spark(), file.decode()
    silence_spark()

    def publish(report: Report) -> None:
        # A stream goes on, and its next round writes the report again.
        try:
            write_report(report, reports, title)
        except OSError as error:
            log.warning("the report cannot be written", directory=str(reports), reason=str(error))

    spark = SparkConfig(master=spark.master, config={**_SETTINGS, **spark.config})
    try:
        with (
            screen.progress() as progress,
            open_context(cluster, spark, progress, f"cometmq {title}", publish, decode) as context,
            Notes().failure_noted(),
            said_in_a_sentence(file.path, title),
            stoppable(title),
        ):
            return module_of(title).run(settings, context)
    except StoppedError as error:  # printed when the bars are gone
        typer.echo(f"cometmq: {error}", err=True)
        raise typer.Exit(error.exit_status) from error


def write_report(report: Report, directory: Path, name: str) -> tuple[Path, Path]:
    """Write a report's JSON and page, and return their paths. Raise OSError."""
    from cometmq.pipelines.page import write_page

    files = directory / f"{name}.json", directory / f"{name}.html"
    report.write_json(files[0])
    write_page(report, files[1])
    return files


def check_reports(directory: Path) -> None:
    """Raise ConfigError where no report can be written: better now than after hours of work."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=directory):
            pass
    except OSError as error:
        raise ConfigError(
            f"--reports is {directory}, where nothing can be written: {error.strerror or error}; "
            "name another directory"
        ) from error


pipeline.__doc__ = f"{pipeline.__doc__}\n\n" + "\n\n".join(
    f"{name}: {line}" for name, line in PIPELINES.items()
)
