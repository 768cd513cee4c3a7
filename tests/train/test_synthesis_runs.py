"""Runs that learn to draw: two networks in the same loop, the same exact resume, and figures of their own."""

import json

import pytest
import torch

from torchcaps.data import SegmentationDataset, draw_axons, load_data, mask_sources, tiles
from torchcaps.errors import UserError
from torchcaps.metrics.similarity import features_of, kid, ssim
from torchcaps.models import create_model, load
from torchcaps.models.synthesis import generate_images
from torchcaps.train import loop, run
from torchcaps.train.callbacks import Callback, RunCallback
from torchcaps.train.checkpoint import load_checkpoint
from torchcaps.train.distributed import make_fabric
from torchcaps.train.evaluate import evaluate_model
from torchcaps.train.experiments.suite import run_suite
from torchcaps.train.recipe import LossSection, load_recipe, make_recipe
from torchcaps.train.setup import make_state
from torchcaps.train.state import seeded
from torchcaps.train.tasks.synthesis import SynthesisTask

CPU = torch.device("cpu")
TINY = [
    *("data.image_size=24", "data.validation=3", "augment.crop=16", "model.channels=2", "model.z=5"),
    *("discriminator.channels=2", "discriminator.depth=1", "train.epochs=2", "train.batch_size=8", "train.ema=0.9"),
]


def tiny(*more):
    return load_recipe("capspix2pix", [*TINY, *more])


@pytest.fixture(autouse=True)
def _few_axons(monkeypatch):
    """The source "axons" with 12 images instead of hundreds."""
    monkeypatch.setattr(mask_sources, "AXONS", 12)
    monkeypatch.setattr(mask_sources, "TEST_AXONS", 5)


def start(recipe):
    data = load_data(**recipe.data.model_dump())
    with run.seeded(recipe.train.seed, CPU):
        state, task = run.make_state(recipe, data.train, CPU)
    return state, task, data


def weights_of(folder):
    """Of all networks, and of both optimisers, at the end of a run."""
    state, _, _ = start(load_recipe(str(folder / "recipe.yaml")))
    load_checkpoint(state, folder / "checkpoints")
    weights = {
        f"{name}/{key}": value for name, each in state.networks.items() for key, value in each.state_dict().items()
    }
    for name, optimizer in state.optimizers.items():
        for index, moments in optimizer.state_dict()["state"].items():
            weights |= {f"{name}/{index}/{key}": value for key, value in moments.items()}
    return weights | {f"kept/{key}": value for key, value in load(folder).state_dict().items()}


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_a_run_leaves_a_generator_and_pictures_of_what_it_draws(tmp_path):
    folder = run.start_run(tiny(), out=tmp_path / "run", device="cpu")
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["train_n"], summary["val_n"], summary["test_n"]) == (9, 3, 5)
    for part in ("val", "test"):
        assert 0 < summary[f"{part}_similarity"] < 1
        assert -1 < summary[f"{part}_ssim"] < 1
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert {"train_least_squares", "train_l1", "train_discriminator", "val_similarity"} <= set(lines[-1])
    page = (folder / "report.html").read_text()
    for title in ("Learning curves", "Drawn images", "Interpolation", "Recipe"):
        assert f"<h2>{title}</h2>" in page
    assert page.count("<img ") == 4
    assert not list(folder.rglob(".*"))
    model = load(folder)
    assert (model.image_shape, model.z, model.trained_by["judge"]) == ((1, 16, 16), 5, "judge")
    data = load_data(**model.trained_by["data"])
    drawn = SynthesisTask({"l1": 1.0}).evaluate(model, data.test)
    assert drawn.score == pytest.approx(summary["test_similarity"], abs=1e-6)
    assert drawn.loss == pytest.approx(1 - drawn.score, abs=1e-5)
    for words, ask in (("judge", evaluate_model), ("synthesis model", lambda model: run_suite(model, "affine"))):
        with pytest.raises(UserError, match=words):
            ask(model)


def test_interrupted_and_resumed_run_is_bit_identical(tmp_path, monkeypatch):
    recipe = tiny("optim.clip=1.0", "augment.rotate=10", "model.name=pix2pix_small")  # which drops out at random
    straight = run.start_run(recipe, out=tmp_path / "straight", device="cpu")
    whole = weights_of(straight)
    assert {name.split("/")[0] for name in whole} == {
        "model", "average", "discriminator", "optimizer", "discriminator_optimizer", "kept"
    }  # fmt: skip
    for stop_after in (1, 3, 4):  # in an epoch, at its end, and in the next
        folder = tmp_path / str(stop_after)
        with monkeypatch.context() as patch:
            patch.setattr(
                RunCallback, "on_step", lambda self, state, _, at=stop_after: setattr(self, "_stop", state.step >= at)
            )
            with pytest.raises(loop.Interrupted):
                run.start_run(recipe, out=folder, device="cpu")
        run.resume_run(folder, device="cpu")
        assert same(whole, weights_of(folder))
        lines = [json.loads((each / "metrics.jsonl").read_text().splitlines()[-1]) for each in (straight, folder)]
        assert lines[0]["val_similarity"] == lines[1]["val_similarity"]
        assert lines[0]["train_discriminator"] == pytest.approx(lines[1]["train_discriminator"], rel=1e-5)


