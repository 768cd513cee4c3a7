import base64
import io
import re

import pytest
import torch
from PIL import Image

from torchcaps import explain
from torchcaps.data import load_data
from torchcaps.explain.decisions import Decision, decide, describe_decisions
from torchcaps.explain.votes import routing_trace
from torchcaps.models import create_model, load
from torchcaps.train.reports.answer import answer_sections
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
            "data": "photos",
            "test_n": n,
            "test_accuracy": 0.98765,
            "test_accuracy_interval": [0.6, 0.99],
            "baselines": {"chance": 1 / 3, "hog_svm": 0.647},
            "val_accuracy": None,
        },
        recipe_text="model:\n  name: <script>alert(1)</script>\n",
        history=HISTORY,
        model=network,
    )
    data = ReportData(images, targets, lengths, names or [f"<b>class {i}</b>" for i in range(classes)], None)
    path = page.write(classification_sections(network, data), answer_sections(page.summary, data))
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
        *("Result", "Per class", "Worst mistakes", "Confusion matrix", "Calibration"),
        *("Couplings", "Learning curves", "Summary", "Recipe"),  # an untrained decoder draws nothing worth showing
    ]
    assert [name for name, count in pictures.items() if not count] == ["Result", "Per class", "Summary", "Recipe"]
    told = parts["Result"]
    assert "<p>98.77 % of 6 test images of photos are classified correctly." in told
    assert "95 % interval is 60.00 % to 99.00 %" in told
    pattern = r'HOG \+ linear SVM</th><td class="number">64.70 %.*Chance</th><td class="number">33.33 %'
    assert re.search(pattern, told, re.DOTALL)
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
    assert page.count("<img ") >= 4  # and no sweep, because an untrained decoder draws nothing
    assert ("The most frequent confusions" in page) == (classes == 200)


def test_without_test_images(tmp_path):
    assert "There are no test images" in sections(report(tmp_path, n=0))["Test images"]


def test_a_cnn_has_no_capsules_to_show(tmp_path):
    parts = sections(report(tmp_path, model="matched_cnn", parameters=20_000))
    assert not {"Reconstructions", "Dimension sweeps", "Couplings"} & set(parts)
    assert "<img " in parts["Confusion matrix"]


def test_without_a_decoder_the_couplings_stay(tmp_path):
    parts = sections(report(tmp_path, decoder="none"))
    assert "Dimension sweeps" not in parts
    assert "<img " in parts["Couplings"]


@pytest.fixture(scope="module")
def digits():
    """The sections of the shipped network and its test images."""
    model = load("capsnet-digits")
    test = load_data("digits", image_size=16).test.subset(torch.arange(60))
    images = model.prepare(test.images)
    with torch.no_grad():
        lengths = model(images).lengths
    data = ReportData(images, test.targets, lengths, list(model.class_names), None)
    return model, data, sections("\n".join(classification_sections(model, data)))


def test_couplings_that_decide_little_are_said_to(digits):
    model, data, parts = digits
    found = [decide(routing_trace(model, image)) for image in data.images[:50]]
    changed = sum(each.winners[0] != each.winners[-1] for each in found)
    undecided = sum(each.undecided for each in found) / 50
    told = parts["Couplings"]
    assert "<p>The couplings decide little in this network. " in told
    assert f"Of the first 50 test images, routing changes the longest class of {changed};" in told
    assert f"On average the couplings are {100 * undecided:.1f} % undecided" in told
    assert "The couplings decide little here: " in told  # under the figure of one image


def test_couplings_that_decide_are_not_called_undecided():
    decided = Decision([1, 2], [0.3, 0.9], 0.1, 90, 100, 0.1, True)
    told = describe_decisions([decided] * 3)
    assert told.startswith("Of the first 3 test images, routing changes the longest class of 3; ")
    assert "10.0 % undecided" in told
    assert "90.0 % of the parts" in told


def test_reconstructions_that_follow_the_images_are_shown_in_full(digits):
    _, _, parts = digits
    assert "Reconstructions" in parts
    assert parts["Dimension sweeps"].count("<img ") == 2
    assert "The last columns are mistakes" in parts["Reconstructions"]


def test_reconstructions_that_show_nothing_are_left_out(tmp_path):
    parts = sections(report(tmp_path, n=12))  # a new network, whose decoder draws noise
    assert not {"Reconstructions", "Dimension sweeps"} & set(parts)


POSED = ("Reconstructions", "Views", "Sweeps", "Poses")


def test_a_model_that_reads_poses_has_sections_of_its_own(tmp_path):
    parts = sections(report(tmp_path, model="posecaps_small", class_dim=4))
    assert list(parts)[5:] == [*POSED, "Learning curves", "Summary", "Recipe"]
    assert all("<img " in parts[name] for name in POSED)
    assert "Of the classes predicted in 6 test images." in parts["Poses"]


def test_poses_without_a_decoder_or_with_several_labels(tmp_path):
    several = torch.tensor([[1.0, 1.0, 0.0]] * 5 + [[0.0, 0.0, 0.0]])
    parts = sections(report(tmp_path, model="posecaps_small", decoder="none", targets=several))
    assert "Sweeps" not in parts
    assert "<img " in parts["Views"]
    assert "No class was predicted" in parts["Poses"]  # a new model's capsules are short


def test_several_labels_get_precision_and_recall(tmp_path):
    several = torch.tensor([[1.0, 1.0, 0.0]] * 5 + [[0.0, 0.0, 0.0]])
    parts = sections(report(tmp_path, targets=several))
    assert "Confusion matrix" not in parts
    assert re.search(r"<th>&lt;b&gt;class 0&lt;/b&gt;</th>.*<td class=\"number\">5</td>", parts["Per class"])


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
    real = explain.figure_reconstructions

    def seen(images, *arguments, **options):
        shown.extend(tuple(image.flatten().tolist()) for image in images)
        return real(images, *arguments, **options)

    monkeypatch.setattr(explain, "figure_reconstructions", seen)
    monkeypatch.setattr("torchcaps.train.reports.classification.LEAST_FOLLOWED", -1.0)  # also of an untrained decoder
    report(tmp_path)  # all six are mistakes, and examples of their class
    assert len(shown) == len(set(shown)) == 6
