"""The stores of elections: a real etcd, and an API server that keeps Kubernetes' rules."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from moonpool.config_ha import ElectionStore, parse_store
from moonpool.ha import lease_wire
from moonpool.ha.backend import Backend, BackendError, pack
from moonpool.ha.campaign import Campaign, clock
from moonpool.ha.election import Election, Record, Seen, Written
from moonpool.ha.etcd import EtcdBackend
from moonpool.ha.kubernetes import LeaseBackend
from moonpool.ha.look import look_at_lease, look_in
from tests.integration.api_server import ApiServer
from tests.integration.etcd import Etcd, needs_etcd

RECORD = Record("life", "10.0.0.1:50051", 7, 3.0)
Make = Callable[[], Backend]


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    with Etcd(tmp_path_factory.mktemp("etcd")) as started:
        yield started


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[ApiServer]:
    (tmp_path / "token").write_text("secret\n")
    server = ApiServer("secret")
    runner = await server.serve()
    yield server
    await runner.cleanup()


LEASE = ElectionStore("kubernetes", (), "pool", "ns")


@pytest.fixture(params=[pytest.param("etcd", marks=needs_etcd), "kubernetes"])
async def make(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Make]:
    if request.param == "etcd":
        started: Etcd = request.getfixturevalue("etcd")
        store = parse_store(f"etcd://{started.address}/{uuid.uuid4().hex}")
        yield lambda: EtcdBackend(store)
        return
    (tmp_path / "token").write_text("secret\n")
    server = ApiServer("secret")
    runner = await server.serve()
    yield lambda: LeaseBackend(LEASE, f"http://127.0.0.1:{server.port}", tmp_path)
    await runner.cleanup()


async def test_a_record_is_replaced_only_in_the_version_that_was_seen(make: Make) -> None:
    one, other = make(), make()
    assert await one.read() == Seen("", None)
    first = await one.write(RECORD, "")
    assert isinstance(first, Written)
    assert await other.read() == Seen(first.version, RECORD)
    late = await other.write(Record("you", "10.0.0.2:1", 8, 3.0), "")
    assert late == Seen(first.version, RECORD)
    second = await other.write(Record("you", "10.0.0.2:1", 8, 3.0), first.version)
    assert isinstance(second, Written)
    assert second.version != first.version
    assert await one.write(RECORD, first.version) == await other.read()
    await one.close()
    await other.close()


async def test_of_many_claims_at_once_one_succeeds(make: Make) -> None:
    backends = [make() for _ in range(8)]
    claims = [Record(f"life-{i}", f"h:{i + 1}", 7 + i, 3.0) for i in range(8)]
    answers = await asyncio.gather(
        *(each.write(claim, "") for each, claim in zip(backends, claims, strict=True))
    )
    (winner,) = [i for i, answer in enumerate(answers) if isinstance(answer, Written)]
    seen = await backends[0].read()
    assert seen.record == claims[winner]
    for each in backends:
        await each.close()


async def test_campaigns_change_leaders_and_epochs_grow(make: Make) -> None:
    campaigns = [Campaign(Election(f"life-{i}", f"h:{i + 1}", 1.0), make()) for i in range(3)]
    tasks = [asyncio.create_task(each.run()) for each in campaigns]
    epochs: list[int] = []

    async def leader() -> int:
        async with asyncio.timeout(30):
            while True:
                acting = [i for i, c in enumerate(campaigns) if c.election.epoch(clock())]
                assert len(acting) <= 1
                epoch = acting and campaigns[acting[0]].election.epoch(clock())
                if epoch and epoch not in epochs:
                    epochs.append(epoch)
                    return acting[0]
                await asyncio.sleep(0.01)

    first = await leader()
    tasks[first].cancel()  # as a kill: nothing is given back
    second = await leader()
    tasks[second].cancel()
    await asyncio.gather(tasks[second], return_exceptions=True)
    await campaigns[second].resign()
    third = await leader()
    assert len({first, second, third}) == 3
    assert epochs == sorted(epochs)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for each in campaigns:
        await each.close()


@needs_etcd
def test_a_look_asks_the_endpoints_that_answer(etcd: Etcd) -> None:
    name = uuid.uuid4().hex
    store = parse_store(f"etcd://127.0.0.1:1,{etcd.address}/{name}")
    assert look_in(store, 5.0) is None

    async def write() -> None:
        backend = EtcdBackend(store)
        assert isinstance(await backend.write(RECORD, ""), Written)
        await backend.close()

    asyncio.run(write())
    assert look_in(store, 5.0) == RECORD
    with pytest.raises(BackendError):
        look_in(parse_store("etcd://127.0.0.1:1"), 1.0)


@needs_etcd
async def test_what_else_lies_under_the_key_is_an_error(etcd: Etcd) -> None:
    store = parse_store(f"etcd://{etcd.address}/{uuid.uuid4().hex}")
    backend = EtcdBackend(store)
    for value in (b"", b"nonsense", b"[]", b'{"holder": 1}', b'{"holder":"a","address":"b"}'):
        etcd.put(f"/moonpool/{store.name}/leader", value)
        with pytest.raises(BackendError):
            await backend.read()
    await backend.close()


async def test_a_lease_keeps_what_others_wrote_into_it(api: ApiServer, tmp_path: Path) -> None:
    api.leases["ns", "pool"] = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {
            "name": "pool",
            "namespace": "ns",
            "resourceVersion": "5",
            "annotations": {"team": "a"},
            "labels": {"app": "moonpool"},
        },
        "spec": {},
    }
    base = f"http://127.0.0.1:{api.port}"
    backend = LeaseBackend(LEASE, base, tmp_path)
    assert await backend.read() == Seen("5", None)
    assert isinstance(await backend.write(RECORD, "5"), Written)
    lease = api.leases["ns", "pool"]
    assert lease["metadata"]["labels"] == {"app": "moonpool"}
    assert lease["metadata"]["annotations"] == {"team": "a", "moonpool.io/leader": pack(RECORD)}
    assert lease["spec"]["holderIdentity"] == "life"
    assert lease["spec"]["leaseTransitions"] == 1
    assert lease["spec"]["leaseDurationSeconds"] == 3
    found = await asyncio.to_thread(look_at_lease, LEASE, base, 5.0, tmp_path)
    assert found == RECORD
    await backend.close()


async def test_an_api_server_that_refuses_is_an_error(api: ApiServer, tmp_path: Path) -> None:
    backend = LeaseBackend(LEASE, f"http://127.0.0.1:{api.port}", tmp_path)
    (tmp_path / "token").write_text("old")
    with pytest.raises(BackendError, match="401"):
        await backend.read()
    (tmp_path / "token").write_text("secret")
    assert await backend.read() == Seen("", None)
    await backend.close()
    gone = LeaseBackend(LEASE, "http://127.0.0.1:1", tmp_path)
    with pytest.raises(BackendError):
        await gone.write(RECORD, "")
    await gone.close()


def test_a_lease_without_a_version_is_no_lease() -> None:
    with pytest.raises(BackendError):
        lease_wire.seen_in(lease_wire.parse(json.dumps({"metadata": {}}).encode()))
    with pytest.raises(BackendError):
        lease_wire.parse(b"[]")
