"""Turn options into the parameters of clients, for every source and sink.

    options = Options("rocketmq", given, (*CONNECTING, "topic", …))
    connecting = Connecting(options)            # on the driver: looks at all of it
    Producer("group", **connecting.parameters())    # in whichever process has its pickle

`Options` refuses an option that holds a secret itself. A Connecting holds names, paths and
addresses only, so it may be pickled and shown.
"""

from __future__ import annotations

from typing import Final, TypedDict

from cometmq.client.access import Credentials, Tls
from cometmq.client.limits import parse_addresses
from cometmq.errors import RemotingError
from cometmq.spark.options import Options
from cometmq.spark.secrets import Secret, options_of

_TLS_DETAILS: Final = (
    "tlsCaFile",
    "tlsCertFile",
    "tlsKeyFile",
    *options_of("tlsKeyPassword"),
    "tlsVerify",
    "tlsCheckHostname",
)
# The options that this module reads.
CONNECTING: Final = (
    "namesrv",
    "namespace",
    "accessKey",
    *options_of("secretKey"),
    *options_of("securityToken"),
    "tls",
    *_TLS_DETAILS,
)


class ClientParameters(TypedDict):
    """The parameters that every client of CometMQ takes."""

    namesrv: str
    namespace: str | None
    credentials: Credentials | None
    tls: Tls | None


class Connecting:
    """How to connect to the brokers. Raises IllegalArgumentError for options that do not fit, and
    ConfigError for a file or variable that cannot be read here.

    namesrv: name-server addresses, host:port, separated by semicolons; namespace: as clients have
        it.
    accessKey: signs requests; with secretKeyFile (a file that holds the secret key) or secretKeyEnv
        (an environment variable that holds it), and securityTokenFile or securityTokenEnv for
        temporary keys.
    tls: true for servers that talk TLS; tlsCaFile, tlsCertFile, tlsKeyFile, tlsVerify,
        tlsCheckHostname as `cometmq.Tls` has them, and tlsKeyPasswordFile or tlsKeyPasswordEnv.
    """

    def __init__(self, options: Options) -> None:
        addresses = options.need("namesrv", "127.0.0.1:9876")
        self.namesrv = ";".join(parse_addresses(addresses))
        self.namespace = options.text("namespace")
        self._access_key = options.text("accessKey")
        self._secret_key = _secret(options, "secretKey")
        self._security_token = _secret(options, "securityToken")
        self._check_access(options)
        self._tls_on = options.flag("tls", False)
        if not self._tls_on:
            for name in _TLS_DETAILS:
                if name in options:
                    raise options.error(name, "is for TLS; give tls=true too")
        self._ca_file = options.text("tlsCaFile")
        self._cert_file = options.text("tlsCertFile")
        self._key_file = options.text("tlsKeyFile")
        self._key_password = _secret(options, "tlsKeyPassword")
        self._verify = options.flag("tlsVerify", True)
        self._check_hostname = options.flag("tlsCheckHostname", True)
        tls = self.parameters()["tls"]
        if tls is not None:
            tls.context()

    def parameters(self) -> ClientParameters:
        """Return the parameters for a client in this process, and read the secrets now. Raise
        ConfigError.
        """
        return {
            "namesrv": self.namesrv,
            "namespace": self.namespace,
            "credentials": self._credentials(),
            "tls": self._tls(),
        }

    def unreachable(self, error: RemotingError) -> RemotingError:
        """Return the error of a request to the name servers, with advice on what to check."""
        return type(error)(
            f"no name server of {self.namesrv} answers: {error}; see that the option namesrv is "
            "right and that the driver can connect there",
            address=error.address,
        )

    # Inside

    def _check_access(self, options: Options) -> None:
        if self._access_key is None:
            for name in (*options_of("secretKey"), *options_of("securityToken")):
                if name in options:
                    raise options.error(name, "needs accessKey, the account that uses it")
        elif self._secret_key is None:
            raise options.error("accessKey", f"needs {' or '.join(options_of('secretKey'))} too")

    def _credentials(self) -> Credentials | None:
        if self._access_key is None or self._secret_key is None:
            return None
        token = None if self._security_token is None else self._security_token.read()
        return Credentials(self._access_key, self._secret_key.read(), token)

    def _tls(self) -> Tls | None:
        if not self._tls_on:
            return None
        password = None if self._key_password is None else self._key_password.read()
        return Tls(
            self._ca_file,
            self._cert_file,
            self._key_file,
            password,
            self._verify,
            self._check_hostname,
        )


def _secret(options: Options, name: str) -> Secret | None:
    in_file, in_variable = options_of(name)
    chosen = options.one_of(in_file, in_variable)
    if chosen is None:
        return None
    place = options.need(
        chosen, f"/etc/rocketmq/{name}" if chosen == in_file else "ROCKETMQ_SECRET"
    )
    return Secret(chosen, place) if chosen == in_file else Secret(chosen, variable=place)
