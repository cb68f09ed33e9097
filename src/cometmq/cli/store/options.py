"""Define the arguments and options that the commands of `cometmq store` share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from cometmq.store.config import StoreConfig


# typer does not check the directory (`readable`): the store's errors say better what is wrong and
# what to do.
Directory = Annotated[
    Path,
    typer.Argument(
        metavar="DIR", help="The store directory, which storePathRootDir names.", readable=False
    ),
]
Settings = Annotated[
    Path | None,
    typer.Option(
        "-c",
        "--configFile",
        metavar="FILE",
        help="The broker's settings. Sizes of files are found without them, except unusual ones "
        "of the index.",
    ),
]
CommitLogDirectory = Annotated[
    Path | None,
    typer.Option(
        "--commitlog",
        metavar="DIR",
        help="The commit log, where it is elsewhere (storePathCommitLog).",
        readable=False,
    ),
]


def config_of(directory: Path, settings: Path | None, commit_log: Path | None) -> StoreConfig:
    """Return the settings of the store in `directory`, from a file if one is given."""
    from cometmq.runtime.configuration.config import from_properties, load_properties
    from cometmq.store.config import StoreConfig

    properties = load_properties(settings) if settings is not None else {}
    properties["storePathRootDir"] = str(directory)
    if commit_log is not None:
        properties["storePathCommitLog"] = str(commit_log)
    return from_properties(StoreConfig, properties, str(settings))
