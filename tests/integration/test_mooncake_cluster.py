"""``engine = "mooncake"``: Store and the command line over a real Mooncake master and segment."""

from __future__ import annotations

import json
from collections.abc import Iterator
from urllib.request import urlopen

import pytest

from tests.integration.mooncake_checks import CHECKS
from tests.integration.mooncake_shim import SHIM, free_port
from tests.integration.mooncake_wheel import REASON, WHEEL, Cluster, cluster

pytestmark = pytest.mark.skipif(WHEEL is None, reason=REASON)


@pytest.fixture(scope="module")
def mooncake(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("cluster"), "--default_kv_lease_ttl=5000") as running:
        yield running


@pytest.mark.parametrize("check", CHECKS)
def test_store(mooncake: Cluster, check: str) -> None:
    done = mooncake.run("-m", "tests.integration.mooncake_checks", check)
    assert done.returncode == 0, done.stderr.decode(errors="replace")[-4000:]


def moonpool(mooncake: Cluster, *arguments: str, data: bytes = b"") -> tuple[int, bytes, str]:
    done = mooncake.run("-m", "moonpool.cli", *arguments, data=data)
    return done.returncode, done.stdout, done.stderr.decode(errors="replace")


def test_the_command_line(mooncake: Cluster) -> None:
    assert moonpool(mooncake, "put", "cli/a", "-", data=b"hello")[0] == 0
    assert moonpool(mooncake, "get", "cli/a")[:2] == (0, b"hello")
    code, out, _ = moonpool(mooncake, "ls", "cli/", "--json")
    assert (code, [each["key"] for each in json.loads(out)]) == (0, ["cli/a"])
    code, out, _ = moonpool(mooncake, "status", "--json")
    assert (code, len(json.loads(out)["segments"])) == (0, 1)


def test_programs_of_both_sides_see_the_same_objects(mooncake: Cluster) -> None:
    assert moonpool(mooncake, "put", "shared", "-", data=b"from moonpool")[0] == 0
    code = """
import sys
from mooncake.store import MooncakeDistributedStore
store = MooncakeDistributedStore()
assert store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 16 << 20, "tcp", "", sys.argv[1]) == 0
print(store.get("shared"))
store.put("back", b"from mooncake")
store.close()
"""
    done = mooncake.run("-c", code, mooncake.address)
    assert b"from moonpool" in done.stdout
    assert moonpool(mooncake, "get", "back")[1] == b"from mooncake"


def test_the_doctor_says_what_a_cluster_cannot_do(mooncake: Cluster) -> None:
    code, out, _ = moonpool(mooncake, "doctor", "--json")
    (engine,) = [e for e in json.loads(out)["findings"] if e["name"] == "engine"]
    assert (code, engine["state"]) == (0, "note")
    assert "1 segments" in engine["found"]
    assert "look up without leasing" in engine["advice"]
    assert "end sessions" in engine["advice"]


def test_soft_pins_are_the_clusters_own(mooncake: Cluster) -> None:
    for more in ("--soft-pin=60", "--soft-pin=-1"):
        assert moonpool(mooncake, "put", f"soft{more}", "-", more, data=b"x")[0] == 0
    with urlopen(f"http://127.0.0.1:{mooncake.admin_port}/metrics", timeout=30) as page:
        assert "master_soft_pin_key_count 2\n" in page.read().decode()
    for more in ("--soft-pin=60", "--soft-pin=-1"):
        assert moonpool(mooncake, "rm", f"soft{more}", "--force")[0] == 0


def test_what_is_missing_is_said_in_a_line(mooncake: Cluster) -> None:
    nobody = f"127.0.0.1:{free_port()}"
    done = mooncake.run("-m", "moonpool.cli", "get", "x", MOONPOOL_MASTER=nobody)
    assert (done.returncode, done.stderr.count(b"\n")) == (1, 1)
    assert f"mooncake_master at {nobody}".encode() in done.stderr
    path = f"{SHIM}:{mooncake.environment()['PYTHONPATH']}"
    done = mooncake.run("-m", "moonpool.cli", "get", "x", PYTHONPATH=path)
    assert (done.returncode, b"moonpool compat env" in done.stderr) == (2, True)
    done = mooncake.run("-m", "moonpool.cli", "doctor", "--json", MOONPOOL_MASTER=nobody)
    (engine,) = [e for e in json.loads(done.stdout)["findings"] if e["name"] == "engine"]
    assert (done.returncode, engine["state"]) == (1, "bad")
