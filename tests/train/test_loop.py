"""The loop: it learns, resumes exactly, stops when asked, and never looks at the test set too early."""

import json
import math

import pytest
import torch
from torch import nn

from torchcaps.data import Dataset, load_data
from torchcaps.data.datasets.multimnist import multimnist_splits
from torchcaps.errors import UserError
from torchcaps.models import load
from torchcaps.train import loop, run
from torchcaps.train import state as train_state
from torchcaps.train.callbacks import Callback, RunCallback
from torchcaps.train.checkpoint import load_checkpoint, save_checkpoint
from torchcaps.train.distributed import make_fabric
from torchcaps.train.evaluate import evaluate_ensemble, evaluate_model
from torchcaps.train.optim.ema import update_average
from torchcaps.train.recipe import load_recipe, make_recipe
from torchcaps.train.setup import make_state
from torchcaps.train.state import seeded
from torchcaps.train.tasks import ClassificationTask
from torchcaps.train.tasks.classification import moved_views

TINY = [
    *("data.image_size=12", "data.limit=96", "data.validation=40", "data.test=40"),
    *("model.channels=4", "model.types=2", "model.hidden=[16]", "train.epochs=2", "train.batch_size=32"),
]


@pytest.fixture(autouse=True)
def _no_pictures(request, monkeypatch):
    """Drawing a report takes longer than these runs; two tests look at it."""

    def blank(task, report, *rest):
        report.path.write_text("")
        return report.path

    if request.function not in (test_run_leaves_a_whole_folder, test_pairs_are_learned_with_each_digit_reconstructed):
        monkeypatch.setattr(ClassificationTask, "write_report", blank)


def tiny(*more):
    return load_recipe("digits", [*TINY, *more])


def weights_of(folder):
    return load(folder).state_dict()


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_run_leaves_a_whole_folder(tmp_path):
    folder = run.start_run(tiny(), out=tmp_path / "run", device="cpu")
    summary = json.loads((folder / "summary.json").read_text())
    for key in ("recipe", "seed", "version", "parameters", "train_seconds", "images_per_second"):
        assert key in summary
    assert 0 <= summary["val_accuracy"] <= 1
    assert 0 <= summary["test_accuracy"] <= 1
    assert summary["test_n"] == 40
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 2
    assert (folder / "report.html").stat().st_size > 10_000
    assert f"python {summary['versions']['python']}, torchcaps " in (folder / "report.html").read_text()
    assert any((folder / "tensorboard").iterdir())
    assert not list(folder.rglob(".*"))
    assert load(folder).trained_by["recipe"] == "digits"


def test_same_seed_same_weights_other_seed_other_weights(tmp_path):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        run.start_run(tiny(f"train.seed={seed}"), out=tmp_path / name, device="cpu")
    assert same(weights_of(tmp_path / "a"), weights_of(tmp_path / "b"))
    assert not same(weights_of(tmp_path / "a"), weights_of(tmp_path / "c"))


@pytest.mark.parametrize("stop_after", [1, 3, 4], ids=["mid-epoch", "epoch-end", "second-epoch"])
def test_interrupted_and_resumed_run_is_bit_identical(tmp_path, monkeypatch, stop_after):
    recipe = tiny("optim.clip=1.0")
    run.start_run(recipe, out=tmp_path / "whole", device="cpu")
    steps = []
    with monkeypatch.context() as patch:
        patch.setattr(RunCallback, "should_stop", lambda self: len(steps) >= stop_after)
        patch.setattr(RunCallback, "on_step", lambda self, state, totals: steps.append(state.step))
        with pytest.raises(loop.Interrupted):
            run.start_run(recipe, out=tmp_path / "cut", device="cpu")
    with pytest.raises(UserError, match="--resume"):
        load(tmp_path / "cut")
    run.resume_run(tmp_path / "cut", device="cpu")
    assert same(weights_of(tmp_path / "whole"), weights_of(tmp_path / "cut"))
    histories = [(tmp_path / name / "metrics.jsonl").read_text().splitlines() for name in ("whole", "cut")]
    for whole, cut in zip(*(map(json.loads, lines) for lines in histories), strict=True):
        assert whole["val_accuracy"] == cut["val_accuracy"]
        assert whole["train_loss"] == pytest.approx(cut["train_loss"], rel=1e-5)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="steps are recorded on CUDA only")
