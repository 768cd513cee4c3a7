import base64
import io
import re

import pytest
import torch
from PIL import Image

from torchcaps import explain
from torchcaps.models import create_model
from torchcaps.train.reports.classification import classification_sections
from torchcaps.train.reports.page import Report
from torchcaps.train.reports.report_data import ReportData

HISTORY = [{"epoch": 1, "step": 3, "train_loss": 0.5, "train_accuracy": 0.4, "unknown": {"a": 1}}]


def report(tmp_path, *, model="capsnet_small", n=6, classes=3, wrong=True, targets=None, names=None, **options) -> str:
    """The page as text, each picture in it opened and replaced by its size."""
    torch.manual_seed(0)
    network = create_model(model, image_shape=(1, 12, 14), num_classes=classes, **options)
    images = torch.rand(n, 1, 12, 14)
    with torch.no_grad():
        lengths = network(images).lengths
    if targets is None:
        targets = (lengths.argmax(-1) + wrong) % classes
    page = Report(
        tmp_path / "new" / "report.html",
        title="A <run> & its report",
        summary={
            "recipe": "digits",
            "seed": 12345,
            "parameters": 1234567,
            "test_accuracy": 0.98765,
            "val_accuracy": None,
        },
        recipe_text="model:\n  name: <script>alert(1)</script>\n",
        history=HISTORY,
        model=network,
    )
    data = ReportData(images, targets, lengths, names or [f"<b>class {i}</b>" for i in range(classes)], None)
    path = page.write(classification_sections(network, data))
    assert [file.name for file in path.parent.iterdir()] == ["report.html"]  # no half-written file is left

    def size(match: re.Match[str]) -> str:
        return str(Image.open(io.BytesIO(base64.b64decode(match[1]))).size)

    return re.sub(r'data:image/png;base64,([^"]+)', size, path.read_text(encoding="utf-8"))


def sections(page: str) -> dict[str, str]:
    return dict(re.findall(r"<section>\n<h2>(.*?)</h2>\n(.*?)\n</section>", page, re.DOTALL))


def test_every_section_is_there(tmp_path):
    parts = sections(report(tmp_path))
    pictures = {name: part.count("<img ") for name, part in parts.items()}
    assert list(parts) == [
        *("Summary", "Learning curves", "Confusion matrix", "Worst mistakes"),
        *("Reconstructions", "Dimension sweeps", "Couplings", "Recipe"),
    ]
    assert [name for name, count in pictures.items() if not count] == ["Summary", "Recipe"]
    assert "98.77 %" in parts["Summary"]
    assert "1,234,567" in parts["Summary"]
    assert "<td>12345</td>" in parts["Summary"]
    assert "6 of 6 predictions are wrong" in parts["Worst mistakes"]
    assert "No validation images" in parts["Learning curves"]


def test_nothing_is_fetched_run_or_left_unescaped(tmp_path):
    page = report(tmp_path)
    assert not re.search(r"https?:|//|@import|url\(|<script|<b>|<run>| on\w+=", page)
    assert {target for _, target in re.findall(r'(href|src)="(.)', page)} == {"d", "("}  # data, and pictures replaced
    assert "&lt;script&gt;" in page
    assert "prefers-color-scheme: dark" in page


def test_no_mistakes_are_told_in_words(tmp_path):
    part = sections(report(tmp_path, wrong=False))["Worst mistakes"]
    assert "There are none: the 6 predictions are all right." in part


@pytest.mark.parametrize(("classes", "n"), [(1, 1), (2, 1), (200, 5)])
def test_one_two_or_two_hundred_classes(tmp_path, classes, n):
    page = report(tmp_path, classes=classes, n=n)
    assert page.count("<img ") >= 5
    assert ("The most frequent confusions" in page) == (classes == 200)


def test_without_test_images(tmp_path):
    assert "There are no test images" in sections(report(tmp_path, n=0))["Test images"]


def test_a_cnn_has_no_capsules_to_show(tmp_path):
    parts = sections(report(tmp_path, model="matched_cnn", parameters=20_000))
    for name in ("Reconstructions", "Dimension sweeps", "Couplings"):
        assert parts[name].startswith("<p>Not available: a CNN has no capsules")
    assert "<img " in parts["Confusion matrix"]


def test_without_a_decoder_the_couplings_stay(tmp_path):
    parts = sections(report(tmp_path, decoder="none"))
    assert parts["Dimension sweeps"] == (
        "<p>Not available: this CapsNet has no decoder; train one with model.decoder=dense or conv.</p>"
    )
    assert "<img " in parts["Couplings"]


POSED = ("Reconstructions", "Views", "Sweeps", "Poses")


def test_a_model_that_reads_poses_has_sections_of_its_own(tmp_path):
    parts = sections(report(tmp_path, model="posecaps_small", class_dim=4))
    assert list(parts)[4:] == [*POSED, "Recipe"]
    assert all("<img " in parts[name] for name in POSED)
    assert "Of the classes predicted in 6 test images." in parts["Poses"]


def test_poses_without_a_decoder_or_with_several_labels(tmp_path):
    several = torch.tensor([[1.0, 1.0, 0.0]] * 5 + [[0.0, 0.0, 0.0]])
    parts = sections(report(tmp_path, model="posecaps_small", decoder="none", targets=several))
    assert parts["Sweeps"] == "<p>Not available: this PoseCaps has no decoder; train one with model.decoder=dense.</p>"
    assert "<img " in parts["Views"]
    assert "No class was predicted" in parts["Poses"]  # a new model's capsules are short


def test_several_labels_get_precision_and_recall(tmp_path):
    several = torch.tensor([[1.0, 1.0, 0.0]] * 5 + [[0.0, 0.0, 0.0]])
    parts = sections(report(tmp_path, targets=several))
    assert "Confusion matrix" not in parts
    assert re.search(r"<th>&lt;b&gt;class 0&lt;/b&gt;</th>.*<td class=\"number\">5</td>", parts["Per class"])
    assert "<img " in parts["Reconstructions"]


def test_a_failed_write_leaves_the_earlier_report(tmp_path, monkeypatch):
    report(tmp_path, n=0)
    before = (tmp_path / "new" / "report.html").read_bytes()

    def full_disk(*_):
        raise OSError("disk full")

    monkeypatch.setattr("os.replace", full_disk)
    with pytest.raises(OSError, match="disk full"):
        report(tmp_path, n=0)
    assert [file.read_bytes() for file in (tmp_path / "new").iterdir()] == [before]


def test_no_image_is_shown_twice(tmp_path, monkeypatch):
    shown = []
    real = explain.reconstructions

    def seen(model, images, targets):
        shown.extend(tuple(image.flatten().tolist()) for image in images)
        return real(model, images, targets)

    monkeypatch.setattr(explain, "reconstructions", seen)
    report(tmp_path)  # all six are mistakes, and examples of their class
    assert len(shown) == len(set(shown)) == 6
