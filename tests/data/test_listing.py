"""Folders and tables that are not what they should be, and the CSV of labels."""

import pytest

from torchcaps.data import load_data
from torchcaps.errors import UserError


def load(path, **options):
    return load_data("folder", path=path, **options)


@pytest.fixture
def table(tmp_path, write_classes):
    """table("a.png,cat", ...) writes labels.csv beside 12 images 000.png ... in pics/."""
    write_classes(tmp_path, {"pics": 12})

    def write(*rows: str, header="file,label", name="labels.csv"):
        (tmp_path / name).write_text("\n".join([header, *rows]), encoding="utf-8-sig")
        return tmp_path / name

    return write


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        ({}, r"no images in it: put the images into FOLDER/<class>/"),
        ({".": 3}, "images but no class folders"),
        ({"only": 5}, "at least two classes.* only only"),
        ({"cat": 5, "dog": 1}, "every class needs 3 images.*'dog' has 1"),
        ({"train/a": 4, "train/b": 4, "val/a": 2}, "at least two classes"),
        ({"train/a": 4, "train/b": 4, "val/a": 2, "val/c": 2}, r"same classes; only one has b, c"),
        ({"test/a": 4, "test/b": 4}, "no train folder"),
        ({"train/a": 4, "train/b": 4, "val/a": 1, "val/b": 1, "valid/a": 1, "valid/b": 1}, "several folders for valid"),
        ({"train/a": 4, "test/a": 4, "cat": 4}, "mixes"),
        ({"a": 4, "b": 4, "empty": 0}, "no images in empty"),
    ],
)
def test_a_folder_of_the_wrong_shape_is_explained(tmp_path, write_classes, layout, message):
    with pytest.raises(UserError, match=message):
        load(write_classes(tmp_path, layout))


def test_a_missing_folder_and_a_stray_file_are_refused(tmp_path, write_classes):
    with pytest.raises(UserError, match="there is no folder"):
        load(tmp_path / "nowhere")
    write_classes(tmp_path, {".": 1})
    with pytest.raises(UserError, match="is a file"):
        load(tmp_path / "000.png")


def test_a_table_with_one_label_each_is_single_label(table):
    path = table(*(f"pics/{i:03d}.png,{'cat' if i % 2 else 'dog'}" for i in range(10)))
    for where in (path, path.parent):
        train = load(where, validation=0, test=0).train
        assert train.class_names == ("cat", "dog")
        assert not train.multi_label
        assert train.targets.tolist() == [1, 0] * 5  # in the order of the files


def test_a_table_with_several_labels_is_multi_label(table):
    rows = ["cat; dog", "cat", "dog;owl", "", "owl", "cat;owl"] * 2
    path = table(*(f"pics/{i:03d}.png,{label},x" for i, label in enumerate(rows)), header="File, Label ,extra")
    train = load(path, validation=0, test=0).train
    assert train.class_names == ("cat", "dog", "owl")
    assert train.targets[:4].tolist() == [[1, 1, 0], [1, 0, 0], [0, 1, 1], [0, 0, 0]]
    splits = load(path, validation=0.2)
    assert len(splits.train) + len(splits.validation) + len(splits.test) == 12


@pytest.mark.parametrize(
    ("rows", "header", "message"),
    [
        (["pics/000.png,a", "pics/nope.png,b"], "file,label", r"not there: .*nope\.png"),
        (["pics/000.png,a"], "file,class", "no column 'label': its columns are file, class"),
        (["pics/000.png;a"], "file;label", "no column 'file'"),
        ([], "file,label", "no rows"),
        (["pics/000.png,a", "pics/000.png,b"], "file,label", "more than once"),
        (["pics/000.png,a", "pics/001.png,b", "pics/002.png,"], "file,label", r"no label for pics/002\.png"),
        (["pics/000.png,a", "pics/001.png"], "file,label", r"no label for pics/001\.png"),
        (["pics/000.png,a", ",b"], "file,label", "rows without a file name: row 2"),
        (["pics/000.png,a", "pics/001.png,a"], "file,label", "only a"),
    ],
)
def test_a_wrong_table_is_explained(table, rows, header, message):
    with pytest.raises(UserError, match=message):
        load(table(*rows, header=header))


def test_a_table_that_is_not_text_is_refused(tmp_path):
    (tmp_path / "labels.csv").write_bytes(b"\xff\xfe\x00\xd8")
    with pytest.raises(UserError, match="not a CSV file in UTF-8"):
        load(tmp_path)