def test_recorded_run_interrupted_and_resumed_is_bit_identical(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    recipe = tiny("train.epochs=6", "train.precision=fp32", "augment.shift=2", "train.compile=yes")
    run.start_run(recipe, out=tmp_path / "whole", device="cuda")
    steps = []
    with monkeypatch.context() as patch:
        patch.setattr(RunCallback, "should_stop", lambda self: len(steps) >= 10)
        patch.setattr(RunCallback, "on_step", lambda self, state, totals: steps.append(state.step))
        with pytest.raises(loop.Interrupted):
            run.start_run(recipe, out=tmp_path / "cut", device="cuda")
    run.resume_run(tmp_path / "cut", device="cuda")
    assert "could not be" not in caplog.text  # compiled and recorded, each time
    assert same(weights_of(tmp_path / "whole"), weights_of(tmp_path / "cut"))


JITTER = {"shift": 1, "rotate": 10, "shear": 0.1, "scale": 0.1, "elastic": 0.3, "erase": 3}
LIGHT = {"brightness": 0.1, "contrast": 0.1, "crop": 14}
SMALL_EM = {"name": "em_capsnet", "channels": 8, "primary": 2, "first": 3, "second": 4}


@pytest.mark.parametrize(
    ("model", "augment", "pairs"),
    [
        ({"name": "capsnet_small", "drop": 0.1}, JITTER, False),
        ({"name": "matched_cnn", "parameters": 50_000}, LIGHT, False),
        ({"name": "efficient_capsnet", "channels": [8, 8, 8, 16]}, {}, False),
        (SMALL_EM, {}, False),
        ({"name": "capsnet_small", "variant": "authors"}, {}, True),
        ({"name": "posecaps_small", "width": 4}, {"shift": 1}, False),
        ({"name": "strong_cnn", "width": 4, "lattice_use": "train", "turn": 30}, {"shift": 1}, False),
    ],
    ids=["jitter", "light", "efficient", "em", "pairs", "poses", "lattice"],
)
def test_every_kind_of_step_runs_and_on_a_gpu_is_recorded(tmp_path, monkeypatch, caplog, model, augment, pairs):
    tree = {"name": "steps", "data": {"source": "digits", "image_size": 16, "limit": 64, "validation": 0}}
    tree |= {
        "model": model,
        "augment": augment,
        "train": {"epochs": 3, "batch_size": 16, "read_test": False, "compile": True},
    }
    tree["optim"] = {"lr": 0.003}  # far enough down in twelve steps for chance not to matter
    if pairs:
        digits = load_data(**tree["data"])
        monkeypatch.setattr("torchcaps.data.datasets.multimnist.TEST_PAIRS", 20)
        monkeypatch.setattr(run, "load_data", lambda **settings: multimnist_splits(digits))
    folder = run.start_run(make_recipe(tree), out=tmp_path / "run")
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    if model is not SMALL_EM:  # whose margin grows with the steps
        assert lines[-1]["train_loss"] < lines[0]["train_loss"]
    assert lines[-1]["step"] == 12
    assert "could not be" not in caplog.text


def test_finished_run_says_so_and_can_be_extended(tmp_path):
    folder = run.start_run(tiny("train.epochs=1"), out=tmp_path / "run", device="cpu")
    with pytest.raises(UserError, match="--epochs"):
        run.resume_run(folder, device="cpu")
    run.resume_run(folder, ["train.epochs=2"], device="cpu")
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 2


def test_trap_optimiser_is_not_rebuilt_each_epoch(tmp_path):
    recipe = tiny()
    state, task, data = _start(recipe)
    loop.train(state, data.train, None, task, recipe, make_fabric("cpu", "fp32"), Callback())
    steps = {int(moments["step"]) for moments in state.optimizer.state.values()}
    assert steps == {state.step} == {6}


def test_trap_no_augmentation_at_test_time():
    recipe = tiny("augment.rotate=90", "augment.shift=4")
    state, task, data = _start(recipe)
    one, two = (task.evaluate(state.model, data.test) for _ in range(2))
    assert torch.equal(one.lengths, two.lengths)
    plain = state.model.eval()(state.model.prepare(data.test.images)).lengths
    assert torch.allclose(one.lengths, plain, atol=1e-6)


def test_trap_checkpoint_is_not_chosen_on_the_test_set(tmp_path, monkeypatch):
    seen = []
    real = ClassificationTask.evaluate

    def spy(task, model, dataset):
        seen.append(len(dataset))
        return real(task, model, dataset)

    monkeypatch.setattr(ClassificationTask, "evaluate", spy)
    run.start_run(tiny("train.select=best", "data.test=50", "train.epochs=3"), out=tmp_path / "run", device="cpu")
    assert seen.count(50) == 1
    assert seen[-1] == 50


def test_select_best_keeps_the_best_on_validation(tmp_path, monkeypatch):
    figures = iter([0.5, 0.9, 0.1])  # of three epochs
    monkeypatch.setattr(loop, "_validate", lambda *_: {"val_loss": 1.0, "val_accuracy": next(figures)})
    kept = {}
    write = run.write_model
    monkeypatch.setattr(
        run, "write_model", lambda model, folder: (kept.update(model.state_dict()), write(model, folder))
    )
    run.start_run(tiny("train.select=best", "train.epochs=3"), out=tmp_path / "run", device="cpu")
    assert same(kept, load(tmp_path / "run" / "checkpoints" / "best").state_dict())
    last, _, _ = _start(tiny("train.epochs=3"))
    load_checkpoint(last, tmp_path / "run" / "checkpoints")
    assert not same(kept, last.final.state_dict())


def test_patience_ends_a_run_that_no_longer_improves_and_a_resumed_one_stays_ended(tmp_path, monkeypatch):
    figures = iter([(0.5, 1.0), (0.9, 0.9), (0.9, 0.8), (0.8, 1.0), (0.9, 0.9), (1.0, 0.1)])  # the third is the best
    monkeypatch.setattr(loop, "_validate", lambda *_: dict(zip(("val_accuracy", "val_loss"), next(figures))))
    settings = ("train.patience=2", "train.epochs=9", "train.select=best")
    folder = run.start_run(tiny(*settings), out=tmp_path / "run", device="cpu")
    assert json.loads((folder / "summary.json").read_text())["epochs"] == 5
    with pytest.raises(UserError, match="train.patience ended it"):
        run.resume_run(folder, device="cpu")
    with pytest.raises(UserError, match="train.patience is for validation images"):
        run.start_run(tiny("train.patience=2", "data.validation=0"), out=tmp_path / "other", device="cpu")


def test_a_lower_loss_is_waited_for_as_a_better_measure_is():
    history = [{"val_accuracy": 0.9, "val_loss": loss} for loss in (0.5, 0.6, 0.4, 0.7)]
    assert train_state.improved_epoch(history, "accuracy") == 3
    history.append({"val_accuracy": 0.95, "val_loss": 0.9})
    assert train_state.improved_epoch(history, "accuracy") == 5
    assert train_state.improved_epoch([{"train_loss": 1.0}], "accuracy") == 0


@pytest.mark.parametrize(("images", "epoch"), [(10_000, 2), (100, 3), (1, 4), (None, 2)])
def test_the_best_epoch_is_the_last_within_one_standard_error(images, epoch):
    counted = {} if images is None else {"validation_images": images}
    history = [{"val_accuracy": accuracy, **counted} for accuracy in (0.8, 0.9, 0.88, 0.7)]
    assert train_state.best_epoch(history, "accuracy") == epoch
    assert train_state.best_epoch([{}], "accuracy") == 0


def test_average_follows_the_weights():
    state, _, _ = _start(tiny("train.ema=0.9"))
    before = [parameter.clone() for parameter in state.average.parameters()]
    with torch.no_grad():
        for parameter in state.model.parameters():
            parameter.add_(1.0)
    update_average(state.average, state.model, decay=0.9, step=1001)  # between two updates
    assert all(torch.equal(old, new) for old, new in zip(before, state.average.parameters()))
    update_average(state.average, state.model, decay=0.9, step=1000)  # one that stands for eight
    for old, new in zip(before, state.average.parameters()):
        assert torch.allclose(new, old + 1 - 0.9**8, atol=1e-6)


def test_statistics_of_batch_normalisation_are_averaged_like_the_weights_and_other_buffers_are_those_of_now():
    average, model = (nn.BatchNorm1d(2) for _ in range(2))
    model.running_mean.fill_(1.0)
    model.num_batches_tracked.fill_(7)
    update_average(average, model, decay=0.9, step=1000)
    assert torch.allclose(average.running_mean, torch.full((2,), 1 - 0.9**8))
    assert average.num_batches_tracked == 7


def test_average_follows_closely_at_first():
    state, _, _ = _start(tiny("train.ema=0.999"))
    before = [parameter.clone() for parameter in state.average.parameters()]
    with torch.no_grad():
        for parameter in state.model.parameters():
            parameter.add_(1.0)
    update_average(state.average, state.model, decay=0.999, step=2)
    for old, new in zip(before, state.average.parameters()):
        assert torch.allclose(new, old + 1 - 3 / 12, atol=1e-6)
    assert state.final is state.average


def test_checkpoint_of_another_model_is_refused(tmp_path):
    state, _, _ = _start(tiny())
    save_checkpoint(state, tmp_path)
    other, _, _ = _start(tiny("model.types=4"))
    with pytest.raises(UserError, match="belongs to another model"):
        load_checkpoint(other, tmp_path)


def test_diverged_loss_stops_the_run(tmp_path):
    with pytest.raises(UserError, match=r"the loss became .* lower optim\.lr"):
        run.start_run(tiny("optim.lr=1e30"), out=tmp_path / "run", device="cpu")


def test_class_weights_and_multi_label_train():
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 255, (24, 1, 12, 12), dtype=torch.uint8, generator=generator)
    targets = torch.zeros(24, 3)
    targets[:, 0], targets[::2, 1] = 1, 1
    data = Dataset(images, targets, ("a", "b", "c"))
    recipe = tiny("loss.class_weights=true", "train.epochs=1")
    with seeded(0, torch.device("cpu")):
        state, task = make_state(recipe, data, torch.device("cpu"))
        loop.train(state, data, None, task, recipe, make_fabric("cpu", "fp32"), Callback())
    assert math.isfinite(state.history[0]["train_loss"])


