"""Name the extra that brings a package which is not installed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from cometmq.errors import MissingExtraError


@contextmanager
def needs(extra: str, what: str) -> Iterator[None]:
    """Raise MissingExtraError if an import in this block does not find its package.

    `what` names the feature that needs the packages of `extra`.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if isinstance(error, MissingExtraError) or f"{error.name}.".startswith("cometmq."):
            raise
        raise missing(extra, what, str(error.name)) from error


def missing(extra: str, what: str, package: str) -> MissingExtraError:
    """Return the error for a feature that lacks a package."""
    return MissingExtraError(
        f"{what} needs the package {package}, which is not installed: {command(extra)}"
    )


def lacking(*packages: str) -> str:
    """Return the first of these packages that is not installed, "" if all of them are."""
    return next((package for package in packages if not _is_installed(package)), "")


def _is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except (
        ModuleNotFoundError,
        ValueError,
    ):  # the package above it is missing, or hidden by a test
        return False


def command(extra: str) -> str:
    """Return the command that installs an extra."""
    return f"pip install 'cometmq[{extra}]'"