def test_another_seed_gives_another_run(tmp_path):
    for seed in (1, 2):
        run.start_run(tiny(f"train.seed={seed}", "train.epochs=1"), out=tmp_path / str(seed), device="cpu")
    one, other = weights_of(tmp_path / "1"), weights_of(tmp_path / "2")
    assert not any(torch.equal(one[name], other[name]) for name in one if name.endswith("conv.weight"))


def test_each_network_learns_by_its_own_rate():
    recipe = tiny("discriminator.lr=4", "optim.schedule=linear", "train.epochs=1", "discriminator.spectral_norm=no")
    state, task, data = start(recipe)
    before = {name: [p.clone() for p in each.parameters()] for name, each in state.networks.items()}
    loop.train(state, data.train, None, task, recipe, make_fabric("cpu", "fp32"), Callback())
    rates = [each.param_groups[0]["lr"] for each in state.optimizers.values()]
    assert rates[1] == pytest.approx(4 * rates[0])
    for name, each in state.networks.items():
        assert all((p - old).abs().max() > 0 for p, old in zip(each.parameters(), before[name])), name
    steps = {int(moments["step"]) for each in state.optimizers.values() for moments in each.state.values()}
    assert steps == {state.step}
    assert state.final is state.average


def test_the_generators_loss_leaves_no_gradient_in_the_discriminator(monkeypatch):
    recipe = tiny("train.epochs=1", "train.batch_size=99", "discriminator.spectral_norm=no")
    state, task, data = start(recipe)
    seen = {}

    def look(name, optimizer):
        real = optimizer.step

        def step(*arguments, **options):
            seen[name] = [parameter.grad.clone() for parameter in state.discriminator.parameters()]
            return real(*arguments, **options)

        monkeypatch.setattr(optimizer, "step", step)

    for name, optimizer in state.optimizers.items():
        look(name, optimizer)
    loop.train(state, data.train, None, task, recipe, make_fabric("cpu", "fp32"), Callback())
    assert any(grad.abs().max() > 0 for grad in seen["discriminator_optimizer"])
    assert all(torch.equal(*each) for each in zip(seen["discriminator_optimizer"], seen["optimizer"], strict=True))


@pytest.mark.parametrize(
    ("loss", "weights"),
    [
        ({}, {"bce": 1.0, "l1": 100.0}),
        ({"least_squares": 2.0, "l1": 5.0}, {"least_squares": 2.0, "l1": 5.0}),
        ({"bce": 0.0}, {"l1": 100.0}),
        ({"l1": 1.0, "features": 10.0}, {"bce": 1.0, "l1": 1.0, "features": 10.0}),
    ],
)
def test_losses_by_name(loss, weights):
    model = create_model("pix2pix", image_shape=(1, 16, 16), channels=2)
    assert SynthesisTask.make(model, None, LossSection(**loss)).weights == weights


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        ({"dice": 1.0}, "loss.dice is not for synthesis"),
        ({"bce": 1.0, "least_squares": 1.0}, "choose one"),
        ({"bce": 0.0, "l1": 0.0}, "nothing to learn"),
    ],
)
def test_losses_that_make_no_sense(loss, words):
    model = create_model("pix2pix", image_shape=(1, 16, 16), channels=2)
    with pytest.raises(UserError, match=words):
        SynthesisTask.make(model, None, LossSection(**loss))


