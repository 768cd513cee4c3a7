"""Training that starts from weights: what is taken, what is frozen, how fast parts learn."""

import logging

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import torchcaps
from torchcaps.cli import app
from torchcaps.data import load_data
from torchcaps.errors import UserError
from torchcaps.models import create_model, load, save
from torchcaps.models.transfer import take_weights
from torchcaps.train import loop, run
from torchcaps.train.callbacks import Callback, RunCallback
from torchcaps.train.optim.parts import Freezer
from torchcaps.train.recipe import TransferSection, make_recipe
from torchcaps.train.setup import make_state
from torchcaps.train.tasks import ClassificationTask

SMALL = {"image_shape": (1, 12, 12), "backbone_options": {"channels": [4, 8]}}


@pytest.fixture(autouse=True)
def _no_pictures(monkeypatch):
    monkeypatch.setattr(ClassificationTask, "write_report", lambda task, report, *rest: report.path)


def small(name="backbone_caps", num_classes=3, **options):
    return create_model(name, num_classes=num_classes, **{**SMALL, **options})


def recipe(**sections):
    tree = {
        "name": "transfer",
        "data": {"source": "digits", "image_size": 12, "limit": 64, "validation": 0, "test": 8},
        "model": {"name": "backbone_caps", "backbone_options": {"channels": [4, 8]}, "types": 4},
        "train": {"epochs": 4, "batch_size": 32, "fast": False},
    }
    for name, section in sections.items():
        tree[name] = {**tree.get(name, {}), **section}
    return make_recipe(tree)


def test_the_same_model_is_taken_whole():
    source, model = small(), small()
    found = take_weights(model, source, "old")
    assert found.describe() == f"weights of old: {len(found.taken)} of {len(found.taken)} tensors taken"
    assert all(torch.equal(one, other) for one, other in zip(model.state_dict().values(), source.state_dict().values()))


def test_other_classes_get_a_fresh_head_even_if_there_are_as_many():
    source, model = small(class_names=("a", "b", "c")), small(class_names=("d", "e", "f"))
    before = model.head.classes.weight.clone()
    found = take_weights(model, source, "old")
    assert found.fresh == {"head.classes.weight": "other classes"}
    assert torch.equal(model.head.classes.weight, before)
    assert torch.equal(model.head.primary.conv.weight, source.head.primary.conv.weight)
    five = take_weights(small(num_classes=5), source)
    assert five.fresh == {"head.classes.weight": "other classes"}


def test_a_backbone_moves_from_one_head_to_another():
    source, model = small("backbone_linear"), small(types=2)
    found = take_weights(model, source, "linear")
    assert [name for name in found.taken if not name.startswith("backbone.")] == []
    assert found.unused == ("head.weight", "head.bias")
    assert "new: head.norm.weight (not there)" in found.describe()
    assert "not used: head.weight, head.bias" in found.describe()


def test_statistics_stay_with_their_weights():
    """The running means have the right shape, but belong to a convolution that is not taken."""
    source, model = small(image_shape=(3, 12, 12)), small()
    found = take_weights(model, source)
    assert found.fresh == {"backbone.0.weight": "4×3×3×3 there, 4×1×3×3 here"}
    wider = take_weights(small(backbone_options={"channels": [4, 6]}), source).fresh
    assert wider["backbone.4.shortcut.1.num_batches_tracked"] == "of weights that are new"


def test_what_fits_nothing_is_refused():
    with pytest.raises(
        UserError, match=r"no weight of capsnet-digits fits this BackboneCaps: backbone.0.weight is not there"
    ):
        take_weights(small(), load("capsnet-digits"), "capsnet-digits")