def test_callers_random_numbers_are_left_alone():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    _start(tiny())
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("device", ["cuda", "mps", "tpu"])
def test_device_that_is_not_there(device):
    if (device == "cuda" and torch.cuda.is_available()) or (device == "mps" and torch.backends.mps.is_available()):
        pytest.skip("this machine has it")
    with pytest.raises(UserError, match="--device"):
        make_fabric(device, "auto")


def _start(recipe):
    data = load_data(**recipe.data.model_dump())
    with seeded(recipe.train.seed, torch.device("cpu")):
        state, task = make_state(recipe, data.train, torch.device("cpu"))
    return state, task, data


def test_an_extended_run_that_dies_at_its_end_can_be_finished(tmp_path, monkeypatch):
    folder = run.start_run(tiny("train.epochs=1"), out=tmp_path / "run", device="cpu")
    with monkeypatch.context() as patch:
        patch.setattr(
            ClassificationTask, "write_report", lambda *args, **more: (_ for _ in ()).throw(KeyboardInterrupt)
        )
        with pytest.raises(KeyboardInterrupt):
            run.resume_run(folder, ["train.epochs=2"], device="cpu")
    assert not (folder / "summary.json").exists()  # the old one would say that the run is whole
    run.resume_run(folder, device="cpu")
    assert json.loads((folder / "summary.json").read_text())["epochs"] == 2


