"""Let `cometmq pipeline NAME -h` show the keys of the pipeline's table, besides the options."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand

from cometmq import extras
from cometmq.cli.help import Command
from cometmq.pipelines.catalogue import PIPELINES


class PipelineCommand(Command):
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        # The option for help ends the command before typer looks at NAME.
        names = [word for word in args if word in PIPELINES]
        ctx.meta["cometmq.pipeline"] = names[0] if names else None
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        TyperCommand.format_help(self, ctx, formatter)
        if (name := ctx.meta.get("cometmq.pipeline")) is not None:
            print_keys(name)


def print_keys(name: str) -> None:
    """Print tables of the keys of [name], [cluster] and [spark]."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from cometmq.pipelines.catalogue import pipeline
    from cometmq.pipelines.configuration import ClusterConfig, SparkConfig
    from cometmq.pipelines.key_help import keys_of_table

    console = Console(highlight=False)
    if extras.lacking("pyspark"):
        console.print(
            "Its keys are shown once Spark is installed:", escape(extras.command("spark"))
        )
        return
    kinds: dict[str, type[Any]] = {
        name: pipeline(name).Config,
        "cluster": ClusterConfig,
        "spark": SparkConfig,
    }
    for table, kind in kinds.items():
        shown = Table(title=escape(f"[{table}]"), title_justify="left", show_edge=False)
        shown.add_column("key", no_wrap=True)
        shown.add_column("type", ratio=2)
        shown.add_column("default", ratio=2, overflow="fold")
        shown.add_column("meaning", ratio=6)
        for key in keys_of_table(kind):
            default = "required" if key.default is None else key.default
            shown.add_row(key.key, *map(escape, (key.type, default, key.meaning)))
        console.print(shown)
        console.print()
