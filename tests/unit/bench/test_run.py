"""A run: sections into a file, resumed and replaced; failures that end no run."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from moonpool.bench import run, store
from moonpool.bench.options import Options
from moonpool.bench.report import Row
from moonpool.bench.systems import System
from moonpool.bench.tally import Tally
from moonpool.errors import InvalidArgumentError, TransferError

OPTIONS = Options(sections=("shm", "tcp"))


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    sections: list[str] = []

    def fake(section: str, _: Options, tally: Tally) -> Iterator[Row]:
        sections.append(section)
        yield Row(section, f"{section} put", 1.0, "GB/s", bar=">= 1", met=True)
        tally.verified["moonpool"] = 100
        tally.mismatches["moonpool"] = 3 if section == "tcp" else 0

    monkeypatch.setattr(store, "MEASURES", {"shm": fake, "tcp": fake})
    return sections


def test_all_sections_are_measured_and_wrong_bytes_are_returned(
    measured: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "new" / "store.json"
    assert run.run(OPTIONS, file) == 3
    assert measured == ["shm", "tcp"]
    said = json.loads(file.read_text())
    assert set(said["sections"]) == {"shm", "tcp"}
    assert said["sections"]["tcp"]["mismatches"] == {"moonpool": 3}
    assert said["machine"]["cores"] > 0
    assert "bars met: 2 of 2; bytes wrong: 3" in capsys.readouterr().out


def test_a_section_is_added_to_what_the_file_has(measured: list[str], tmp_path: Path) -> None:
    file = tmp_path / "store.json"
    run.run(replace(OPTIONS, sections=("shm",)), file)
    run.run(replace(OPTIONS, sections=("tcp",)), file)
    assert set(json.loads(file.read_text())["sections"]) == {"shm", "tcp"}
    assert measured == ["shm", "tcp"]


def test_resume_skips_what_the_file_has(
    measured: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "store.json"
    run.run(replace(OPTIONS, sections=("tcp",)), file)
    capsys.readouterr()
    assert run.run(OPTIONS, file, resume=True) == 3
    assert measured == ["tcp", "shm"]
    said = capsys.readouterr().out
    assert "shm put" in said
    assert "tcp put" in said


@pytest.mark.parametrize("text", ["", "[]", '{"rows": []}', '{"format": 1, "sections": {}}'])
def test_another_file_is_not_overwritten(text: str, tmp_path: Path) -> None:
    file = tmp_path / "store.json"
    file.write_text(text)
    with pytest.raises(InvalidArgumentError, match="no results"):
        run.Results.read(file)
    assert file.read_text() == text


def test_a_section_that_fails_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(section: str, _: Options, __: Tally) -> Iterator[Row]:
        yield Row(section, "put", 1.0)
        raise TransferError("the node is gone")

    monkeypatch.setattr(store, "MEASURES", {"shm": fails})
    rows = list(store.measure("shm", OPTIONS, Tally()))
    assert [(row.value, row.note) for row in rows] == [(1.0, ""), (None, "the node is gone")]


def test_the_tally_counts_each_byte_once() -> None:
    tally = Tally()
    system = System("Mooncake", [], {}, verified=7, mismatches=2)
    tally.add(system)
    assert tally.verified == {}  # It never ran.
    assert "nothing" in str(tally)


@pytest.mark.usefixtures("measured")
def test_a_file_is_shown_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "store.json"
    run.run(OPTIONS, file)
    capsys.readouterr()
    run.show_file(file)
    assert "bars met: 2 of 2; bytes wrong: 3" in capsys.readouterr().out
    run.show_file(file, markdown=True)
    assert capsys.readouterr().out.count("put | 1.00 GB/s") == 2
    with pytest.raises(InvalidArgumentError, match="not there"):
        run.show_file(tmp_path / "other.json")


def test_a_section_cut_short_is_kept_and_measured_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def cut(section: str, _: Options, __: Tally) -> Iterator[Row]:
        yield Row(section, "put", 1.0, "GB/s")
        raise KeyboardInterrupt

    monkeypatch.setattr(store, "MEASURES", {"shm": cut})
    file, options = tmp_path / "store.json", replace(OPTIONS, sections=("shm",))
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            run.run(options, file, resume=True)
        assert [row.what for row in run.Results.read(file).rows()] == ["put"]


def test_a_file_that_cannot_be_written_is_refused_before_anything_is_measured(
    measured: list[str], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidArgumentError, match="file"):
        run.run(OPTIONS, tmp_path / "file" / "store.json")
    assert measured == []


def test_rows_as_json(
    measured: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "store.json"
    run.run(OPTIONS, file)
    assert measured == ["shm", "tcp"]
    capsys.readouterr()
    run.show_file(file, as_json=True)
    rows = json.loads(capsys.readouterr().out)
    assert [row["what"] for row in rows] == ["shm put", "tcp put"]
