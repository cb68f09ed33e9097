"""Run a server of S3 (moto), and use its buckets as a file system of archives without Spark."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final
from urllib.parse import urlsplit

import pytest
from tests.spark.hadoop_aws import ROOT

from cometmq.pipelines.locations import Location, RemoteFiles
from cometmq.pipelines.s3_access import S3Access

PACKAGES: Final = ROOT / ".venv-spark-tables"
# The program ends when its parent has ended.
_PROGRAM: Final = """
import os, sys, time
from moto.server import ThreadedMotoServer
running = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
running.start()
print("http://{}:{}".format(*running.get_host_and_port()), flush=True)
while os.getppid() == int(sys.argv[1]):
    time.sleep(0.5)
os._exit(0)
"""
KEY, SECRET, REGION = "key", "secret", "us-east-1"


def require(there: bool, sentence: str) -> None:
    """Skip the test unless a condition holds; in CI, where everything is installed, fail it."""
    if there:
        return
    if os.environ.get("CI") == "true":
        pytest.fail(sentence)
    pytest.skip(sentence)


@contextmanager
def server() -> Iterator[str]:
    """Run a server of S3 and of Glue, and yield its URL. Its packages are on the path meanwhile.

    The server has its own process, because deltalake holds Python's lock while it calls the server.
    """
    require(PACKAGES.is_dir(), "needs packages of a server of S3, which `make spark` gets")
    sys.path.append(str(PACKAGES))
    running = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, str(os.getpid())],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # a line for each request
        env={**os.environ, "PYTHONPATH": str(PACKAGES)},
        text=True,
    )
    try:
        assert running.stdout is not None
        yield running.stdout.readline().strip()
    finally:
        running.kill()
        running.communicate()
        sys.path.remove(str(PACKAGES))


def access_to(endpoint: str) -> S3Access:
    return S3Access(KEY, SECRET, None, REGION, endpoint, by_path=True)


def client_of(endpoint: str) -> Any:
    import boto3

    return boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name=REGION,
        aws_access_key_id=KEY,
        aws_secret_access_key=SECRET,
    )


class Bucket(RemoteFiles):
    """The buckets of a server. `step` is called before and after each change of a path."""

    def __init__(self, endpoint: str, step: Callable[[str], None] = lambda _path: None) -> None:
        self._client = client_of(endpoint)
        self._access = access_to(endpoint)
        self._step = step

    def at(self, uri: str) -> Location:
        return Location(self, uri)

    def s3_access(self, _path: str, /) -> S3Access:
        return self._access

    def read(self, path: str, /) -> bytes:
        try:
            found: bytes = self._client.get_object(**_named(path))["Body"].read()
        except self._client.exceptions.NoSuchKey as error:
            raise FileNotFoundError(path) from error
        return found

    def write(self, path: str, data: bytes, /) -> None:
        self._step(path)
        self._client.put_object(**_named(path), Body=data)
        self._step(path)

    def create(self, path: str, data: bytes, /) -> None:
        self._step(path)
        try:
            self._client.put_object(**_named(path), Body=data, IfNoneMatch="*")
        except self._client.exceptions.ClientError as error:
            if error.response["Error"]["Code"] == "PreconditionFailed":
                raise FileExistsError(path) from error
            raise
        self._step(path)

    def move(self, from_: str, to: str, /) -> None:
        self._step(from_)
        try:
            self._client.copy_object(**_named(to), CopySource=_named(from_))
        except self._client.exceptions.NoSuchKey as error:
            raise FileNotFoundError(from_) from error
        self._step(from_)
        self._client.delete_object(**_named(from_))

    def remove(self, path: str, /) -> None:
        self._step(path)
        for name in self.sizes(path):
            self._client.delete_object(**_named(f"{path}/{name}"))
        self._client.delete_object(**_named(path))
        self._step(path)

    def sizes(self, directory: str, /) -> dict[str, int]:
        name = _named(directory)
        prefix = f"{name['Key']}/"
        pages = self._client.get_paginator("list_objects_v2").paginate(
            Bucket=name["Bucket"], Prefix=prefix
        )
        return {
            one["Key"].removeprefix(prefix): one["Size"]
            for page in pages
            for one in page.get("Contents", ())
        }

    def exists(self, path: str, /) -> bool:
        name = _named(path)
        found = self._client.list_objects_v2(Bucket=name["Bucket"], Prefix=name["Key"])
        keys = [one["Key"] for one in found.get("Contents", ())]
        return any(key == name["Key"] or key.startswith(f"{name['Key']}/") for key in keys)


def _named(uri: str) -> dict[str, str]:
    parts = urlsplit(uri, allow_fragments=False)
    return {"Bucket": parts.netloc, "Key": parts.path.strip("/")}
