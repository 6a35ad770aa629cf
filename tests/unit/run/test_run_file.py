"""The lock of a run: one process at a time, and a sentence where it cannot be had."""

import errno
import os

import pytest

from jdpack import OutputError
from jdpack.run.run_file import locked
from jdpack.storage import files


def make(tmp_path):
    path = tmp_path / "out" / "private"
    path.mkdir(parents=True)
    return path


def test_a_run_is_held_until_it_is_let_go(tmp_path):
    path = make(tmp_path)
    other = pytest.raises(OutputError, match=r"another process is working on .*out'")
    with locked(path), other, locked(path):
        pass
    with locked(path), pytest.raises(ZeroDivisionError):
        1 / 0  # noqa: B018
    with locked(path):
        pass


def test_a_run_that_cannot_be_opened_is_refused_in_a_sentence(tmp_path):
    path = make(tmp_path)
    (path / "file").write_text("")
    (path / "link").symlink_to(path)
    for wrong in (path / "file", path / "link", path / "missing", path / "file" / "below"):
        with pytest.raises(OutputError, match="cannot lock the run") as error, locked(wrong):
            pass
        assert error.value.hint and error.value.message.count("\n") == 0


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EACCES, errno.EIO])
def test_a_lock_that_fails_is_refused_in_a_sentence(tmp_path, monkeypatch, number):
    def failing(file, how):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(files.fcntl, "flock", failing)
    with pytest.raises(OutputError, match=os.strerror(number)) as error, locked(make(tmp_path)):
        pass
    assert "locks" in error.value.hint


def test_errors_of_the_run_itself_stay_what_they_are(tmp_path):
    with pytest.raises(PermissionError), locked(make(tmp_path)):
        raise PermissionError(errno.EACCES, "of the run")
