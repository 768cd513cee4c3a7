import errno
import os

import pytest

from torchcaps.io.atomic import atomic_write, write_text


def test_text_is_written_into_a_new_folder(tmp_path):
    assert write_text(tmp_path / "a" / "b.txt", "é") == tmp_path / "a" / "b.txt"
    assert [(path.name, path.read_text(encoding="utf-8")) for path in (tmp_path / "a").iterdir()] == [("b.txt", "é")]


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_failed_write_keeps_the_old_file_and_leaves_no_other(tmp_path, monkeypatch, call):
    def fails(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    path = write_text(tmp_path / "a.txt", "old")
    monkeypatch.setattr(os, call, fails)
    with pytest.raises(OSError, match="No space left"):
        write_text(path, "new")
    assert [each.read_text() for each in tmp_path.iterdir()] == ["old"]


def test_the_replaced_file_is_kept_where_asked(tmp_path):
    path, previous = tmp_path / "a", tmp_path / "b"
    for text in ("1", "2", "3"):
        with atomic_write(path, previous) as temporary:
            temporary.write_text(text)
            assert not path.exists() or path.read_text() == str(int(text) - 1)
    assert (path.read_text(), previous.read_text(), len(list(tmp_path.iterdir()))) == ("3", "2", 2)
