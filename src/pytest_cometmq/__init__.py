"""Gives pytest the fixtures of CometMQ; pytest finds this package by its entry point.

It lies beside `cometmq` and imports it when a fixture is first used. So tests that use none of the
fixtures pay nothing for them, and a measurement of coverage sees the import of `cometmq`
(docs/internals/simulation.md).

`cometmq_cluster`   is a cluster in virtual time; an `async def` test with it runs on its loop.
`cometmq_broker`    is a broker over real sockets, with a store of its own for each test.
`cometmq_producer`  is a started producer, `cometmq_consumer` a started lite pull consumer: asyncio
                    clients of `cometmq_cluster` if the test has that, else blocking clients of
                    `cometmq_broker`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from types import MethodType
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from types import TracebackType

    from cometmq.client.blocking.consumers import LitePullConsumer
    from cometmq.client.blocking.producers import Producer
    from cometmq.client.consuming.lite_pull_consumer import LitePullConsumer as AsyncConsumer
    from cometmq.client.producing.producer import Producer as AsyncProducer
    from cometmq.testing.cluster import Cluster
    from cometmq.testing.local_broker import LocalBroker, LocalBrokers

_CLUSTER: Final = "cometmq_cluster"
_BROKER: Final = "cometmq_broker"
_SEED: Final = "--cometmq-seed"
_EVENTS_SHOWN: Final = 30
# The arguments of the markers.
_OPTIONS: Final = {
    _CLUSTER: (
        "seed",
        "name_servers",
        "brokers",
        "slaves",
        "master_role",
        "properties",
        "node_properties",
        "namesrv_properties",
        "accounts",
    ),
    _BROKER: ("properties",),
}
_FAILURE: Final = pytest.StashKey[BaseException]()


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    parser.getgroup("cometmq").addoption(
        _SEED,
        type=int,
        metavar="N",
        help="the seed of clusters in virtual time (default: that of the test's marker, else 0)",
    )
    _import_as_it_is(pluginmanager)


def _import_as_it_is(pluginmanager: pytest.PytestPluginManager) -> None:
    """Have pytest import `cometmq` without rewriting its assertions.

    pytest rewrites all packages of a distribution that has a plugin. That may take longer than the
    tests, in every run where no bytecode is written, and a broker under test would not be the one in
    production. pytest has no call for it; where its attribute is missing, it rewrites.
    """
    names = getattr(pluginmanager.rewrite_hook, "_must_rewrite", None)
    if isinstance(names, set):
        names -= {"cometmq", "pyspark_cometmq", "pyspark_cometmq_store"}


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        f"{_CLUSTER}(seed=0, name_servers=1, brokers=1, slaves=0, properties=None, …): set up the "
        "fixture of this name with arguments of cometmq.testing.Cluster",
    )
    config.addinivalue_line(
        "markers", f"{_BROKER}(properties=None): how the fixture of this name is set up"
    )


# The fixtures


@pytest.fixture
def cometmq_cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Run a cluster in virtual time, the same way in every run of one seed.

    An `async def` test with this fixture runs on the cluster's loop, and so do its async fixtures;
    any other test calls `cometmq_cluster.run(coroutine)`. The marker `cometmq_cluster` takes the
    arguments of `Cluster`; `--cometmq-seed` overrides its seed.
    """
    __tracebackhide__ = True  # pytest shows the message, not these lines
    from cometmq.testing import Cluster

    options = _marked(request, _CLUSTER)
    seed = request.config.getoption(_SEED)
    cluster = Cluster(
        **{"seed": 0, **options, **({} if seed is None else {"seed": seed})}, clock="virtual"
    )
    cluster.__enter__()
    yield cluster
    # A test that failed has left behind what it did not come to close: to say so would only add noise.
    cluster.__exit__(None, request.node.stash.get(_FAILURE, None), None)


@pytest.fixture(scope="session")
def _cometmq_brokers() -> Iterator[LocalBrokers]:
    from cometmq.testing.local_broker import LocalBrokers

    with LocalBrokers() as brokers:
        yield brokers


@pytest.fixture
def cometmq_broker(
    request: pytest.FixtureRequest, _cometmq_brokers: LocalBrokers
) -> Iterator[LocalBroker]:
    """Run a broker over real sockets, with an empty store, in this process.

    The marker `cometmq_broker(properties={...})` sets keys of its configuration.
    """
    with _cometmq_brokers.fresh(**_marked(request, _BROKER)) as broker:
        yield broker


@pytest.fixture
def cometmq_producer(request: pytest.FixtureRequest) -> Iterator[Producer | AsyncProducer]:
    """Start a producer, close it after the test: asyncio with `cometmq_cluster`, else blocking."""
    yield from _client(request, "Producer", "cometmq-producer")


@pytest.fixture
def cometmq_consumer(request: pytest.FixtureRequest) -> Iterator[LitePullConsumer | AsyncConsumer]:
    """Start a lite pull consumer that reads topics from their first message, close it afterwards.

    Subscribe and poll in the test: `cometmq_consumer.subscribe("orders")`. It is an asyncio client
    with `cometmq_cluster`, else a blocking one.
    """
    yield from _client(
        request, "LitePullConsumer", "cometmq-consumer", consume_from="CONSUME_FROM_FIRST_OFFSET"
    )


