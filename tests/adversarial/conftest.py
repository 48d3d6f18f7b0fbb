"""Processes that tests share."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from moonpool import Store
from tests.adversarial.harness import Cluster, running

MakeCluster = Callable[..., Cluster]


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Run one master and one node for tests that leave both unharmed."""
    with running(tmp_path_factory.mktemp("shared"), [("shared", "32MB")]) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def frail_processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Run one master with a short put timeout and one node for tests that kill and restart."""
    with running(
        tmp_path_factory.mktemp("frail"), [("frail", "48MB")], put_timeout_s=1.0
    ) as cluster:
        yield cluster


@pytest.fixture
def frail(frail_processes: Cluster) -> Cluster:
    """Return the cluster that tests kill, empty and in order whatever happened to it before."""
    frail_processes.heal()
    return frail_processes


@pytest.fixture
def make_cluster(tmp_path: Path) -> Iterator[MakeCluster]:
    """Return a function that runs a cluster until the test's end."""
    with ExitStack() as stack:

        def make(nodes: list[tuple[str, str]], **master: object) -> Cluster:
            return stack.enter_context(running(tmp_path, nodes, **master))

        yield make


@pytest.fixture(params=["local", "shm"])
def pool(request: pytest.FixtureRequest) -> Iterator[Store]:
    """Return an empty pool as ``store`` does, where the way of the bytes does not matter."""
    yield from opened(request.param, request)


@pytest.fixture(params=["local", "shm", "tcp"])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    """Return an empty pool of about 32 MiB: embedded, and connected in both ways."""
    yield from opened(request.param, request)


def opened(way: str, request: pytest.FixtureRequest) -> Iterator[Store]:
    """Yield an empty pool that is reached in the way named."""
    if way == "local":
        made = Store.local("32MB")
    else:
        cluster: Cluster = request.getfixturevalue("shared")
        made = Store.connect(cluster.address, transports=(way,), put_timeout_s=2.0)
        made.remove_all(force=True)
    yield made
    if way != "local":
        made.remove_all(force=True)
    made.close()