def test_fit_starts_from_a_model_and_says_so(caplog):
    images, labels = torch.rand(24, 1, 12, 12), torch.arange(24) % 2
    backbone = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten())
    first = nn.Sequential(backbone, nn.Linear(400, 3))
    second = nn.Sequential(backbone, nn.Linear(400, 2))
    options = {"epochs": 1, "settings": {"transfer": {"freeze": ["0"]}}, "validation": 8}
    weights = first[0][0].weight.detach().clone()
    with caplog.at_level(logging.WARNING, "torchcaps"):
        torchcaps.fit(second, images, labels, from_=first, **options)
    assert "2 of 4 tensors taken" in caplog.text
    assert torch.equal(second[0][0].weight, weights)
    assert all(each.requires_grad for each in second.parameters())
    options = {"epochs": 1, "validation": 0, "class_names": tuple("0123456789")}
    trained = torchcaps.fit("capsnet_small", *load_digits(64), from_="capsnet-digits", **options)
    assert trained.model.num_classes == 10


def load_digits(count):
    data = load_data("digits", image_size=16).train
    return data.images[:count], data.targets[:count]


class Watch(Callback):
    """Which parts change in each epoch."""

    def __init__(self):
        self.before, self.changed = {}, []

    def on_epoch(self, state, line):
        now = {name: each.detach().clone() for name, each in state.model.state_dict().items()}
        moved = {name for name, each in now.items() if name in self.before and not torch.equal(each, self.before[name])}
        self.before = now
        self.changed.append({name.rpartition(".")[0] for name in moved})


@pytest.mark.parametrize(("section", "frozen_epochs"), [({}, 4), ({"epochs": 2}, 2)])
@pytest.mark.parametrize("optimizer", ["adam", "muon"])
def test_a_frozen_part_stays_as_it_is_with_its_statistics(section, frozen_epochs, optimizer):
    watch = Watch()
    settings = {"transfer": {"freeze": ["backbone"], **section}, "train": {"ema": 0.9}}
    settings |= {"optim": {"name": optimizer, "weight_decay": 0.1, "clip": 1.0}}
    images, labels = load_digits(48)
    model = torchcaps.fit(
        "backbone_caps",
        images,
        labels,
        epochs=4,
        batch_size=16,
        callbacks=[watch],
        settings=settings,
        backbone_options={"channels": [4]},
        types=2,
    ).model
    frozen = [not any(name.startswith("backbone") for name in each) for each in watch.changed]
    assert frozen == [epoch < max(frozen_epochs, 1) for epoch in range(4)]
    assert all("head.classes" in each for each in watch.changed[1:])
    assert all(each.requires_grad for each in model.parameters()) or not model.training


def test_gradual_thawing_begins_near_the_head():
    model = small(backbone_options={"channels": [4, 4, 4]})
    freezer = Freezer(model, TransferSection(freeze=("backbone",), epochs=2, gradual=2))
    thawed = []
    with freezer.active():
        for epoch in range(12):
            freezer.start_epoch(epoch)
            model.train()
            freezer.set_modes(epoch)
            named = model.backbone.named_parameters()
            names = {name.split(".")[0] for name, each in named if each.requires_grad}
            thawed.append(names)
            assert model.head.training
            assert model.backbone[0].training == ("0" in names)
    assert thawed[:4] == [set(), set(), {"5"}, {"5"}]
    assert thawed[4] == {"4", "5"}
    assert thawed[-1] == {"0", "1", "3", "4", "5"}
    assert not freezer.start_epoch(11)


def test_parts_learn_at_rates_of_their_own():
    chosen = recipe(transfer={"lr": {"backbone": 0.1, "backbone.0": 0.01}}, optim={"lr": 0.5})
    state, _ = make_state(chosen, load_data(**chosen.data.model_dump()).train, torch.device("cpu"))
    state.set_learning_rates(chosen.optim, 10)
    rates = {id(each): group["lr"] for group in state.optimizer.param_groups for each in group["params"]}
    assert len(rates) == len(list(state.model.parameters()))
    for name, each in state.model.named_parameters():
        share = 0.01 if name.startswith("backbone.0.") else 0.1 if name.startswith("backbone") else 1
        assert rates[id(each)] == pytest.approx(0.5 * share)


