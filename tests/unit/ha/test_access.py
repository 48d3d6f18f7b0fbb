"""How an etcd with certificates and passwords is named, and what is refused."""

from __future__ import annotations

import pytest

from moonpool.config_ha import Access, parse_store

ALL = "?ca=/a/ca.pem&cert=/a/c.pem&key=/a/k.pem&user=pool&password_file=/a/p"


@pytest.mark.parametrize(
    "text",
    [
        "etcds://e1:2379",
        "etcds://e1:2379,e2:2379/blue" + ALL,
        "etcds://e1:2379?cert=/both.pem",
        "etcd://e1:2379?user=pool&password_file=/a/p",
        "etcds://e1:2379?ca=/with%20space/ca.pem",
    ],
)
def test_what_is_read_is_written_the_same(text: str) -> None:
    expected = text.replace("%20", "+")
    assert str(parse_store(text)) == expected
    assert parse_store(expected) == parse_store(text)


def test_what_each_option_is() -> None:
    store = parse_store("etcds://e1,e2:1/blue" + ALL)
    assert store.kind == "etcd"
    assert store.endpoints == (("e1", 2379), ("e2", 1))
    assert store.access == Access(
        tls=True, ca="/a/ca.pem", cert="/a/c.pem", key="/a/k.pem", user="pool", password_file="/a/p"
    )


@pytest.mark.parametrize(
    "text",
    [
        "etcd://e1?ca=/a",
        "etcds://e1?key=/a",
        "etcds://e1?user=a",
        "etcds://e1?password_file=a",
        "etcds://e1?ca=",
        "etcds://e1?ca=/a&ca=/b",
        "etcds://e1?tls=1",
        "etcds://e1?password=secret",
        "etcds://e1?x",
        "kubernetes://ns/lease?ca=/a",
        "kubernetes://ns/lease?",
    ],
)
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_store(text)
