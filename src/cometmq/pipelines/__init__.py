"""Bulk work on messages by Spark: archive, table, publish, replay, redrive, audit, trace, rebuild.

Each pipeline is a package of that name with a `Config`, a `Report` and
`run(config, context) -> Report`:

    from cometmq.pipelines import archive
    from cometmq.pipelines.configuration import ClusterConfig
    from cometmq.pipelines.context import open_context

    with open_context(ClusterConfig(namesrv="127.0.0.1:9876")) as context:
        report = archive.run(archive.Config(topics=["orders"], path="/data/archive"), context)

`cometmq pipeline NAME --config pipeline.toml` does the same with a progress bar, and writes the
report as JSON and as a page. The extra `spark` installs what pipelines need.
"""
