"""What is pinned, when, and how it ends."""

from __future__ import annotations

import errno
import logging
import threading

import pytest

from moonpool.gpu import pinning as module
from moonpool.gpu.pinning import Pinning

from .fake import FakeDriver

MIB = 1 << 20
BASE = 1 << 30


def present(_address: int, _nbytes: int) -> int:
    return 0


@pytest.fixture
def pinning(driver: FakeDriver) -> Pinning:
    return Pinning(driver, chunk_bytes=MIB, populate=present)


def ranges(pinning: Pinning) -> list[tuple[int, int]]:
    with pinning.hold(0, 0) as table:
        return list(zip(table.starts.tolist(), table.ends.tolist(), strict=True))


def test_chunks_in_order_of_use(pinning: Pinning, driver: FakeDriver) -> None:
    pinning.attach(BASE, 2 * MIB + 4096)
    pinning.attach(BASE - 8 * MIB, 4096)
    assert pinning.wait(60)
    assert list(driver.registered) == [BASE, BASE + MIB, BASE + 2 * MIB, BASE - 8 * MIB]
    assert pinning.pinned_bytes == 2 * MIB + 8192
    assert ranges(pinning) == [
        (BASE - 8 * MIB, BASE - 8 * MIB + 4096),
        (BASE, BASE + MIB),
        (BASE + MIB, BASE + 2 * MIB),
        (BASE + 2 * MIB, BASE + 2 * MIB + 4096),
    ]
    pinning.detach(BASE)
    pinning.detach(BASE)
    assert list(driver.registered) == [BASE - 8 * MIB]
    assert ranges(pinning) == [(BASE - 8 * MIB, BASE - 8 * MIB + 4096)]
    pinning.close()
    assert driver.registered == {}
    assert pinning.pinned_bytes == 0


def test_a_mapping_attached_twice_is_detached_twice(pinning: Pinning, driver: FakeDriver) -> None:
    pinning.attach(BASE, MIB)
    pinning.attach(BASE, MIB)
    assert pinning.wait(60)
    pinning.detach(BASE)
    assert list(driver.registered) == [BASE]
    pinning.detach(BASE)
    assert driver.registered == {}


def test_a_driver_that_refuses_ends_it_and_is_named_once(
    pinning: Pinning, driver: FakeDriver, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse_the_third() -> None:
        if driver.calls["host_register"] == 2:
            driver.fail["host_register"] = 2

    driver.before_register = refuse_the_third
    with caplog.at_level(logging.WARNING):
        pinning.attach(BASE, 8 * MIB)
        pinning.attach(BASE + 64 * MIB, 8 * MIB)
        assert pinning.wait(60)
    assert pinning.pinned_bytes == 2 * MIB
    assert [r.message for r in caplog.records if "not pinned" in r.message] == [
        "memory of the pool is not pinned any further, copies are slower: host_register fails"
    ]
    pinning.close()
    assert driver.registered == {}


def test_a_limit(driver: FakeDriver) -> None:
    pinning = Pinning(driver, chunk_bytes=MIB, limit_bytes=3 * MIB, populate=present)
    pinning.attach(BASE, 8 * MIB)
    assert pinning.wait(60)
    assert pinning.pinned_bytes == 3 * MIB
    pinning.close()


def test_detach_while_a_chunk_is_being_pinned(pinning: Pinning, driver: FakeDriver) -> None:
    pinning_now, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        pinning_now.set()
        assert go_on.wait(60)

    driver.before_register = wait
    pinning.attach(BASE, 8 * MIB)
    assert pinning_now.wait(60)
    detaching = threading.Thread(target=pinning.detach, args=(BASE,))
    detaching.start()
    with pinning.hold(BASE, BASE + 1) as table:  # nobody waits for the driver here
        assert not len(table.starts)
    go_on.set()
    detaching.join()
    assert pinning.wait(60)
    assert driver.registered == {}
    assert driver.calls["host_register"] == 1


def test_detach_waits_for_copies(pinning: Pinning, driver: FakeDriver) -> None:
    pinning.attach(BASE, MIB)
    pinning.attach(BASE + 8 * MIB, MIB)
    assert pinning.wait(60)
    with pinning.hold(BASE + 4096, BASE + 8192):
        pinning.detach(BASE + 8 * MIB)  # another one
        detaching = threading.Thread(target=pinning.detach, args=(BASE,))
        detaching.start()
        while ranges(pinning):
            pass  # from here on, new copies do not use it
        assert list(driver.registered) == [BASE]
    detaching.join()
    assert driver.registered == {}


def test_a_copy_that_never_ends(
    pinning: Pinning, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unpinning under a copy would be worse than memory that stays pinned."""
    monkeypatch.setattr(module, "DETACH_S_MAX", 0.01)
    pinning.attach(BASE, MIB)
    assert pinning.wait(60)
    with pinning.hold(BASE, BASE + 1):
        pinning.detach(BASE)
        assert list(driver.registered) == [BASE]


def test_no_thread_to_be_had(pinning: Pinning, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        pinning.attach(BASE, MIB)
    assert pinning.wait(60)
    assert not pinning.pinned_bytes
    pinning.close()


def test_pages_that_cannot_be_had(driver: FakeDriver, caplog: pytest.LogCaptureFixture) -> None:
    codes = {BASE: 0, BASE + MIB: errno.EINVAL, BASE + 2 * MIB: errno.ENOMEM}
    pinning = Pinning(driver, chunk_bytes=MIB, populate=lambda address, _nbytes: codes[address])
    with caplog.at_level(logging.WARNING):
        pinning.attach(BASE, 8 * MIB)
        assert pinning.wait(60)
    assert list(driver.registered) == [BASE, BASE + MIB]
    assert "Cannot allocate memory" in caplog.text
    pinning.close()


def test_copies_go_first_but_not_for_ever(
    pinning: Pinning, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PAUSE_S_MAX", 60.0)
    begun = threading.Event()
    driver.before_register = begun.set
    with pinning.hold(0, 1):
        pinning.attach(BASE, MIB)
        assert not begun.is_set()
    assert begun.wait(60)
    monkeypatch.setattr(module, "PAUSE_S_MAX", 0.01)
    with pinning.hold(0, 1):
        pinning.attach(BASE + MIB, 2 * MIB)
        assert pinning.wait(60)
    assert pinning.pinned_bytes == 3 * MIB
    pinning.close()