def _client(
    request: pytest.FixtureRequest, kind: str, group: str, **options: Any
) -> Generator[Any, None, None]:
    if _CLUSTER in request.fixturenames:
        from cometmq import aio

        cluster: Cluster = request.getfixturevalue(_CLUSTER)

        async def started() -> Any:
            client = getattr(aio, kind)(group, namesrv=cluster.namesrv, **options)
            await client.start()
            return client

        client = cluster.run(started())
        yield client
        cluster.run(client.close())
        return
    import cometmq

    broker: LocalBroker = request.getfixturevalue(_BROKER)
    with getattr(cometmq, kind)(group, namesrv=broker.namesrv, **options) as client:
        yield client


def _marked(request: pytest.FixtureRequest, name: str) -> dict[str, Any]:
    """Return the options of the closest marker of that name."""
    marker = request.node.get_closest_marker(name)
    if marker is None:
        return {}
    if marker.args:
        raise pytest.UsageError(f"the marker {name} takes no positional arguments: {marker.args}")
    if unknown := sorted(set(marker.kwargs) - set(_OPTIONS[name])):
        raise pytest.UsageError(
            f"the marker {name} takes no {unknown[0]}; it takes {', '.join(_OPTIONS[name])}"
        )
    return dict(marker.kwargs)


# Async tests and fixtures on the cluster's loop


@pytest.hookimpl(hookwrapper=True, trylast=True)
def pytest_pycollect_makeitem() -> Generator[None, Any, None]:
    """Make async tests that use `cometmq_cluster` plain functions, which run them on its loop.

    As the innermost wrapper it does so before pytest-asyncio looks for coroutine functions.
    """
    outcome = yield
    made = outcome.get_result()
    for item in made if isinstance(made, list) else [made]:
        if (
            isinstance(item, pytest.Function)
            and _CLUSTER in item.fixturenames
            and inspect.iscoroutinefunction(item.obj)
        ):
            item.obj = _on_cluster(item, item.obj)


def _on_cluster(
    item: pytest.Function, test: Callable[..., Coroutine[Any, Any, None]]
) -> Callable[..., None]:
    function = getattr(test, "__func__", test)

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> None:
        __tracebackhide__ = True
        cluster: Cluster = item.funcargs[_CLUSTER]  # type: ignore[assignment]  # pytest declares the values as objects
        try:
            cluster.run(function(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - raised again, with a shorter traceback
            raise error.with_traceback(_below_loop(error)) from error.__cause__

    # pytest 7 takes a test's instance from the method.
    return MethodType(run, test.__self__) if inspect.ismethod(test) else run


def _below_loop(error: Exception) -> TracebackType | None:
    """Return the traceback from the test's own frame on, without the frames of the loop."""
    from cometmq.testing import DeadlockError

    if isinstance(error, DeadlockError):
        return None  # the loop itself raised it, and it names the lines where somebody waits
    frame = error.__traceback__
    while frame is not None and not frame.tb_frame.f_code.co_flags & inspect.CO_COROUTINE:
        frame = frame.tb_next
    return frame or error.__traceback__


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
) -> Generator[None, Any, None]:
    """Run the async fixtures of a test with `cometmq_cluster` on its loop, too."""
    function = _as_written(fixturedef.func)
    is_generator = inspect.isasyncgenfunction(function)
    if (
        not (is_generator or inspect.iscoroutinefunction(function))
        or request.scope != "function"
        or _CLUSTER not in request.fixturenames
    ):
        yield
        return
    cluster: Cluster = request.getfixturevalue(_CLUSTER)
    if request.instance is not None and inspect.ismethod(function):
        function = function.__func__.__get__(request.instance)
    setup: Callable[..., Any] = _generator_fixture if is_generator else _coroutine_fixture
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fixturedef, "func", setup(cluster, function))
        yield


def _as_written(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the fixture's own function. pytest-asyncio before 1.0 wraps those that it will run."""
    if getattr(function, "_force_asyncio_fixture", False) and not (
        inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)
    ):
        return getattr(function, "__wrapped__", function)
    return function


def _call(function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """Call a fixture's function without the arguments that only pytest-asyncio's wrapper takes."""
    known = inspect.signature(function).parameters
    return function(**{name: value for name, value in arguments.items() if name in known})


def _coroutine_fixture(cluster: Cluster, function: Callable[..., Any]) -> Callable[..., object]:
    def setup(**kwargs: Any) -> object:
        return cluster.run(_call(function, kwargs))

    return setup


def _generator_fixture(
    cluster: Cluster, function: Callable[..., AsyncIterator[object]]
) -> Callable[..., Iterator[object]]:
    def setup(**kwargs: Any) -> Iterator[object]:
        generator: AsyncIterator[object] = _call(function, kwargs)

        async def advance() -> object:
            return await anext(generator)

        yield cluster.run(advance())
        try:
            cluster.run(advance())
        except StopAsyncIteration:
            return
        raise RuntimeError(f"the async fixture {function.__name__} yields more than once")

    return setup


# The report of a failure


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, Any, None]:
    """Add the seed, the virtual time and the last events to the report of a test that failed."""
    outcome = yield
    if call.excinfo is not None and call.when != "teardown":
        item.stash[_FAILURE] = call.excinfo.value
    cluster = getattr(item, "funcargs", {}).get(_CLUSTER)
    if cluster is None or call.when != "call" or not outcome.get_result().failed:
        return
    world = cluster.world
    events = [
        f"{at:14.3f} s  {node:12} {event}"
        for at, node, event in world.history
        if not event.startswith("worker ")
    ]
    outcome.get_result().sections.append(
        (
            "cometmq cluster in virtual time",
            f"failed {world.loop.now_s:.3f} s after the start; {_SEED}={world.seed} replays it\n"
            + "\n".join(events[-_EVENTS_SHOWN:]),
        )
    )
