"""Where a run without --out goes."""

from torchcaps.train import run


def test_runs_that_begin_within_a_second_get_folders_of_their_own(tmp_path):
    folder = tmp_path / "digits-20260101-000000"
    assert run._unused(folder) == folder
    folder.mkdir()
    (tmp_path / f"{folder.name}-2").mkdir()
    assert run._unused(folder) == tmp_path / f"{folder.name}-3"