@pytest.mark.parametrize("stop_after", [3, 5])
def test_a_run_with_all_of_it_resumes_exactly(tmp_path, monkeypatch, stop_after):
    save(small(num_classes=10, types=4, backbone_options={"channels": [4, 8]}), tmp_path / "source")
    chosen = recipe(
        transfer={
            "weights": str(tmp_path / "source"),
            "freeze": ["backbone"],
            "epochs": 2,
            "gradual": 1,
            "lr": {"backbone": 0.1},
        },
        augment={"mixup": 0.2, "cutmix": 1.0, "randaugment": 1, "resized_crop": 0.5},
        optim={"name": "muon"},
        train={"ema": 0.9},
    )
    run.start_run(chosen, out=tmp_path / "whole", device="cpu")
    steps = []
    with monkeypatch.context() as patch:
        patch.setattr(RunCallback, "should_stop", lambda self: len(steps) >= stop_after)
        patch.setattr(RunCallback, "on_step", lambda self, state, totals: steps.append(state.step))
        with pytest.raises(loop.Interrupted):
            run.start_run(chosen, out=tmp_path / "cut", device="cpu")
    (tmp_path / "source" / "model.safetensors").unlink()  # what was taken is in the checkpoint
    run.resume_run(tmp_path / "cut", device="cpu")
    whole, cut = (load(tmp_path / name) for name in ("whole", "cut"))
    assert all(torch.equal(one, other) for one, other in zip(whole.state_dict().values(), cut.state_dict().values()))
    assert whole.trained_by["from"].endswith("source")
    with pytest.raises(UserError, match="transfer.freeze is fixed by the run"):
        run.resume_run(tmp_path / "cut", ["transfer.freeze=[]", "train.epochs=9"], device="cpu")


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"freeze": ["backbon"]}, "no part 'backbon': .*backbone"),
        ({"freeze": ["backbone", "head"]}, "nothing to train"),
        ({"epochs": 3}, "name the part to freeze"),
        ({"freeze": ["backbone"], "gradual": 1}, "needs transfer.epochs"),
        ({"lr": {"neck": 0.1}}, "no part 'neck'"),
    ],
)
def test_mistakes_in_the_section(section, message):
    images, labels = load_digits(24)
    with pytest.raises(UserError, match=message):
        torchcaps.fit("backbone_caps", images, labels, epochs=1, validation=0, settings={"transfer": section})


def test_the_command_starts_from_a_saved_model(tmp_path):
    options = ["--set", "data.limit=64", "--set", "data.test=8", "--set", "data.validation=0", "--epochs", "1"]
    asked = ["train", "digits", "--from", "capsnet-digits", "--device", "cpu", "--out", str(tmp_path / "run")]
    found = CliRunner().invoke(app, [*asked, *options])
    assert found.exit_code == 0, found.output
    assert "weights of capsnet-digits: 11 of 11 tensors taken" in found.output
    assert "memory in float32: about 5.1 MiB for weights and moments, " in found.output
    assert load(tmp_path / "run").trained_by["from"] == "capsnet-digits"


def test_mistakes_are_named_before_anything_is_written(tmp_path):
    for section, message in (({"freeze": ["neck"]}, "no part 'neck'"), ({"weights": "capsnet-digits"}, "fits this")):
        with pytest.raises(UserError, match=message):
            run.start_run(recipe(transfer=section), out=tmp_path / "run", device="cpu")
        assert not (tmp_path / "run").exists()


def test_an_optimizer_of_ones_own_has_its_own_rates():
    images, labels = load_digits(24)
    options = {"epochs": 1, "validation": 0, "settings": {"transfer": {"lr": {"backbone": 0.1}}}}
    with pytest.raises(UserError, match="give your optimizer groups of parameters"):
        torchcaps.fit("backbone_caps", images, labels, optimizer=torch.optim.SGD, **options)
