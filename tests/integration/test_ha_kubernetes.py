"""Masters that elect in a Kubernetes Lease: killed, and without an API server for a while."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from moonpool import Store
from tests.integration.api_server import Cluster
from tests.integration.certificates import needs_openssl
from tests.integration.processes import Master, Node, eventually
from tests.integration.trio import FAILOVER_S, LEADS, Load, check_kept, epoch_of

pytestmark = [needs_openssl, pytest.mark.timeout(240)]
HA = "kubernetes://space/pool"


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster(tmp_path / "account")
    with made.running():
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(made.server.port))
        monkeypatch.setenv("KUBERNETES_SERVICE_ACCOUNT_DIR", str(made.account))
    return made


def test_a_leader_is_followed_over_kills_and_an_outage(tmp_path: Path, cluster: Cluster) -> None:
    with contextlib.ExitStack() as stack:
        with cluster.running():
            masters = [stack.enter_context(Master(tmp_path, ha=HA)) for _ in range(3)]
            nodes = [stack.enter_context(Node(tmp_path, masters[0], "n0", ha=HA))]
            store = stack.enter_context(Store.connect(HA, timeout_s=2.0))
            load = stack.enter_context(Load(HA))
            eventually("puts", lambda: len(load.acknowledged) > 50, FAILOVER_S)
            first = epoch_of(store)
            leader = next(each for each in masters if f"leads in epoch {first}" in each.text())
            lease = cluster.lease("space", "pool")
            assert lease["spec"]["holderIdentity"].startswith(leader.address)
            leader.kill()
            eventually("another leads", lambda: epoch_of(store) > first, FAILOVER_S)
            second, before = epoch_of(store), len(load.acknowledged)
            eventually("puts go on", lambda: len(load.acknowledged) > before + 50, FAILOVER_S)
            assert cluster.lease("space", "pool")["spec"]["leaseTransitions"] >= 2
        over = f"no longer leads in epoch {second}"
        eventually("it stops", lambda: any(over in each.text() for each in masters), FAILOVER_S)
        with cluster.running():
            eventually("one leads again", lambda: epoch_of(store) > second, FAILOVER_S)
            before = len(load.acknowledged)
            eventually("puts go on", lambda: len(load.acknowledged) > before + 50, FAILOVER_S)
            load.stop()
            check_kept(store, load.acknowledged)
            assert load.wrong == []
            led = {(int(e), m.address) for m in masters for e in LEADS.findall(m.text())}
            assert len({epoch for epoch, _ in led}) == len(led) >= 3
            assert not any("Traceback" in each.text() for each in [*masters, *nodes])
            stack.close()
