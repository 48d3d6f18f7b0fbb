"""An etcd that wants certificates and passwords: masters, nodes and clients have them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from moonpool import Store
from moonpool.config_ha import parse_store
from moonpool.ha.backend import BackendError
from moonpool.ha.look import look_in
from tests.integration.certificates import Authority, needs_openssl
from tests.integration.etcd import Etcd, needs_etcd
from tests.integration.processes import Master, Node, eventually, ready_segments
from tests.integration.trio import FAILOVER_S, epoch_of

pytestmark = [needs_etcd, needs_openssl, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[Etcd]:
    with Etcd(tmp_path_factory.mktemp("etcd"), authority=authority) as started:
        started.require_passwords("of root", "pool", "of the pool: %&?")
        yield started


@pytest.fixture(scope="module")
def files(authority: Authority) -> dict[str, object]:
    cert, key = authority.issue("moonpool")
    password = authority.folder / "password"
    password.write_text("of the pool: %&?\n")
    return {
        "ca": authority.ca,
        "cert": cert,
        "key": key,
        "user": "pool",
        "password_file": password,
    }


def address(etcd: Etcd, pool: str, files: dict[str, object], **other: object) -> str:
    query = "&".join(f"{key}={value}" for key, value in (files | other).items())
    return f"etcds://{etcd.address}/{pool}?{query}"


def test_masters_elect_and_others_follow(
    tmp_path: Path, etcd: Etcd, files: dict[str, object]
) -> None:
    ha = address(etcd, "followed", files)
    with contextlib.ExitStack() as stack:
        masters = [stack.enter_context(Master(tmp_path, ha=ha)) for _ in range(2)]
        stack.enter_context(Node(tmp_path, masters[0], "n0", ha=ha))
        store = stack.enter_context(Store.connect(ha, timeout_s=2.0))
        eventually("the node is mounted", lambda: ready_segments(store) == 1, FAILOVER_S)
        assert store.put("a", b"1" * 5000)
        first = store.status().epoch
        record = look_in(parse_store(ha), 5.0)
        assert record is not None
        leader = next(each for each in masters if each.address == record.address)
        leader.kill()
        eventually("another leads", lambda: epoch_of(store) > first, FAILOVER_S)
        eventually("all is there", lambda: ready_segments(store) == 1, FAILOVER_S)
        assert store.get("a") == b"1" * 5000
        assert not any("of the pool" in each.text() for each in masters)


def test_a_token_that_is_not_known_any_more_is_replaced(
    etcd: Etcd, files: dict[str, object]
) -> None:
    store = parse_store(address(etcd, "tokens", files))
    assert look_in(store, 5.0) is None
    etcd.end()
    etcd.start()
    etcd.sign_in("of root")
    assert look_in(store, 5.0) is None


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({"password_file": "/nowhere"}, "password cannot be read"),
        ({"user": "nobody"}, "answered 4"),
        ({"ca": "/etc/hostname"}, "certificates for etcd cannot be used"),
    ],
)
def test_what_is_wrong_is_said(
    etcd: Etcd, files: dict[str, object], other: dict[str, object], why: str
) -> None:
    store = parse_store(address(etcd, "wrong", files, **other))
    with pytest.raises(BackendError, match=why):
        look_in(store, 5.0)


def test_another_authority_is_not_believed(
    tmp_path: Path, etcd: Etcd, files: dict[str, object]
) -> None:
    other = Authority(tmp_path / "other")
    with pytest.raises(BackendError, match=r"(?i)certificate"):
        look_in(parse_store(address(etcd, "other", files, ca=other.ca)), 5.0)


def test_without_a_certificate_of_our_own(etcd: Etcd, files: dict[str, object]) -> None:
    bare = {key: value for key, value in files.items() if key not in ("cert", "key")}
    with pytest.raises(BackendError):
        look_in(parse_store(address(etcd, "bare", bare)), 5.0)
