"""Command lines as Mooncake's programs read them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moonpool.compat.commands.gflags import Flag, parse
from moonpool.errors import ConfigError

FLAGS = {
    "port": Flag("int", 1),
    "enable_ha": Flag("bool", False),
    "ttl": Flag("ms", 1.0),
    "size": Flag("size", 1),
    "ratio": Flag("float", 0.1),
    "name": Flag("str", ""),
}


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("--port=3 -port 4", {"port": 4}),
        ("--enable_ha --noenable_ha", {"enable_ha": False}),
        ("-enable-ha", {"enable_ha": True}),
        ("--enable_ha=false --port 7", {"enable_ha": False, "port": 7}),
        ("--ttl 500 ", {"ttl": 500.0}),
        ("--ttl=10s", {"ttl": 10_000.0}),
        ("--ttl=30m", {"ttl": 1_800_000.0}),
        ("--ttl=250ms", {"ttl": 250.0}),
        ("--size=4GB --ratio .5 --name=a=b", {"size": 4 << 30, "ratio": 0.5, "name": "a=b"}),
        ("--size=0 -- --port=9", {"size": 0}),
    ],
)
def test_values(line: str, values: dict[str, Any]) -> None:
    assert parse(line.split(), FLAGS).values == values


@pytest.mark.parametrize(
    "line", ["--port=x", "--port", "--enable_ha=maybe", "--ttl=-1", "--ttl=5parsec", "--size=-4"]
)
def test_a_value_that_a_flag_cannot_have_is_an_error_that_names_it(line: str) -> None:
    with pytest.raises(ConfigError, match=line.split("=")[0]):
        parse(line.split(), FLAGS)


def test_what_is_not_known_is_warned_about_with_what_belongs_to_it() -> None:
    given_ = parse(["--prot=3", "--shiny", "yes", "stray", "--name", "n", "-x"], FLAGS)
    assert given_.values == {"name": "n"}
    assert [warning.split(" ", 1)[0] for warning in given_.warnings] == [
        "--prot",
        "--shiny",
        "'stray'",
        "--x",
    ]
    assert "did you mean --port?" in given_.warnings[0]


def test_flags_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "flags"
    file.write_text("# comment\n--port=5\n--enable_ha\n")
    assert parse([f"--flagfile={file}", "--port=6"], FLAGS).values == {
        "port": 6,
        "enable_ha": True,
    }
    file.write_text(f"--flagfile={file}\n")
    for line in (f"--flagfile={file}", f"--flagfile={tmp_path / 'none'}"):
        with pytest.raises(ConfigError, match="flagfile"):
            parse([line], FLAGS)


@given(st.lists(st.text(max_size=12) | st.sampled_from(["--port", "--noenable_ha", "3", "-"])))
def test_any_words_are_read_or_refused(words: list[str]) -> None:
    try:
        parse(words, FLAGS)
    except ConfigError:
        return
