"""Give every command of `cometmq admin` its connection, its output, its confirmation and its status.

A command is an asynchronous function of a `Run` and of mqadmin's options. The decorator `command`
adds the options that all commands have. `-o` is the form of the output everywhere; an option of
mqadmin's with that letter has its long name only, and gets the values of `-o` that are not output
forms. Any other common option whose letter the command uses for something else keeps its long name
only.

The exit status is 0 if everything was done, 1 if anything failed, even if only at one of many
servers, and 2 if an argument does not fit.
"""

from __future__ import annotations

import copy
import inspect
import io
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Concatenate,
    Final,
    ParamSpec,
    TypeVar,
    cast,
    get_args,
)

import typer
from typer.models import OptionInfo

from cometmq.cli import connection
from cometmq.cli.admin.completion import completer
from cometmq.cli.admin.output import Column, Form, Output
from cometmq.cli.admin.remedies import in_commands
from cometmq.cli.connection import Connection, Security
from cometmq.cli.help import Command
from cometmq.cli.spread import fields_of
from cometmq.errors import CometMQError, ConfigError, ServersFailedError
from cometmq.logs.plain import plain

if TYPE_CHECKING:
    from cometmq.admin.client import AdminClient
    from cometmq.client.producing.producer import Producer

P = ParamSpec("P")
T = TypeVar("T")

_TIMEOUT_MS: Final = 5_000  # as mqadmin's
_BROKEN_PIPE: Final = (
    128 + signal.SIGPIPE
)  # the status by which shells report a program that SIGPIPE ended
DONE: Final = (Column("server", "Server"), Column("result", "Result"))


def truth(text: str) -> bool:
    """Parse `true` or `false`, as mqadmin's options take them."""
    if text.lower() not in ("true", "false"):
        raise typer.BadParameter(f"{text!r} is neither true nor false")
    return text.lower() == "true"


TRUTH: Final = "true|false"

# The target of a command. mqadmin names the broker by its address.
Broker = Annotated[
    str | None,
    typer.Option("-b", "--brokerAddr", metavar="HOST:PORT", help="The broker."),
]
Cluster = Annotated[str | None, typer.Option("-c", "--clusterName", help="The cluster.")]
Topic = Annotated[str, typer.Option("-t", "--topic", help="The topic.")]

OutputForm = Annotated[
    Form | None,
    typer.Option(
        "-o", "--output", help="How to print it. Default: table.", rich_help_panel="Output"
    ),
]
_DryRun = Annotated[
    bool,
    typer.Option(
        "--dry-run", help="Say what would be changed, and change nothing.", rich_help_panel="Output"
    ),
]
_Yes = Annotated[
    bool,
    typer.Option("-y", "--yes", help="Destroy without asking first.", rich_help_panel="Output"),
]
_SECURITY: Final = {each.name: (each.annotation, each.default) for each in fields_of(Security)}
# The parameters that each command has, with their defaults.
_CONNECTION: Final[dict[str, tuple[Any, object]]] = {
    "namesrv_addr": (connection.NamesrvAddr, None),
    "timeout_ms": (connection.TimeoutMs, _TIMEOUT_MS),
    **_SECURITY,
}


