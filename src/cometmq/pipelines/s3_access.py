"""Give other libraries the session's access to S3: the server and the credentials of its S3A.

S3A takes its settings from `spark.hadoop.fs.s3a…`, from files, and from settings of single buckets. Its
credentials may come from a role of the machine, and change by the hour. So each publication of tables asks
S3A for the result.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from cometmq.errors import ConfigError

if TYPE_CHECKING:
    from pyarrow.fs import S3FileSystem

SCHEMES: Final = ("s3a", "s3", "s3n")
_PREFIX: Final = "fs.s3a."
# Amazon's endpoint without a region: each library then finds the endpoint of its region.
_CENTRAL: Final = "s3.amazonaws.com"
_REGION: Final = re.compile(r"(?:^|\.)s3[.-]([a-z]+-[a-z-]+-\d+)\.amazonaws\.com(?:\.cn)?$")
# Servers other than Amazon's have no regions, but the signature of a request needs one.
_ANY_REGION: Final = "us-east-1"
_TEMPORARY: Final = "software.amazon.awssdk.auth.credentials.AwsSessionCredentials"
# With these, S3 decrypts an object for everybody who may read it.
_PLAIN_ENCRYPTIONS: Final = ("", "AES256", "SSE-KMS", "DSSE-KMS")


@dataclass(frozen=True)
class S3Access:
    """Holds what a library needs to reach S3.

    endpoint: the URL of the server, None for Amazon's server of the region.
    by_path: the path of a URL names the bucket, not its host.
    """

    key: str = field(repr=False)
    secret: str = field(repr=False)
    token: str | None = field(repr=False)
    region: str
    endpoint: str | None = None
    by_path: bool = False

    def of_pyiceberg(self) -> dict[str, str]:
        """Return the properties of PyIceberg's file access."""
        found = {
            "s3.access-key-id": self.key,
            "s3.secret-access-key": self.secret,
            "s3.region": self.region,
            "s3.force-virtual-addressing": str(not self.by_path).lower(),
        }
        if self.token is not None:
            found["s3.session-token"] = self.token
        if self.endpoint is not None:
            found["s3.endpoint"] = self.endpoint
        return found

    def of_deltalake(self) -> dict[str, str]:
        """Return the storage options of deltalake."""
        found = {
            "AWS_ACCESS_KEY_ID": self.key,
            "AWS_SECRET_ACCESS_KEY": self.secret,
            "AWS_REGION": self.region,
            "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": str(not self.by_path).lower(),
            # A version is created only if its number is free.
            "AWS_CONDITIONAL_PUT": "etag",
        }
        if self.token is not None:
            found["AWS_SESSION_TOKEN"] = self.token
        if self.endpoint is not None:
            found["AWS_ENDPOINT_URL"] = self.endpoint
            found["AWS_ALLOW_HTTP"] = str(self.endpoint.startswith("http://")).lower()
        return found

    def of_arrow(self) -> S3FileSystem:
        """Return Arrow's file system, whose paths begin with the bucket."""
        from pyarrow.fs import S3FileSystem

        return S3FileSystem(
            access_key=self.key,
            secret_key=self.secret,
            session_token=self.token,
            region=self.region,
            endpoint_override=self.endpoint,
            force_virtual_addressing=not self.by_path,
        )


def access_of(s3a: Any, bucket: str, gateway: Any) -> S3Access:
    """Return the access to a bucket that S3A has; `s3a` is an object behind Py4J's gateway.

    Raise ConfigError for settings that the other libraries do not support, and Java's errors.
    """
    from py4j.java_gateway import is_instance_of

    settings = s3a.getConf()

    def setting(name: str) -> str:
        return (settings.getTrimmed(_PREFIX + name) or "").strip()

    encryption = setting("encryption.algorithm")
    if encryption not in _PLAIN_ENCRYPTIONS:
        raise ConfigError(
            f"{_PREFIX}encryption.algorithm is {encryption!r} for the bucket {bucket!r}: readers of tables "
            "do not have its keys, so publish needs encryption by the server (AES256, SSE-KMS) or none"
        )
    credentials = s3a.getS3AInternals().shareCredentials("tables").resolveCredentials()
    key, secret = credentials.accessKeyId(), credentials.secretAccessKey()
    if not key or not secret:
        raise ConfigError(
            f"S3A reaches the bucket {bucket!r} without credentials: publish needs them to write tables, so give "
            f"{_PREFIX}access.key and {_PREFIX}secret.key, or a role"
        )
    endpoint = _endpoint(setting("endpoint"), tls=setting("connection.ssl.enabled") != "false")
    region = setting("endpoint.region") or _region_in(endpoint)
    if not region:
        region = s3a.getS3AInternals().getBucketLocation() if endpoint is None else _ANY_REGION
    token = credentials.sessionToken() if is_instance_of(gateway, credentials, _TEMPORARY) else None
    return S3Access(key, secret, token, region, endpoint, setting("path.style.access") == "true")


def _endpoint(given: str, *, tls: bool) -> str | None:
    if not given or given.rpartition("/")[2] == _CENTRAL:
        return None
    return given if "://" in given else f"{'https' if tls else 'http'}://{given}"


def _region_in(endpoint: str | None) -> str:
    found = _REGION.search((endpoint or "").rpartition("/")[2])
    return found[1] if found else ""
