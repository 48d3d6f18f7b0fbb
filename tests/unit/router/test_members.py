"""Instances come and go."""

from __future__ import annotations

import pytest

from moonpool.errors import ConfigError
from moonpool.router.index import PrefixIndex
from moonpool.router.instance import EngineFacts
from moonpool.router.latency import Work
from moonpool.router.members import Members, Named, checked_url, named


def test_marks_are_used_again_with_an_empty_index() -> None:
    index = PrefixIndex()
    members = Members(index)
    first, second = members.add("http://a"), members.add("http://b/")
    index.add(first.mark, [1, 2])
    assert members.remove("http://a/") is first
    assert members.add("http://c").mark == first.mark
    assert index.match([1, 2]) == {}
    assert [each.url for each in members.instances] == ["http://b", "http://c"]
    assert second.mark != first.mark


def test_adding_again_ends_a_drain() -> None:
    members = Members(PrefixIndex())
    instance = members.add("http://a")
    assert members.drain("http://a") is instance
    states = [instance.draining]
    assert members.add("http://a") is instance
    states.append(instance.draining)
    assert states == [True, False]
    assert members.drain("http://b") is None
    assert members.remove("http://b") is None


def test_a_source_changes_only_its_own() -> None:
    members = Members(PrefixIndex())
    kept = members.add("http://a", "admin")
    members.sync("file", ["http://b", "http://c"])
    b = members.find("http://b")
    members.sync("file", ["http://b", "http://d"])
    assert [each.url for each in members.instances] == ["http://a", "http://b", "http://d"]
    assert members.find("http://a") is kept
    assert members.find("http://b") is b


def test_a_new_one_begins_with_what_the_fleet_has_learned() -> None:
    members = Members(PrefixIndex())
    for _ in range(50):
        members.fleet.observe(Work(10_000), 5.0)
    assert members.add("http://a").model.predict(Work(10_000)) == pytest.approx(5.0, rel=0.1)


def test_a_process_that_began_anew_has_an_empty_cache() -> None:
    index = PrefixIndex()
    members = Members(index)
    instance = members.add("http://a")
    members.learn(instance, EngineFacts(started="1"))
    index.add(instance.mark, [1])
    members.learn(instance, EngineFacts(started="1", models=("m",)))
    assert index.held(instance.mark) == 1
    members.learn(instance, EngineFacts(started="2"))
    assert index.held(instance.mark) == 0


@pytest.mark.parametrize(
    "text",
    ["", "localhost:80", "ftp://a", "http://", "http://a?b", "http://u:p@a", "http://a:99999",
     "http://a b", "http://a\r\nX: y", "http://[", "http://a:0"],
)  # fmt: skip
def test_what_is_no_base_url_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="no base URL"):
        checked_url(text)


def test_roles_and_bootstraps() -> None:
    assert named("http://p:8000", "prefill", "8998").bootstrap == "http://p:8998"
    assert named("http://[::1]:8000", "prefill", "8998").bootstrap == "http://[::1]:8998"
    assert named("http://p:8000/", "kv_producer", "q:1") == Named(
        "http://p:8000", "prefill", "http://q:1"
    )
    assert named("http://p:8000", "", "None") == Named("http://p:8000")
    for role, bootstrap in (("best", ""), ("prefill", "70000"), ("prefill", "http://u:p@a")):
        with pytest.raises(ConfigError):
            named("http://p", role, bootstrap)


def test_a_source_changes_the_roles_of_its_own() -> None:
    members = Members(PrefixIndex())
    admins = members.add(named("http://a", "prefill"), "admin")
    members.sync("config", [named("http://a", "decode"), named("http://b", "decode")])
    members.sync("config", [named("http://a", "decode"), named("http://b", "prefill", "1")])
    b = members.find("http://b")
    assert b is not None
    assert (b.role, b.bootstrap, admins.role) == ("prefill", "http://b:1", "prefill")