@dataclass
class Run:
    """Holds the clients, the output and the options of a command while it runs."""

    admin: AdminClient
    out: Output
    connection: Connection
    dry_run: bool
    yes: bool
    failures: int = field(default=0, init=False)
    _named: set[str] = field(default_factory=set, init=False)

    async def masters(self, cluster: str | None, broker: str | None = None) -> list[str]:
        """Return the addresses of the servers to change: the cluster's masters, or the one
        broker.
        """
        if broker is not None:
            return [broker]
        return await self.brokers(cluster, slaves=False)

    async def brokers(self, cluster: str | None, *, slaves: bool) -> list[str]:
        """Return the addresses of a cluster's masters, and with `slaves` of its slaves, too."""
        brokers = await self.admin.brokers.addresses(cluster=cluster, slaves=slaves)
        return [at.address for at in brokers]

    async def name_servers(self) -> list[str]:
        """Return the addresses of the name servers."""
        from cometmq.client.limits import namesrv_addresses

        return namesrv_addresses(self.connection.namesrv)

    def producer(self, group: str, *, trace: bool = False) -> Producer:
        """Return a producer for the same cluster, to be started."""
        from cometmq.client.producing.producer import Producer

        return Producer(
            group,
            namesrv=self.connection.namesrv,
            send_timeout_ms=self.connection.timeout_ms,
            credentials=self.connection.credentials,
            tls=self.connection.tls,
            enable_trace=trace,
        )

    async def each(self, call: Awaitable[dict[str, T]]) -> dict[str, T]:
        """Return the results of a call by server, without the servers that failed; print these."""
        return await self.reached(call, dict)

    async def reached(self, call: Awaitable[T], of_results: Callable[[Mapping[str, Any]], T]) -> T:
        """Return what a call returns. If some of its servers fail, print each failure, and return
        what `of_results` makes of the results of the others, by address.

        A command that asks a server many times prints its failure once.
        """
        try:
            return await call
        except ServersFailedError as error:
            self.lacks(error.errors)
            return of_results(error.results)

    def lacks(self, errors: Mapping[str, CometMQError]) -> None:
        """Say once for each of these servers why its part is missing, and go on; the exit status
        will be 1.
        """
        for server, reason in errors.items():
            if server in self._named:
                self.failures += 1
            else:
                self._named.add(server)
                self.failed(server, reason)

    def failed(self, server: str, error: CometMQError | str) -> None:
        """Print a failure and go on; the exit status will be 1."""
        self.failures += 1
        self.out.note(f"cometmq: {server}: {in_commands(str(error))}")

    async def change(
        self,
        what: str,
        servers: Sequence[str],
        call: Callable[[], Awaitable[T]],
        *,
        destroys: bool = False,
        in_steps: bool = False,
    ) -> T | None:
        """Make a change and print its outcome at each of `servers`.

        `what` describes the change and begins with a verb: "delete topic orders". Return what the
        call returned, or None if nothing was changed (`--dry-run`) or some servers failed. With
        `destroys` the user is asked first. A change `in_steps` begins no step before all servers
        have done the one before: if one fails, the change may be done nowhere.
        """
        if self.dry_run:
            self.out.table(DONE, [(server, f"would {what}") for server in servers])
            return None
        if destroys:
            self.confirm(what, servers)
        try:
            result = await call()
        except ServersFailedError as error:
            self.failures += len(error.errors)
            came_to = "unfinished, repeat it" if in_steps else "done"
            done = [
                (server, f"{came_to}: {what}") for server in servers if server not in error.errors
            ]
            failed = [
                (server, f"failed: {in_commands(str(reason))}")
                for server, reason in error.errors.items()
            ]
            self.out.table(DONE, [*done, *failed])
            return None
        self.out.table(DONE, [(server, f"done: {what}") for server in servers])
        return result

    def confirm(self, what: str, servers: Sequence[str], *, for_good: bool = True) -> None:
        """Ask the user for consent. Raises ConfigError where there is nobody to ask."""
        if self.yes:
            return
        sentence = f"{what} at {', '.join(servers)}" if servers else what
        if for_good:
            sentence += ", for good"
        if not sys.stdin.isatty():
            raise ConfigError(
                f"this would {sentence}, and there is no terminal to ask at: repeat it with --yes, "
                "or with --dry-run to see what it does"
            )
        # Not by typer.confirm, which takes Ctrl-C for a no, and writes a blank to stdout.
        with _interrupted_at_once():
            sys.stderr.write(f"This will {plain(sentence)}. Go on? [y/N]: ")
            sys.stderr.flush()
            answer = sys.stdin.readline()
        if answer.strip().lower() not in ("y", "yes"):
            self.out.note("cometmq: nothing was changed")
            raise typer.Exit(1)

    @contextmanager
    def progress(self, what: str) -> Iterator[Callable[[int, int], None]]:
        """Show on stderr how much is done, if that is a terminal: call the returned function with
        the number done and the number of all.
        """
        if not sys.stderr.isatty():
            yield lambda _done, _total: None
            return

        def show(done: int, total: int) -> None:
            sys.stderr.write(f"\r\x1b[K{plain(what)}: {done} of {total}")
            sys.stderr.flush()

        try:
            yield show
        finally:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def command(
    app: typer.Typer, name: str, *, changes: bool = False
) -> Callable[
    [Callable[Concatenate[Run, P], Awaitable[None]]],
    Callable[Concatenate[Run, P], Awaitable[None]],
]:
    """Register an asynchronous function of a Run as the command `name` of `app`.

    One that `changes` something has the options --dry-run and --yes, too.
    """

    def register(
        function: Callable[Concatenate[Run, P], Awaitable[None]],
    ) -> Callable[Concatenate[Run, P], Awaitable[None]]:
        _, *own = inspect.signature(function, eval_str=True).parameters.values()
        other_o = next(filter(None, (_long_name_of_o(p.annotation) for p in own)), None)
        own = [
            p.replace(
                annotation=_free_of({"-o"}, _prepared(p.annotation)),
                kind=inspect.Parameter.KEYWORD_ONLY,
            )
            for p in own
        ]
        taken = {letter for parameter in own for letter in _declared(parameter.annotation)}
        common = {
            key: (free, default)
            for key, (annotation, default) in _common(changes).items()
            if (free := _free_of(taken, annotation)) is not None
        }
        added = [
            inspect.Parameter(
                key, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
            )
            for key, (annotation, default) in common.items()
        ]
        run_function = cast(Callable[..., Awaitable[None]], function)

        def entry(ctx: typer.Context, **given: Any) -> None:
            options = {
                key: given.pop(key)
                if key in common
                else given.get(key, _not_offered(annotation, default))
                for key, (annotation, default) in _common(True).items()
            }
            options["output"] = options["output"] or ctx.obj or Form.TABLE
            _need_text(given.values())
            _execute(lambda run: run_function(run, **given), options)

        context = inspect.Parameter(
            "ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context
        )
        parameters = [context, *own, *added]
        signature = inspect.Signature(parameters)
        entry.__signature__ = signature  # type: ignore[attr-defined]  # functions may have one
        entry.__annotations__ = {p.name: p.annotation for p in parameters}
        entry.__name__ = getattr(function, "__name__", name)
        entry.__doc__ = function.__doc__
        forms = [form.value for form in Form]
        kind = type("_Command", (Command,), {"other_o": other_o, "forms": forms})
        app.command(name, cls=kind)(entry)
        return function

    return register


