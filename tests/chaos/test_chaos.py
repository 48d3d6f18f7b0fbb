"""A short run of each kind of pool, and that what is wrong would be noticed."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from moonpool import Store
from tests.chaos.checks import Promises
from tests.chaos.client import kept_name
from tests.chaos.cluster import HOSTS, Cluster
from tests.chaos.content import SIZES, content_of, is_right, size_of
from tests.chaos.hosts import Hosts, why_not
from tests.chaos.plan import Fault, Round, kinds, plan
from tests.chaos.run import Chaos
from tests.integration.etcd import needs_etcd
from tests.integration.processes import eventually

needs_hosts = pytest.mark.skipif(bool(why_not()), reason=f"no hosts can be made: {why_not()}")
THREE = (
    (Fault("kill leader", 0, 1.0, 1), Fault("kill client", 1, 1.0, 2)),
    (Fault("corrupt segment", 2, 0.5, 3),),
    (Fault("stop leader", 0, 4.0, 4), Fault("cut node", 0, 2.0, 5)),
)
LONE = (
    (Fault("kill everything", 0, 0.5, 1),),
    (Fault("fill disk", 0, 1.0, 2), Fault("kill node", 1, 0.5, 3)),
    (Fault("reboot node", 1, 0.5, 4),),
)
ROUNDS = (
    Round(0, 3, tight=False, policy="write-through", acts=THREE),
    Round(1, 1, tight=False, policy="write-through", acts=LONE),
)


@needs_hosts
@needs_etcd
@pytest.mark.timeout(300)
@pytest.mark.parametrize("round_", ROUNDS, ids=["three masters", "a lone master"])
def test_nothing_is_lost_wrong_or_hangs(tmp_path: Path, round_: Round) -> None:
    said: list[str] = []
    chaos = Chaos(20, said.append, tmp_path / "chaos")
    chaos.round(round_)
    report = chaos.report
    print(report.table())  # noqa: T201
    assert report.good, "\n".join(said) + report.table()
    assert sum(report.faults.values()) == sum(map(len, round_.acts))
    assert report.operations["load"]["ok"] > 50
    assert report.kept > 5


@needs_hosts
@pytest.mark.timeout(180)
def test_a_promised_object_that_is_gone_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.chaos.checks.SETTLE_S", 1.0)
    calm = Round(0, 1, tight=False, policy="write-through", acts=())
    with Hosts(HOSTS) as hosts, Cluster(tmp_path, hosts, calm) as cluster:
        with Store.connect(cluster.pool, transports=("tcp",)) as store:
            promises = Promises(cluster, store)
            eventually("objects are kept", lambda: len(promises.keys()) > 4, 60.0)
            promises.pause(True)
            assert promises.settle("calm", lambda gone: not gone) is not None
            gone, changed = promises.keys()[:2]
            store.remove_batch([gone, changed], force=True)
            store.put_batch([changed], [b"something else"])
            assert promises.settle("removed", lambda gone: not gone) is None
            promises.read_all()
        assert promises.lost == [f"removed: {gone[1:].decode()}"]
        assert promises.faults == [f"wrong: at the end, {changed!r}"]


def test_a_seed_has_one_schedule() -> None:
    assert plan(1, 0) == plan(1, 0)
    assert plan(1, 0) != plan(2, 0)
    assert plan(7, 3).lines()[0].startswith("round 3: ")


def test_all_faults_come_up_in_few_rounds() -> None:
    seen = {fault.kind for n in range(6) for act in plan(3, n).acts for fault in act}
    assert seen == set(kinds(3))
    alone = [fault.kind for n in range(9) for act in plan(3, n, etcd=False).acts for fault in act]
    assert set(alone) <= set(kinds(1))


def test_every_byte_follows_from_the_key() -> None:
    keys = [kept_name(1, number) for number in range(60)]
    assert {size_of(key) for key in keys} == set(SIZES)
    for key, other in itertools.pairwise(keys):
        content = content_of(key)
        assert is_right(key, content.tobytes())
        assert not is_right(other, content)
        for at in (0, content.size // 2, content.size - 1):
            changed = content.copy()
            changed[at] ^= np.uint8(1)
            assert not is_right(key, changed)
