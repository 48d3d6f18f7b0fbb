"""Sessions that have ended: what only they used goes first, and nothing else."""

from __future__ import annotations

import random
from typing import Any

import pytest

from moonpool.core import messages as m
from moonpool.core import sessions
from moonpool.core.eviction import POLICIES
from tests.unit.core.driver import Driver, block


def make(pages: int = 12, **config: Any) -> Driver:
    pool = Driver(**config)
    pool.mount(pages=pages, slots=pages + 1)
    return pool


def use(pool: Driver, session: str, *numbers: int) -> None:
    keys: list[bytes] = [block(number) for number in numbers]
    pool.expect(m.Done, m.UseSession(session, keys))


def end(pool: Driver, session: str) -> int:
    return pool.expect(m.Matched, m.EndSession(session)).count


def chain(pool: Driver, *numbers: int) -> None:
    """Put what is not there of a prefix."""
    for i, number in enumerate(numbers):
        if not pool.exists(block(number))[0]:
            pool.put(block(number), parent=block(numbers[i - 1]) if i else b"")


def there(pool: Driver, *numbers: int) -> list[bool]:
    return pool.exists(*(block(number) for number in numbers))


@pytest.mark.parametrize("policy", POLICIES)
def test_an_ended_session_goes_before_all_else(policy: str) -> None:
    pool = make(eviction=policy)
    chain(pool, 0, 1, 2)
    chain(pool, 10, 11, 12)
    pool.put(*(block(i) for i in range(20, 26)))
    use(pool, "a", 12)
    pool.get(block(10), block(11), block(12), lease_s=0.0)
    assert end(pool, "a") == 3
    for count, number in enumerate(range(30, 33), 1):
        pool.put(block(number))
        assert there(pool, 10, 11, 12) == [1] * (3 - count) + [0] * count
    assert there(pool, 0, 1, 2, *range(20, 26)) == [1] * 9


def test_what_another_session_uses_stays() -> None:
    pool = make()
    chain(pool, 0, 1, 2, 3)
    chain(pool, 0, 1, 5, 6)
    use(pool, "a", 3)
    use(pool, "b", 6)
    assert end(pool, "a") == 2
    assert end(pool, "b") == 4
    assert end(pool, "b") == 0


def test_the_end_of_another_session_protects_what_it_continues() -> None:
    pool = make()
    chain(pool, 0, 1, 2, 3)
    use(pool, "a", 3)
    use(pool, "b", 1)
    assert end(pool, "a") == 2
    assert end(pool, "b") == 2


def test_what_hangs_on_a_session_from_elsewhere_protects_it() -> None:
    pool = make()
    chain(pool, 0, 1, 2)
    use(pool, "a", 1)
    assert end(pool, "a") == 0
    use(pool, "a", 2)
    assert end(pool, "a") == 3


def test_used_again_it_is_an_ordinary_object() -> None:
    pool = make()
    pool.put(*(block(i) for i in range(12)))
    use(pool, "a", 11)
    assert end(pool, "a") == 1
    pool.get(block(11), lease_s=0.0)
    pool.put(block(20), block(21))
    assert there(pool, 0, 1, 11) == [0, 0, 1]


def test_what_is_leased_when_its_session_ends_goes_afterwards() -> None:
    pool = make(4)
    pool.put(*(block(i) for i in range(4)))
    pool.get(block(3), lease=5, lease_s=50.0)
    use(pool, "a", 3)
    assert end(pool, "a") == 1
    pool.put(block(4))
    assert there(pool, 0, 3) == [0, 1]
    pool.ask(m.Release([5]))
    pool.put(block(5))
    assert there(pool, 1, 3) == [1, 0]


def test_an_end_that_was_evicted_moves_to_what_it_continued() -> None:
    pool = make(4)
    chain(pool, 0, 1, 2)
    use(pool, "a", 2)
    pool.put(block(10))
    pool.put(block(11))
    assert there(pool, 0, 1, 2) == [1, 1, 0]
    assert end(pool, "a") == 2


def test_pinned_objects_of_an_ended_session_stay() -> None:
    pool = make(4)
    chain(pool, 0, 1)
    pool.expect(m.Codes, m.Pin([block(1)]))
    use(pool, "a", 1)
    assert end(pool, "a") == 2
    for number in range(10, 20):
        pool.put(block(number))
    assert there(pool, 0, 1) == [1, 1]
    pool.expect(m.Codes, m.Unpin([block(1)]))
    pool.put(block(30))
    assert there(pool, 0, 1) == [1, 0]


def test_nothing_a_client_says_makes_the_book_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "SESSIONS_MAX", 5)
    monkeypatch.setattr(sessions, "ENDS_MAX", 3)
    monkeypatch.setattr(sessions, "ENDS_TOTAL_MAX", 8)
    pool = make(64)
    pool.put(*(block(i) for i in range(50)))
    book = pool.state.sessions
    for number in range(200):
        use(pool, f"s{number % 9}", number % 50, (7 * number) % 50, 1000 + number)
    assert len(book) <= 5
    assert pool.count("sessions_forgotten") > 0
    for wrong in ("", "x" * 129):
        pool.expect(m.Failed, m.UseSession(wrong, [block(1)]))
        pool.expect(m.Failed, m.EndSession(wrong))
    pool.expect(m.Failed, m.UseSession("s", [block(1)] * 1025))
    for number in range(9):
        end(pool, f"s{number}")
    assert not book.users


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", range(3))
def test_any_order_of_events_keeps_the_state_sound(policy: str, seed: int) -> None:
    """The driver checks the whole state after each."""
    rng = random.Random(seed)
    pool = make(12, eviction=policy, hard_pin_share=0.3)
    for _ in range(300):
        root = 10 * rng.randrange(4)
        path = [root + i for i in range(rng.randint(1, 5))]
        pick, name = rng.random(), f"s{rng.randrange(4)}"
        if pick < 0.4:
            for i, number in enumerate(path):
                (grant,) = pool.start(block(number), parent=block(path[i - 1]) if i else b"")
                if grant.code == 0:
                    pool.end(grant)
        elif pick < 0.55:
            pool.get(*(block(n) for n in path), lease=rng.randrange(3), lease_s=rng.choice((0, 9)))
        elif pick < 0.7:
            use(pool, name, *path[-2:])
        elif pick < 0.8:
            end(pool, name)
        elif pick < 0.85:
            pool.ask(m.Pin([block(n) for n in path[:2]], rng.choice((0.0, 5.0))))
        elif pick < 0.92:
            pool.ask(m.Unpin([block(n) for n in path]))
        elif pick < 0.95:
            pool.remove(block(rng.choice(path)), force=True)
        else:
            pool.ask(m.Release([0, 1, 2]))
            pool.tick(rng.random() * 8)
