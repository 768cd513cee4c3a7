"""The comparison in docs/claims.md, on a few embedded digits instead of MNIST."""

from __future__ import annotations

import json
import statistics

import pytest
import torch
import torch.nn.functional as F
from typer.testing import CliRunner

from torchcaps.claims import measure, page, plan, run
from torchcaps.cli import app
from torchcaps.data import load_data
from torchcaps.errors import UserError
from torchcaps.models import create_model
from torchcaps.robustness import perturb
from torchcaps.train.run import start_run

RECIPE = """
name: tiny
data: {source: digits, image_size: 40, limit: 60, validation: 10}
model: {name: posecaps_small, width: 4, types: 2, class_dim: 4}
train: {epochs: 1, batch_size: 20}
"""
TINY_CNN = ("model={name: strong_cnn, width: 4}",)
AVERAGED = ("model={name: strong_cnn, parameters: 9, lattice_use: test, turn: 15}",)  # the weights determine the size


def few_digits() -> measure.Digits:
    test = load_data(source="digits", image_size=28).test
    small, targets = test.images[:20].float() / 255, test.targets[:20]
    framed = F.pad(small, (6,) * 4)
    return measure.Digits(small, framed, framed, targets, framed, targets)


def rotated(images):
    """Images rotated by -15, 0 and 15 degrees."""
    return [images if degrees == 0 else perturb.rotate(images, degrees) for degrees in (-15, 0, 15)]


def train_here(jobs, device, side_by_side, console, after_each, describe):
    """Like `run_jobs`, but in this process."""
    for job in jobs:
        if not job.done:
            start_run(job.recipe, out=job.folder, device="cpu")
            console.print(describe(job))
            after_each(job)
    return []


@pytest.fixture
def tiny_plan(tmp_path, monkeypatch):
    """Two networks, two studies of two runs each."""
    recipe = tmp_path / "tiny.yaml"
    recipe.write_text(RECIPE)
    networks = {
        "posecaps": plan.Network("pose capsules", ()),
        "strong_cnn": plan.Network("CNN", TINY_CNN, baseline=True),
        "averaged": plan.Network("averaged", AVERAGED, weights_of="strong_cnn"),
        "capsnet": plan.Network("classic CapsNet", ()),
    }
    asked = ("posecaps", "strong_cnn")
    studies = {
        "affine": plan.Study(str(recipe), 2, (*asked, "averaged")),
        "few-1": plan.Study(str(recipe), 1, asked[:1]),
    }
    for name, value in (("NETWORKS", networks), ("STUDIES", studies)):
        for module in (plan, run):
            monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(page, "NETWORKS", networks)
    monkeypatch.setattr(page, "COLUMNS", asked)
    monkeypatch.setattr(run, "COLUMNS", asked)
    monkeypatch.setattr(run, "run_jobs", train_here)
    monkeypatch.setattr(page, "BASELINES", ("strong_cnn",))
    monkeypatch.setattr(run, "read_digits", few_digits)
    monkeypatch.setattr(run, "SUITES", {"affine": run.SUITES["affine"]})
    return tmp_path


def test_claims_are_trained_measured_and_written_once(tiny_plan):
    asked = ["reproduce", "claims", "--out", str(tiny_plan / "claims"), "--runs", str(tiny_plan / "runs")]
    assert CliRunner().invoke(app, [*asked, "affine", "--network", "strong_cnn"]).exit_code == 0
    first = json.loads((tiny_plan / "claims" / "affine.json").read_text())
    assert list(first["networks"]) == ["strong_cnn"]
    answer = CliRunner().invoke(app, asked)
    assert answer.exit_code == 0, answer.output
    assert answer.output.count("test images correct") == 3  # five runs, two of them done before
    table = json.loads((tiny_plan / "claims" / "affine.json").read_text())
    assert table["networks"]["strong_cnn"] == first["networks"]["strong_cnn"]
    assert len(table["networks"]["posecaps"]["values"]["turned 45"]) == 2
    averaged = table["networks"]["averaged"]
    assert averaged["parameters"] == table["networks"]["strong_cnn"]["parameters"]
    assert "error" not in averaged["values"]
    job = plan.jobs(["affine"], ["averaged"], tiny_plan / "runs")["affine", "averaged"][0]
    model = run._load(job, "affine", "averaged", "cpu")
    assert len(model.lattice) == 3
    trained = run.load(job.folder)
    assert torch.equal(model.stem[0].weight, trained.stem[0].weight)
    view = F.pad(trained.normalise(few_digits().centred), (4,) * 4)  # of the identity
    expected = torch.stack([model.head(model.stem(each).mean((-2, -1))).softmax(-1) for each in rotated(view)]).mean(0)
    torch.testing.assert_close(model(few_digits().centred).lengths, expected, atol=1e-4, rtol=0)
    written = (tiny_plan / "claims.md").read_text()
    cells = next(line for line in written.splitlines() if "turned by ±45°" in line).split("|")
    mean = statistics.mean(table["networks"]["posecaps"]["values"]["turned 45"])
    assert cells[3].strip().startswith(f"{mean:.2f} ± ")
    assert set(json.loads((tiny_plan / "claims" / "few-1.json").read_text())["networks"]["posecaps"]["values"]) == {
        "error"
    }
    curves = json.loads((tiny_plan / "claims" / "curves" / "affine.json").read_text())
    assert curves["models"] == ["pose capsules", "CNN"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["claims", "afine"], "affine"),
        (["claims", "--network", "resnet"], "unknown network 'resnet'"),
        (["claims", "--seeds", "3"], "omit --seeds"),
        (["mnist", "--network", "capsnet"], "reproduce claims"),
    ],
)
def test_invalid_arguments_are_rejected(tmp_path, words, message):
    answer = CliRunner().invoke(app, ["reproduce", *words, "--out", str(tmp_path / "out"), "--runs", str(tmp_path)])
    assert isinstance(answer.exception, UserError) or answer.exit_code == 2
    assert message in str(answer.exception) + answer.output
    assert not (tmp_path / "out").exists()


