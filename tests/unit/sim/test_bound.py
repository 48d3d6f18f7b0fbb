"""What one cache as large as all could hit."""

from __future__ import annotations

from moonpool.sim.bound import shared_lru
from moonpool.sim.job import Job


def _job(keys: list[int], at: float) -> Job:
    return Job("s", keys, 10 * len(keys) + 5, 1, at)


def test_what_fits_is_hit_again() -> None:
    jobs = [_job([1, 2], 0.0), _job([1, 2, 3], 1.0), _job([1, 2, 3, 4], 2.0)]
    assert shared_lru(jobs, 100, 10) == (20 + 30) / (25 + 35 + 45)
    assert shared_lru(jobs, 100, 10, begin_s=2.0) == 30 / 45


def test_leaves_go_first_and_what_was_used_the_longest_ago() -> None:
    jobs = [_job([1, 2], 0.0), _job([7, 8], 1.0), _job([1, 2], 2.0), _job([7, 8], 3.0)]
    # Room for three: of the first prompt its end has gone.
    assert shared_lru(jobs[:3], 3, 10, begin_s=2.0) == 10 / 25
    assert shared_lru(jobs, 3, 10, begin_s=3.0) == 10 / 25
    assert shared_lru(jobs, 2, 10, begin_s=2.0) == 0.0


def test_no_jobs_hit_nothing() -> None:
    assert shared_lru([], 10, 10) == 0.0
