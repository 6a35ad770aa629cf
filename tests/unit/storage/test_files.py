"""Files that exist whole or not at all, and folders that belong to one run."""

import stat

import pytest

from jdpack import Market, solve
from jdpack.errors import OutputError
from jdpack.run import folder
from jdpack.run.folder import Output
from jdpack.run.run_file import RunFile
from jdpack.storage.files import write_text, write_whole

RUN = RunFile("{}", None, None, False, {"kind": "memory"}, None, "00" * 16, None)


def test_a_file_is_whole_and_has_its_mode(tmp_path):
    path = tmp_path / "file"
    write_text(path, 0o600, "one")
    write_text(path, 0o644, "two")
    assert path.read_text() == "two" and stat.S_IMODE(path.stat().st_mode) == 0o644
    assert list(tmp_path.iterdir()) == [path]


def test_a_failure_leaves_what_was_there(tmp_path):
    path = tmp_path / "file"
    write_text(path, 0o600, "before")

    def half(file):
        file.write(b"hal")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_whole(path, 0o600, half)
    assert path.read_text() == "before" and list(tmp_path.iterdir()) == [path]


def test_two_writers_never_leave_half_a_file(tmp_path):
    """The one that began first finds its own file gone, and does not move the other's."""
    path = tmp_path / "file"

    def first(file):
        file.write(b"first")
        write_whole(path, 0o600, lambda other: other.write(b"second"))

    with pytest.raises(FileNotFoundError):
        write_whole(path, 0o600, first)
    assert path.read_bytes() == b"second" and list(tmp_path.iterdir()) == [path]


def test_what_a_killed_writer_left_is_removed(tmp_path):
    (tmp_path / ".file.abc_1.part").write_text("half")
    write_text(tmp_path / "file", 0o600, "whole")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_run_does_not_take_away_the_folder_of_another(tmp_path):
    """Both found the name free; the second one must leave the folder alone."""
    first, second = Output.claim(tmp_path / "out"), Output.claim(tmp_path / "out")
    first.create()
    first.keep(RUN)
    first.billboard.write_text("spent")
    with pytest.raises(OutputError, match="File exists"):
        second.create()
    assert first.billboard.read_text() == "spent" and first.run_file.exists()


@pytest.mark.parametrize("step", ["write", "sync_folder"])
def test_a_folder_that_cannot_be_filled_is_taken_back(tmp_path, monkeypatch, step):
    def full(*about):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(RunFile if step == "write" else folder, step, full)
    market = Market(supply=[10.0], max_demand=1.0, max_value=1.0, agents=2, epsilon=1.0, delta=1e-6)
    with pytest.raises(OutputError, match="No space left") as caught:
        solve(market, values=[1.0, 1.0], demands=[[1.0], [1.0]], output=tmp_path / "out")
    assert "nothing is spent" in caught.value.hint
    assert list(tmp_path.iterdir()) == []