def test_every_network_can_be_created_and_baselines_have_equal_size():
    for (study, name), group in plan.jobs(["affine", "few-10"], [], plan.Path("nowhere")).items():
        assert len(group) == plan.STUDIES[study].runs
        recipe, side = group[0].recipe, 40 if study == "affine" else 28
        model = create_model(recipe.model.name, image_shape=(1, side, side), num_classes=10, **recipe.model.options)
        if plan.NETWORKS[name].baseline:
            assert model.parameter_count() == pytest.approx(plan.PARAMETERS, rel=0.01)
    flagship = create_model("posecaps", decoder="none")
    assert flagship.parameter_count() == plan.PARAMETERS


def test_draws_of_few_images_are_the_same_for_all_networks():
    groups = plan.jobs(["few-10"], [], plan.Path("nowhere"))
    drawn = {name: [(job.recipe.data, job.recipe.train.seed) for job in group] for (_, name), group in groups.items()}
    assert len(set(map(str, drawn.values()))) == 1
    assert [data.split_seed for data, _ in drawn["posecaps"]] == [0, 1, 2, 3, 4]


def test_the_best_learning_rate_of_the_search_is_used(tmp_path, monkeypatch):
    folder = tmp_path / "claims"
    folder.mkdir()
    lines = [
        "study,network,epochs,digits,rate,n,held-out accuracy,values",
        "few-10,strong_cnn,10,as they are,0.002,2,90.0,",
        "few-10,strong_cnn,10,as they are,0.008,2,92.0,",
        "few-10,plain_cnn,10,as they are,0.008,2,92.0,",
        "few-10,plain_cnn,20,as they are,0.008,2,11.0,",
        "few-10,plain_cnn,20,as they are,0.002,2,91.0,",
    ]
    (folder / "rates.csv").write_text("\n".join(lines))
    monkeypatch.setattr(plan.resources, "files", lambda _: tmp_path)
    assert plan.settings_of("few-100", "strong_cnn")[-1] == "optim.lr=0.008"
    assert plan.learning_rate("few-10", "plain_cnn") == 0.002  # the longest runs decide
    assert plan.learning_rate("affine", "strong_cnn") is None


def test_a_paired_comparison_removes_the_variance_between_draws():
    own, other = [40.0, 30.0, 50.0], [42.0, 32.5, 51.5]
    ahead, error = page.compare(own, other, lower=True, paired=True)
    assert ahead == pytest.approx(2.0)
    assert error == pytest.approx(0.5 / 3**0.5)
    assert page.compare(own, other, lower=True, paired=False)[1] > 7
    assert page.compare(own, other, lower=False, paired=True)[0] == pytest.approx(-2.0)


def result(own: list[float], other: list[float]) -> dict:
    values = {"posecaps": {"turned 30": own}, "strong_cnn": {"turned 30": other}}
    return {"affine": {"networks": {name: {"values": each} for name, each in values.items()}}}


@pytest.mark.parametrize(
    ("other", "word"), [([90.0, 91.0], "ahead"), ([98.0, 99.5], "even"), ([99.9, 99.8], "behind"), ([50.0], "one run")]
)
def test_the_verdict_needs_two_standard_errors(other, word):
    row = page.Row("", "", "affine", "turned 30")
    assert page.verdict(result([98.5, 98.7], other), row).startswith(word)


def test_a_cnn_uses_its_best_score_and_pose_capsules_their_own():
    values = {"letters told by max length": [0.9], "letters told by familiarity": [0.8]}
    studies = {"affine": {"networks": {name: {"values": values} for name in ("posecaps", "strong_cnn")}}}
    row = page.Row("", "", "affine", "letters told by")
    assert page.values(studies, row, "strong_cnn") == [0.9]
    assert page.values(studies, row, "posecaps") == [0.8]


def test_accuracies_apply_every_change():
    """A model that classifies by the brightest pixel's column is correct until the image is moved."""

    class ByColumn(torch.nn.Module):
        device = torch.device("cpu")
        training = False

        def forward(self, images):
            column = images.amax(2).argmax(-1)[:, 0] // 4
            return type("Answer", (), {"lengths": F.one_hot(column, 10).float(), "poses": None, "reconstruction": None})

    digits = few_digits()
    dots = torch.zeros(40, 1, 28, 28)
    dots[torch.arange(40), 0, 14, torch.arange(40) % 28] = 1
    framed = F.pad(dots, (6,) * 4)
    targets = framed.amax(2).argmax(-1)[:, 0] // 4
    digits = measure.Digits(dots, framed, framed, targets, framed.roll(20, -1), targets)
    found = measure.accuracies(ByColumn(), digits)
    assert found["as in training"] == 100
    assert found["affine"] < 50
    assert found["turned 45"] < 100


def test_quarter_turns_are_exactly_equivariant_and_others_nearly():
    torch.manual_seed(0)
    options = {"width": 4, "types": 2, "turn": 90, "decoder": "none", "denoise": False}
    digits = few_digits()
    errors = {}
    for step in (90, 45):
        model = create_model("posecaps", image_shape=(1, 40, 40), turn_step=step, **options).double()
        with torch.no_grad():
            for _ in range(30):  # for the statistics of batch normalisation, so that lengths depend on the image
                model.train()(digits.centred.double())
        found = measure.equivariance_error(model, digits.centred.double(), digits.targets)
        errors[step] = found["equivariance error"]
    assert errors[90] < 1e-6
    assert errors[45] > 1e-3
