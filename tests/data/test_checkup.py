"""The look at a folder before training."""

import shutil

import pytest
from PIL import Image

from torchcaps.data import load_data
from torchcaps.data.checkup import check_folder, split_listing
from torchcaps.data.listing import list_folder
from torchcaps.data.split import SplitOptions


@pytest.fixture
def folder(tmp_path):
    """Two classes of 30 images each, all different."""
    for number, name in enumerate(("cat", "dog")):
        (tmp_path / name).mkdir()
        for i in range(30):
            Image.new("RGB", (20 + i, 30), (number * 90, i * 8, 0)).save(tmp_path / name / f"{i:02}.png")
    return tmp_path


def test_a_clean_folder_has_nothing_to_say(folder):
    found = check_folder(folder)
    assert found.lines() == []
    assert found.images == 60
    assert found.sizes == ((30, 20), (30, 34), (30, 49))


def test_files_that_are_ignored_are_named_with_the_reason(folder):
    for name in ("cat/a.HEIC", "cat/b.heic", "dog/c.avif", "dog/photo", "notes.txt", "loose.png", ".hidden"):
        (folder / name).write_bytes(b"x")
    told = check_folder(folder).lines()
    assert "ignored: 2 .heic (cat/a.HEIC): this decoder does not read them; convert them to JPEG or PNG" in told
    assert any(line.startswith("ignored: 1 .avif (dog/c.avif)") for line in told)
    assert "ignored: 1 files without a suffix (dog/photo): no suffix; add .jpg or .png if they are images" in told
    assert "ignored: 1 .png (loose.png): not in the folder of a class" in told
    assert "ignored: 1 .txt (notes.txt): not an image" in told
    assert len(told) == 5


def test_identical_files_of_two_classes_or_parts_are_found(folder):
    shutil.copy(folder / "cat" / "00.png", folder / "dog" / "same.png")
    found = check_folder(folder)
    assert found.conflicting == (("cat/00.png", "dog/same.png"),)
    parts = split_listing(list_folder(folder), SplitOptions())
    train, test = parts["train"].paths[0], next(path for path in parts["test"].paths if path.name != "same.png")
    shutil.copy(train, test)
    found = check_folder(folder)
    assert len(found.shared) >= 1
    assert any("(training)" in " ".join(group) and "(test)" in " ".join(group) for group in found.shared)
    assert any("the accuracy is too high" in line for line in found.lines())


def test_the_split_is_that_of_the_data(folder):
    parts, splits = split_listing(list_folder(folder), SplitOptions()), load_data("folder", path=folder)
    for name in ("train", "validation", "test"):
        assert tuple(map(str, parts[name].paths)) == getattr(splits, name).files


def test_damaged_rare_uneven_and_tiny(folder):
    (folder / "dog" / "00.png").write_bytes(b"not a picture")
    (folder / "owl").mkdir()
    for i in range(3):
        Image.new("L", (8, 8), i).save(folder / "owl" / f"{i}.png")
    told = check_folder(folder).lines()
    assert any(line.startswith("unreadable: 1 files: dog/00.png (") for line in told)
    assert "rare: fewer than 20 training images of owl (1)" in told
    assert "uneven: 22 training images of dog, 1 of owl" in told
    assert "tiny: the smallest image has 8×8 pixels" in told


def test_images_that_a_table_does_not_list_are_ignored(folder):
    rows = [f"cat/{i:02}.png,a" for i in range(10)] + [f"dog/{i:02}.png,b" for i in range(10)]
    (folder / "labels.csv").write_text("\n".join(["file,label", *rows]))
    (line,) = [line for line in check_folder(folder / "labels.csv").lines() if line.startswith("ignored")]
    assert line == "ignored: 40 .png (cat/10.png): not listed in labels.csv"
