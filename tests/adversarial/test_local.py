"""Store.local(): embedded, independent of others, and gone with its process."""

import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from moonpool import Store
from moonpool.errors import MoonpoolError
from tests.adversarial.harness import ROOT, environment
from tests.adversarial.values import MIB, NONCES, fault_in, value_of


def test_two_local_stores_know_nothing_of_each_other() -> None:
    with Store.local("16MB") as one, Store.local("16MB") as two:
        one.put("k", b"one")
        assert two.exists("k") is False
        assert two.put("k", b"two") is True
        assert (one.get("k"), two.get("k")) == (b"one", b"two")
        for i in range(40):
            two.put(f"fill-{i}", value_of("fill", 0, MIB - 4096))
        assert one.get("k") == b"one"
        two.remove_all(force=True)
        assert one.get("k") == b"one"
        two.close()
        assert one.get("k") == b"one"
        assert one.put("again", b"x") is True


def test_closing_frees_the_memory() -> None:
    def shared_bytes() -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        kinds = ("RssAnon:", "RssShmem:", "RssFile:")
        return sum(int(x.split()[1]) * 1024 for x in lines if x.startswith(kinds))

    value = value_of("mem", 0, MIB - 4096)
    before = shared_bytes()
    files = len(list(Path("/proc/self/fd").iterdir()))
    threads = threading.active_count()
    for _ in range(6):
        with Store.local("64MB") as store:
            for i in range(60):
                store.put(f"m{i}", value)
    assert shared_bytes() - before < 100 * MIB
    assert len(list(Path("/proc/self/fd").iterdir())) <= files + 2
    assert threading.active_count() <= threads


def test_threads_in_one_local_store(tmp_path: Path) -> None:
    faults: list[str] = []
    with Store.local("12MB") as store:

        def work(seed: int) -> None:
            try:
                for i in range(250):
                    key = f"t{(i * (seed * 2 + 1)) % 120}"
                    store.put(key, value_of(key, (i + seed) % NONCES))
                    got = store.get_batch([key])[0]
                    if got is not None and (fault := fault_in(key, got)):
                        faults.append(fault)
                    if i % 5 == 0:
                        store.remove_batch([key], force=True)
            except BaseException as error:  # noqa: BLE001
                faults.append(repr(error))

        threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not faults, faults[:5]


@pytest.mark.parametrize("end", ["close", "exit", "sleep"])
def test_nothing_is_left_in_shared_memory(end: str) -> None:
    before = {p.name for p in Path("/dev/shm").iterdir()}
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.adversarial.worker", "local", json.dumps({"end": end})],
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
        cwd=ROOT,
    )
    assert child.stdout is not None
    line = child.stdout.readline()
    child.stdout.close()
    if end == "sleep":
        child.kill()
    assert child.wait(10) == (-9 if end == "sleep" else 0)
    maps: list[str] = json.loads(line)
    named = [m for m in maps if not m.endswith("(deleted)") and "memfd" not in m]
    left = [m for m in named if Path(m).exists()]
    assert not left, f"left behind: {left}"
    own = [n for n in {p.name for p in Path("/dev/shm").iterdir()} - before if str(child.pid) in n]
    assert not own


def test_many_local_stores_come_and_go_quickly() -> None:
    start = time.monotonic()
    for i in range(30):
        store = Store.local("16MB")
        store.put("k", b"%d" % i)
        assert store.get("k") == b"%d" % i
        store.close()
        with pytest.raises(MoonpoolError):
            store.get("k")
    assert time.monotonic() - start < 10