def test_an_interrupt_after_divergence_keeps_the_good_checkpoint(tmp_path, monkeypatch):
    steps = []
    real = train_state.learning_rate
    monkeypatch.setattr(train_state, "learning_rate", lambda step, *rest: math.nan if step >= 3 else real(step, *rest))
    monkeypatch.setattr(RunCallback, "should_stop", lambda self: len(steps) >= 5)
    monkeypatch.setattr(RunCallback, "on_step", lambda self, state, totals: steps.append(state.step))
    with pytest.raises(UserError, match="the loss became NaN"):
        run.start_run(tiny(), out=tmp_path / "run", device="cpu")
    state, _, _ = _start(tiny())
    load_checkpoint(state, tmp_path / "run" / "checkpoints")
    assert state.epoch == 1
    assert all(parameter.isfinite().all() for parameter in state.model.parameters())


@pytest.mark.parametrize("override", ["data.test=30", "train.batch_size=16", "train.seed=5"])
def test_what_a_resumed_run_cannot_change(tmp_path, override):
    folder = run.start_run(tiny("train.epochs=1"), out=tmp_path / "run", device="cpu")
    with pytest.raises(UserError, match="is fixed by the run"):
        run.resume_run(folder, [override, "train.epochs=2"], device="cpu")


def test_data_that_changed_is_noticed(tmp_path):
    folder = run.start_run(tiny("train.epochs=1"), out=tmp_path / "run", device="cpu")
    recipe = (folder / "recipe.yaml").read_text()
    (folder / "recipe.yaml").write_text(recipe.replace("split_seed: 0", "split_seed: 1"))  # as new files would
    with pytest.raises(UserError, match="has changed since the run began"):
        run.resume_run(folder, ["train.epochs=2"], device="cpu")
    model = load(folder)
    model.trained_by["data"]["split_seed"] = 1
    with pytest.warns(UserWarning, match="may hold training images"):
        evaluate_model(model)


