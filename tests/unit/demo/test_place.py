"""Directories of a run, and what is left of those that were killed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from moonpool.demo import place
from moonpool.demo.process import StartError
from moonpool.errors import ConfigError


def test_a_directory_goes_with_its_run(tmp_path: Path) -> None:
    with place.directory(tmp_path) as path:
        (path / "file").touch()
    with pytest.raises(KeyboardInterrupt), place.directory(tmp_path):
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_logs_of_a_failed_start_stay_until_the_next_run(tmp_path: Path) -> None:
    def fail() -> None:
        with place.directory(tmp_path) as path:
            (path / "vllm.log").write_text("why")
            (path / "sockets").mkdir()
            (path / "ready.json").touch()
            raise StartError("no")

    with pytest.raises(StartError):
        fail()
    assert [path.name for path in tmp_path.rglob("*")][1:] == ["vllm.log"]


def test_what_dead_runs_left_is_removed(tmp_path: Path) -> None:
    dead = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True
    )
    stale = tmp_path / f"{place.PREFIX}-{int(dead.stdout)}-abc"
    living = tmp_path / f"{place.PREFIX}-{os.getppid()}-abc"
    other = tmp_path / "precious"
    for path in (stale, living, other):
        path.mkdir()
    place.remove_stale(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([living, other])


def test_a_pool_that_fits_nowhere_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"pool-size: no room for .* MiB"):
        place.segment_parent(1 << 60)


def test_free_ports_are_different() -> None:
    assert len(set(place.free_ports(8))) == 8