def _declared(annotation: Any) -> tuple[str, ...]:
    """Return the names of the option that an annotation declares: `-o`, `--order`."""
    for part in get_args(annotation)[1:]:
        if isinstance(part, OptionInfo):
            # typer takes the first name for the default until it looks at the annotation.
            first = (part.default,) if isinstance(part.default, str) else ()
            return (*first, *(part.param_decls or ()))
    return ()


def _long_name_of_o(annotation: Any) -> str | None:
    """Return the long name of an option that mqadmin abbreviates by -o, or None."""
    names = _declared(annotation)
    return names[-1] if "-o" in names else None


def _free_of(taken: set[str], annotation: Any) -> Any:
    """Return the annotation of an option without the names that the command uses otherwise.

    That is None if no name is left.
    """
    names = _declared(annotation)
    left = [name for name in names if name not in taken]
    if len(left) == len(names):
        return annotation
    if not left:
        return None
    kind, option, *_ = get_args(annotation)
    free = copy.copy(option)
    free.default, *others = left
    free.param_decls = tuple(others)
    return Annotated[kind, free]


def _not_offered(annotation: Any, default: object) -> object:
    """Return the value of an option whose names the command uses otherwise: its variable counts."""
    _, option, *_ = get_args(annotation)
    return default if option.envvar is None else os.environ.get(option.envvar, default)


def _prepared(annotation: Any) -> Any:
    """Return the annotation of an option that takes `true` or `false` as a value, where typer makes a
    flag of it; complete its values by its name.
    """
    names = _declared(annotation)
    if not names:
        return annotation
    kind, option, *rest = get_args(annotation)
    prepared = copy.copy(option)
    prepared.autocompletion = option.autocompletion or next(
        filter(None, map(completer, names)), None
    )
    return Annotated[(Any if option.parser is truth else kind, prepared, *rest)]


def _common(changes: bool) -> dict[str, tuple[Any, object]]:
    """Return the annotations and defaults of the options that all commands have."""
    common: dict[str, tuple[Any, object]] = {"output": (OutputForm, None), **_CONNECTION}
    if changes:
        common |= {"dry_run": (_DryRun, False), "yes": (_Yes, False)}
    return common


def _need_text(values: Iterable[object]) -> None:
    """Raise ConfigError for a value that is no text: the shell passed bytes that are not UTF-8."""
    for value in values:
        if isinstance(value, str):
            try:
                value.encode()
            except UnicodeEncodeError:
                raise ConfigError(
                    f"{plain(value):.80} is no text in UTF-8; names, keys and bodies are"
                ) from None


def _execute(function: Callable[[Run], Awaitable[None]], options: Mapping[str, Any]) -> None:
    # Not on uvloop, nor with the other clients: a command is short, and importing them takes longer.
    import asyncio

    security = Security(**{key: options[key] for key in _SECURITY})
    connection = security.connection(options["namesrv_addr"], options["timeout_ms"])
    out = Output(options["output"])
    if isinstance(sys.stdout, io.TextIOWrapper):  # of a terminal that knows no UTF-8, say
        sys.stdout.reconfigure(errors="backslashreplace")

    async def with_admin() -> int:
        async with connection.admin() as admin:
            run = Run(admin, out, connection, options["dry_run"], options["yes"])
            try:
                await function(run)
            finally:
                out.finish()
            return run.failures

    try:
        failures = asyncio.run(with_admin())
    except BrokenPipeError:  # the reader of the output has closed it
        _forget_output()
        raise typer.Exit(_BROKEN_PIPE) from None
    except CometMQError as error:
        error.args = (in_commands(str(error)), *error.args[1:])
        raise
    except OSError as error:  # clients and commands pass on their own as a CometMQError
        _forget_output()
        raise CometMQError(
            f"the result cannot be written: {error}; check the disk and the file that it goes to"
        ) from error
    if failures:
        raise typer.Exit(1)


def _forget_output() -> None:
    """Drop what the buffer of stdout still has; writing it at the end would fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def _interrupted_at_once() -> Iterator[None]:
    """Let Ctrl-C interrupt a wait for the terminal. The loop's own handler would only cancel the
    task, which does not notice while it waits.
    """
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def exactly_one(**given: object) -> None:
    """Check that one of the options was given; raise ConfigError with their names if not.

    Call it with the long names: `exactly_one(brokerAddr=broker, clusterName=cluster)`.
    """
    if sum(value is not None for value in given.values()) != 1:
        names = " or ".join(f"--{name}" for name in given)
        raise ConfigError(f"give {names}, and only one of them")
