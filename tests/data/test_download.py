import hashlib
from pathlib import Path

import pytest

from torchcaps.data import dataset_folder, download
from torchcaps.data.download import REMOTES, Remote, fetch
from torchcaps.errors import UserError

BODY = b"the right bytes"
NOWHERE = "http://127.0.0.1:9/"  # the discard port: nothing listens


def remote(*mirrors: str) -> Remote:
    return Remote("file.gz", hashlib.md5(BODY).hexdigest(), mirrors)


def left_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def test_a_file_is_downloaded_with_its_checksum(tmp_path, serve):
    path = fetch(remote(serve({"file.gz": BODY})), tmp_path / "new" / "folder")
    assert path == tmp_path / "new" / "folder" / "file.gz"
    assert path.read_bytes() == BODY


@pytest.mark.parametrize("first", ["down", "gone", "wrong"])
def test_the_next_mirror_is_tried(tmp_path, serve, first):
    bad = {"down": lambda: NOWHERE, "gone": lambda: serve({}), "wrong": lambda: serve({"file.gz": b"<html>"})}[first]()
    assert fetch(remote(bad, serve({"file.gz": BODY})), tmp_path).read_bytes() == BODY
    assert left_in(tmp_path) == ["file.gz"]


def test_a_checksum_mismatch_names_the_mirror_and_leaves_nothing(tmp_path, serve):
    wrong = serve({"file.gz": b"other bytes"})
    with pytest.raises(UserError, match=f"file.gz.*{wrong} delivered a file with the wrong checksum"):
        fetch(remote(wrong), tmp_path)
    assert left_in(tmp_path) == []


def test_no_network_says_which_file_goes_where(tmp_path, serve):
    serve({})  # for its NO_PROXY
    with pytest.raises(UserError) as caught:
        fetch(remote(NOWHERE, NOWHERE + "second/"), tmp_path)
    message = str(caught.value)
    assert "cannot download file.gz" in message
    assert f"put the file into {tmp_path} by hand" in message
    assert "ConnectionError" in message
    assert NOWHERE + "second/" in message
    assert left_in(tmp_path) == []


def test_an_unwritable_folder_is_a_user_error(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UserError, match=r"cannot write to the data folder .*TORCHCAPS_DATA"):
        fetch(remote(NOWHERE), tmp_path / "file" / "mnist")


def test_the_data_folder_is_chosen_by_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHCAPS_DATA", str(tmp_path))
    assert dataset_folder("mnist") == tmp_path / "mnist"
    monkeypatch.delenv("TORCHCAPS_DATA")
    assert dataset_folder("mnist").parts[-2:] == ("torchcaps", "mnist")


def test_every_published_file_has_two_mirrors_and_a_checksum():
    for name, remotes in REMOTES.items():
        for each in remotes:
            assert len(set(each.mirrors)) >= (1 if name == "smallnorb" else 2)
            assert all(mirror.endswith("/") for mirror in each.mirrors)
            assert len(bytes.fromhex(each.md5)) == 16


def test_the_timeout_is_finite():
    assert 0 < download.TIMEOUT_SECONDS < 120
