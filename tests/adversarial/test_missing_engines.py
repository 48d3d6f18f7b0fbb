"""NIXL asked for where it cannot work, and a GPU where there is none: one line, and on it goes."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from moonpool import Store, gpu
from moonpool.errors import ConfigError, TransferError
from moonpool.vllm.support import check_mover
from tests.adversarial.harness import ROOT, Cluster, environment, eventually
from tests.adversarial.leftovers import nothing_left, within

WHEELS = ("nixl_cu12", "nixl_cu13", "nixl")
BROKEN = {
    "missing": "raise ModuleNotFoundError('no module', name=__name__)",
    "without its libraries": "raise ImportError('libucp.so.0: cannot open shared object file')",
    "with a library that fails": "raise OSError('cannot allocate memory in static TLS block')",
    "without what is in it": "import sys\nsys.modules[__name__ + '._bindings'] = sys",
    "that fails in an unknown way": "raise RuntimeError('no idea')",
    "that aborts": "import os\nos.abort()",
}
CLIENT = """
import json, logging, sys, threading, time
from moonpool import Store
logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
size = 200_000
with Store.connect(sys.argv[1], transports=("nixl", "tcp"), timeout_s=2.0) as store:
    start = time.monotonic()
    keys = ["k%d" % i for i in range(20)]
    values = [bytes([i]) * size for i in range(20)]
    codes = store.put_batch(keys, values)
    first_s = time.monotonic() - start
    right = store.get_batch(keys) == values and store.get("k7") == values[7]
    again_s = time.monotonic() - start - first_s
print(json.dumps([codes, right, first_s, again_s, threading.active_count()]))
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Run a master alone."""
    made = Cluster(tmp_path)
    made.start_master()
    made.connect()
    yield made
    made.close()


def broken(tmp_path: Path, kind: str) -> Path:
    """Return a directory whose NIXL wheels do not work."""
    place = tmp_path / "wheels"
    for name in WHEELS:
        (place / name).mkdir(parents=True)
        (place / name / "__init__.py").write_text(BROKEN[kind])
    return place


def node(cluster: Cluster, **options: object) -> None:
    """Start a node that is to offer NIXL."""
    daemon = cluster.node("a", "16MB", engines="nixl", **options).start()
    eventually(lambda: cluster.ready_nodes() == 1, 10, daemon.tail())


def run_client(cluster: Cluster, path: str, backends: str) -> tuple[list[object], list[str]]:
    """Run a client that prefers NIXL; return what it found and its log's warnings."""
    done = subprocess.run(
        [sys.executable, "-c", CLIENT, cluster.address],
        capture_output=True, text=True, timeout=40,
        env=environment() | {"PYTHONPATH": path, "MOONPOOL_CLIENT_NIXL_BACKENDS": backends},

        cwd=ROOT, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [line for line in done.stderr.splitlines() if not line.startswith("INFO")]
    return json.loads(done.stdout), lines


def check(found: list[object], lines: list[str]) -> None:
    """Check that all went over TCP, in time, with one line of the log about it."""
    codes, right, first_s, again_s, threads = found
    assert codes == [0] * 20
    assert right
    assert isinstance(first_s, float)
    assert isinstance(again_s, float)
    assert first_s < 12, first_s
    assert again_s < 5, again_s
    assert threads == 1, threads
    assert len(lines) == 1, lines
    assert "nixl" in lines[0], lines


@pytest.mark.parametrize("kind", BROKEN)
def test_a_wheel_that_does_not_work_anywhere(
    cluster: Cluster, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = str(broken(tmp_path, kind))
    monkeypatch.setenv("PYTHONPATH", place)
    node(cluster)
    check(*run_client(cluster, place, "UCX"))
    with Store.connect(cluster.address, transports=("shm",)) as near:
        assert near.get("k3") == bytes([3]) * 200_000
    assert cluster.nodes["a"].alive
    assert "Traceback" not in cluster.nodes["a"].tail()


@pytest.mark.skipif(find_spec("nixl_cu12") is None, reason="needs a wheel of NIXL")
@pytest.mark.parametrize("end", ["client", "node"])
def test_no_backend_that_both_have(cluster: Cluster, end: str) -> None:
    node(cluster, nixl_backends="NO_SUCH" if end == "node" else "UCX")
    check(
        *run_client(
            cluster, os.environ.get("PYTHONPATH", ""), "NO_SUCH" if end == "client" else "UCX"
        )
    )


def test_a_gpu_that_is_not_there_is_one_clear_error() -> None:
    if Path("/dev/nvidiactl").exists():
        pytest.skip("there is a GPU")
    with nothing_left(), within(5.0):
        for _ in range(3):
            with pytest.raises(TransferError) as caught:
                gpu.open_driver()
            assert "\n" not in str(caught.value)
            assert "CUDA" in str(caught.value)


def test_a_mover_process_on_a_cpu_is_refused_in_one_line() -> None:
    with pytest.raises(ConfigError) as caught:
        check_mover("process", "cpu")
    assert "\n" not in str(caught.value)
    assert "mover" in str(caught.value)