@pytest.mark.parametrize(
    ("model", "loss"),
    [
        ({"name": "capspix2pix", "channels": 2, "width": 0.25}, {"bce": 1.0, "l1": 20.0}),
        ({"name": "capspix2pix", "channels": 2, "width": 0.25, "noise": "latent"}, {"least_squares": 1.0}),
        ({"name": "pix2pix", "channels": 4}, {"least_squares": 1.0, "l1": 20.0}),
        ({"name": "capspix2pix", "channels": 2, "width": 0.25}, {"bce": 1.0, "l1": 20.0, "features": 5.0}),
    ],
    ids=["capsules", "latent", "pix2pix", "features"],
)
def test_steps_of_drawing_run_and_on_a_gpu_are_recorded(tmp_path, caplog, model, loss):
    tree = {"name": "steps", "data": {"source": "axons", "image_size": 32, "limit": 8, "validation": 0}}
    train = {"epochs": 3, "batch_size": 2, "read_test": False, "ema": 0.9, "repeat": 2}
    tree |= {"model": model, "augment": {"crop": 16, "turn": True, "flip": True, "rotate": 15}, "train": train}
    tree |= {"loss": loss, "discriminator": {"channels": 4, "depth": 1}, "optim": {"lr": 0.003, "betas": [0.5, 0.999]}}
    folder = run.start_run(make_recipe(tree), out=tmp_path / "run")
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["train_l1"] < lines[0]["train_l1"]
    assert ("train_features" in lines[0]) == ("features" in loss)
    assert "could not be" not in caplog.text


def test_it_learns_where_to_draw_what():
    recipe = tiny("train.epochs=25", "optim.lr=0.01", "model.channels=4", "data.image_size=16", "data.validation=0")
    masks = load_data(**recipe.data.model_dump()).train.masks
    images = [(40 + 160 * mask)[None] for mask in masks]
    data = SegmentationDataset(images, masks, ("background", "axon"), tuple(map(str, range(len(masks)))))
    with run.seeded(0, torch.device("cpu")):
        state, task = run.make_state(recipe, data, torch.device("cpu"))
        loop.train(state, data, None, task, recipe, make_fabric("cpu", "fp32"), Callback())
    drawn = torch.stack(generate_images(state.final, masks))[:, 0]
    there = torch.stack(masks) > 0
    assert drawn[there].mean() > drawn[~there].mean() + 0.3


def test_a_run_that_holds_nothing_out_still_ends(tmp_path, write_pairs):
    pairs = write_pairs(tmp_path / "pairs", draw_axons(4, 20))
    more = ("data.source=pairs", f"data.path={pairs}", "data.image_size=null", "data.validation=0", "data.test=0")
    folder = run.start_run(tiny(*more, "train.epochs=1"), out=tmp_path / "run", device="cpu")
    assert "there is nothing to show" in (folder / "report.html").read_text()
    assert load(folder).class_names == ("background", "foreground")


def test_the_published_pix2pix_has_nothing_to_interpolate(tmp_path):
    more = ("model.name=pix2pix_small", "model.noise=dropout", "train.epochs=1")
    folder = run.start_run(tiny(*more), out=tmp_path / "run", device="cpu")
    assert "noise of this model is dropout" in (folder / "report.html").read_text()
    model, masks = load(folder), [torch.ones(16, 16)] * 2
    one, other = generate_images(model, masks), generate_images(model, masks)
    assert torch.equal(torch.stack(one), torch.stack(other))


def test_similarity_of_the_same_images_is_perfect():
    axons = tiles(draw_axons(12, 32), 32, 32)
    images = [image / 255 for image in axons.images]
    blurred = [torch.nn.functional.avg_pool2d(image, 3, 1, 1) for image in images]
    assert ssim(images, images) == pytest.approx(1)
    assert 0 < ssim(images, blurred) < 0.95
    assert ssim([image[:, :6, :6] for image in images], [image[:, :6, :6] for image in images]) == pytest.approx(1)
    unet = create_model("unet", image_shape=(1, 32, 32), channels=4, depth=2).eval()
    features = features_of(unet, images)
    assert features.shape == (12, 16)
    alike, other = kid(features[:6], features[6:]), kid(features[:6], features_of(unet, blurred)[6:] + 0.5)
    assert abs(alike) < other


def test_kid_by_hand():
    x, y = torch.tensor([[0.0], [1.0]]), torch.tensor([[2.0], [1.0]])
    # pairs within: (0·1 + 1)³ = 1 and (2·1 + 1)³ = 27; across: 1, 1, 27, 8
    assert kid(x, y) == pytest.approx(1 + 27 - 2 * 37 / 4)


def test_what_the_discriminator_notices_teaches_the_generator_alone():
    recipe = tiny("loss.bce=0", "loss.least_squares=0", "loss.l1=0", "loss.features=1", "train.epochs=1")
    data = load_data(**recipe.data.model_dump()).train
    with seeded(0, torch.device("cpu")):
        state, task = make_state(recipe, data, torch.device("cpu"))
        before = {name: value.clone() for name, value in state.model.state_dict().items()}
        loop.train(state, data, None, task, recipe, make_fabric("cpu", "fp32"), Callback())
    moved = [name for name, value in state.model.state_dict().items() if not torch.equal(value, before[name])]
    assert len(moved) > len(before) / 2
    assert list(task.weights) == ["features"]