def test_a_run_ends_when_its_validation_accuracy_is_reached(tmp_path):
    folder = run.start_run(tiny("train.epochs=50", "train.stop_at=0.3"), out=tmp_path / "run", device="cpu")
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert 1 < len(lines) < 50
    assert all(line["val_accuracy"] < 0.3 for line in lines[:-1])
    assert lines[-1]["val_accuracy"] >= 0.3
    with pytest.raises(UserError, match="has finished"):
        run.resume_run(folder, device="cpu")
    with pytest.raises(UserError, match="data.validation"):
        run.start_run(tiny("data.validation=0", "train.stop_at=0.3"), out=tmp_path / "other", device="cpu")


def test_repeated_passes_are_one_epoch_of_as_many_images(tmp_path):
    folder = run.start_run(tiny("train.repeat=3", "train.epochs=1"), out=tmp_path / "run", device="cpu")
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["steps"] == 3 * 3
    orders = [loop.epoch_order(96, 0, each) for each in range(3)]
    assert not torch.equal(orders[0], orders[1])
    plain = run.start_run(tiny("train.epochs=3"), out=tmp_path / "plain", device="cpu")
    assert same(weights_of(folder), weights_of(plain))  # the same images in the same order


def test_the_test_set_may_stay_unread(tmp_path, monkeypatch):
    seen = []
    real = ClassificationTask.evaluate
    monkeypatch.setattr(
        ClassificationTask, "evaluate", lambda task, model, data: (seen.append(len(data)), real(task, model, data))[1]
    )
    folder = run.start_run(tiny("data.test=43", "train.read_test=no"), out=tmp_path / "run", device="cpu")
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["test_accuracy"], summary["test_n"]) == (None, 0)
    assert 43 not in seen


def test_pairs_are_learned_with_each_digit_reconstructed(tmp_path, monkeypatch):
    digits = load_data("digits", image_size=12, validation=40, test=40, limit=96)
    monkeypatch.setattr("torchcaps.data.datasets.multimnist.TEST_PAIRS", 50)
    monkeypatch.setattr("torchcaps.data.datasets.multimnist.VALIDATION_PAIRS", 30)
    monkeypatch.setattr(run, "load_data", lambda **settings: multimnist_splits(digits))
    with pytest.raises(UserError, match="omit augment"):  # it would not move what is to be reconstructed
        run.start_run(tiny(), out=tmp_path / "moved", device="cpu")
    still = [f"augment.{name}=0" for name in ("shift", "rotate", "shear", "scale")]
    folder = run.start_run(tiny(*still), out=tmp_path / "run", device="cpu")
    line = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    assert line["train_reconstruction"] > 0
    assert "among the 2 longest" in (folder / "report.html").read_text()
    model = load(folder)
    assert model.image_shape == (1, 20, 20)
    assert model.trained_by["labels_each"] == 2
    drawn = model(torch.rand(3, 1, 20, 20), each=torch.tensor([[0, 1], [2, 2], [9, 3]])).reconstruction
    assert drawn.shape == (3, 2, 1, 20, 20)
    assert torch.equal(drawn[1, 0], drawn[1, 1])
    assert not torch.equal(drawn[0, 0], drawn[0, 1])


def test_nine_views_are_the_image_and_its_neighbours():
    image = torch.arange(12.0).view(1, 1, 3, 4)
    views = moved_views(image)
    assert len({tuple(view.flatten().tolist()) for view in views}) == 9
    assert torch.equal(views[4], image)
    assert torch.equal(views[0], torch.tensor([[[[0.0, 0, 0, 0], [0, 0, 1, 2], [0, 4, 5, 6]]]]))


def test_answers_by_views_and_together_are_means_of_lengths():
    data = load_data("digits", image_size=12, validation=40, test=40).test
    models = []
    for seed in (0, 1):
        state, task, _ = _start(tiny(f"train.seed={seed}"))
        state.model.trained_by = {"data": tiny().data.model_dump()}
        models.append(state.model.eval())
    by_views = task.evaluate(models[0], data, views=True)
    with torch.no_grad():
        images = models[0].prepare(data.images)
        by_hand = torch.stack([models[0](view).lengths for view in moved_views(images)]).mean(0)
        both = (models[0](images).lengths + models[1](images).lengths) / 2
    torch.testing.assert_close(by_views.lengths, by_hand)
    assert by_views.score == pytest.approx((by_hand.argmax(1) == data.targets).float().mean().item())
    together = evaluate_ensemble(models)
    assert together["accuracy"] == pytest.approx((both.argmax(1) == data.targets).float().mean().item())
    assert together["n"] == 40
