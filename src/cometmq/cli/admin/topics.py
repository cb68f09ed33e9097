"""Defines mqadmin's commands for topics."""

from __future__ import annotations

from typing import Annotated

import typer

from cometmq.cli.admin.command import Cluster, Run, command
from cometmq.cli.admin.output import Column

app = typer.Typer()


@command(app, "topicList")
async def topic_list(run: Run) -> None:
    """List the topics of all clusters."""
    run.out.table([Column("topic", "Topic")], [(name,) for name in await run.admin.topics.names()])


@command(app, "deleteTopic", changes=True)
async def delete_topic(
    run: Run,
    topic: Annotated[str, typer.Option("-t", "--topic", help="The topic.")],
    cluster: Cluster,
) -> None:
    """Delete a topic with its messages at the masters and the name servers."""
    await run.change(
        f"delete topic {topic}",
        await run.masters(cluster),
        lambda: run.admin.topics.delete(topic, cluster=cluster),
        destroys=True,
    )
