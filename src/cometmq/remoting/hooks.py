"""Call hooks before and after each call of a client (Java: RPCHook)."""

from __future__ import annotations

from abc import ABC

from cometmq.errors import RemoteError, RemotingError, RpcHookError
from cometmq.protocol.command import RemotingCommand
from cometmq.remoting.credentials import Signer


class RpcHook(ABC):  # noqa: B024 - each of its methods may be left out
    """Sees every request that a client sends, and the answers to those that are not one-way.

    Methods run on the client's loop and must not block. An error that a method raises fails the
    call. A RemotingError or RemoteError reaches the caller as it is; any other error becomes the
    cause of an RpcHookError, so that callers need to handle no other kinds.
    """

    def before_request(self, address: str, command: RemotingCommand) -> None:  # noqa: B027 - each of them may be left out
        """Inspect a command before it is sent to `address` (`host:port`), and add to its `ext`."""

    def after_response(  # noqa: B027 - each of them may be left out
        self, address: str, command: RemotingCommand, answer: RemotingCommand
    ) -> None:
        """Inspect the answer to `command`, whatever its code."""


class RpcHooks:
    """The hooks of one remoting client, in the order in which they were added.

    Clients that share an instance share its hooks. A hook that several clients have added runs
    once, and is removed with the last of these clients. `signer` runs after all hooks, because it
    also signs what they have added to the request.
    """

    def __init__(self, signer: Signer | None = None) -> None:
        self._signer = signer
        self._brought: list[RpcHook] = []
        self._hooks: tuple[RpcHook, ...] = ()

    def __bool__(self) -> bool:
        return self._signer is not None or bool(self._hooks)

    @property
    def see_answers(self) -> bool:
        """Return whether a hook is to see the answers."""
        return bool(self._hooks)

    def add(self, hook: RpcHook) -> None:
        self._brought.append(hook)
        self._hooks = tuple(dict.fromkeys(self._brought))

    def remove(self, hook: RpcHook) -> None:
        self._brought.remove(hook)
        self._hooks = tuple(dict.fromkeys(self._brought))

    def before(self, address: str, command: RemotingCommand) -> None:
        for hook in self._hooks:
            try:
                hook.before_request(address, command)
            except (RemotingError, RemoteError):
                raise
            except Exception as error:
                raise _failed(hook, address, error) from error
        if self._signer is not None:
            self._signer.sign(command)

    def after(self, address: str, command: RemotingCommand, answer: RemotingCommand) -> None:
        for hook in self._hooks:
            try:
                hook.after_response(address, command, answer)
            except (RemotingError, RemoteError):
                raise
            except Exception as error:
                raise _failed(hook, address, error) from error


def _failed(hook: RpcHook, address: str, error: Exception) -> RpcHookError:
    return RpcHookError(
        f"the RPC hook {type(hook).__name__} failed in a call to {address}: {error!r}",
        address=address,
    )
