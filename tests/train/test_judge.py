"""Drawn images judged by a U-Net that learned from them."""

import json
import sys
from pathlib import Path

import pytest
import torch

from torchcaps.data import SegmentationDataset, mask_sources
from torchcaps.errors import UserError
from torchcaps.models import create_model
from torchcaps.train.experiments import judge as judging
from torchcaps.train.experiments.judge import judge, judge_tables

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from judged import pool

TINY = ("train.epochs=4", "model.channels=2", "model.depth=1", "train.batch_size=4")


@pytest.fixture(autouse=True)
def _few_axons(monkeypatch):
    monkeypatch.setattr(mask_sources, "AXONS", 8)
    monkeypatch.setattr(mask_sources, "TEST_AXONS", 4)
    monkeypatch.setattr(judging, "DRAWS", 2)


def generator(name="capspix2pix", size=16, **options):
    made = create_model(name, image_shape=(1, size, size), channels=2, z=3, **options).eval()
    made.trained_by = {"data": {"source": "axons", "path": None, "image_size": 32, "validation": 0}, "judge": "judge"}
    return made


def test_every_kind_of_images_trains_the_same_unet_for_as_many_steps(tmp_path, monkeypatch):
    steps, seen = [], []
    real = judging.train

    def spy(state, data, *rest):
        real(state, data, *rest)
        steps.append(state.step)
        seen.append(data)

    compare, compared = judging._compare, []

    def spy_on_maps(model, held_out, whole, unets):
        compared.append(whole)
        return compare(model, held_out, whole, unets)

    monkeypatch.setattr(judging, "_compare", spy_on_maps)
    monkeypatch.setattr(judging, "train", spy)
    models = {"against": generator("pix2pix"), "names": ("caps", "pix")}
    result = judge(generator(), **models, seeds=2, overrides=TINY, out=tmp_path / "out")
    assert list(result["trained"]) == ["real", "caps", "pix", "real + caps"]
    for each in result["trained"].values():
        assert each["n"] == len(each["values"]) == 2
        assert each["mean"] == pytest.approx(sum(each["values"]) / 2)
    assert result["trained"]["real"]["of_real"] == 1
    assert result["trained"]["caps"]["generator_parameters"] == generator().parameter_count()
    assert result["trained"]["real"]["generator_parameters"] is None
    assert (result["windows"], result["test_n"]) == (32, 4)  # four windows of 16 in each of eight images of 32
    assert set(steps) == {4 * 32 // 4}
    real, caps, pix, both = seen[::2]
    for data in (real, caps, pix, both):
        assert len(data) == 64
        assert torch.equal(torch.stack(data.masks), torch.stack(real.masks))
    assert torch.equal(real.images[0], real.images[32])
    assert not torch.equal(caps.images[0], caps.images[32])  # other noise
    assert torch.equal(torch.stack(both.images), torch.stack(real.images[:32] + caps.images[:32]))
    drawn = result["drawn"]["caps"]
    assert {tuple(segments.masks[0].shape) for segments in compared} == {(32, 32)}  # all of the test images
    assert (drawn["n"], drawn["parameters"]) == (16, generator().parameter_count())
    assert drawn["variation"] > 0
    assert json.loads((tmp_path / "out" / "judge.json").read_text()) == result
    (heading, rows), (_, others) = judge_tables(result)
    assert len(rows) == 4
    assert {len(row) for row in rows} == {len(heading)}
    assert [row[0] for row in others] == ["caps", "pix"]


def test_what_cannot_be_judged_is_said_first(tmp_path):
    stranger = generator()
    stranger.trained_by = {}
    for model, options, words in (
        (stranger, {}, "does not record its training data"),
        (generator(), {"against": generator(size=32)}, "its image_shape is"),
        (generator(), {"against": create_model("unet", image_shape=(1, 16, 16), channels=2)}, "draws no images"),
        (generator(), {"against": generator(), "names": ("a", "a")}, "the same model"),
        (generator(), {"data": "digits"}, "give a folder with images and masks"),
        (
            generator(),
            {"overrides": ("model.name=segcaps", "model.depth=null")},
            "trains segcaps, but images are judged by a unet",
        ),
        (generator(), {"names": ("real", "")}, "confused with the real images"),
        (generator(), {"overrides": ("train.epochs=3",)}, "give a multiple of 2"),
        (generator(num_classes=3), {}, "have 2 classes, but this model draws 3"),
    ):
        with pytest.raises(UserError, match=words):
            judge(model, **options, out=tmp_path / "out")
    assert not list(tmp_path.iterdir())
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written to"):
        judge(generator(), overrides=TINY, out=tmp_path / "file")


def test_other_seeds_are_other_unets(monkeypatch):
    seeds = []
    monkeypatch.setattr(judging, "_train_unet", lambda recipe, rounds, test, seed, device: seeds.append(seed) or taught)
    taught = judging.TrainedUNet(create_model("unet", image_shape=(1, 16, 16), channels=2, depth=1), 0.5)
    result = judge(generator(), seeds=2, first=5, overrides=TINY)
    assert seeds == [5, 6] * 3
    assert result["unet"]["first_seed"] == 5


def test_how_far_apart_two_noises_are_is_told_map_by_map(monkeypatch):
    """One map is found better with the first noise, the other with the second: on average there is no difference."""
    answers = {16: iter([[0.2, 0.8], [0.8, 0.2]]), 32: iter([[0.5], [0.6]])}  # by how large the images are
    monkeypatch.setattr(judging, "_dices", lambda unet, segments: next(answers[segments.images[0].shape[-1]]))
    unet = create_model("unet", image_shape=(1, 16, 16), channels=2, depth=1)
    held_out, whole = mask_sources.draw_axons(2, 16), mask_sources.draw_axons(1, 32)
    found = judging._compare(generator(), held_out, whole, [judging.TrainedUNet(unet, 0.5)])
    assert found["label_dice"] == pytest.approx(0.5)
    assert found["label_dice_apart"] == pytest.approx(0.6)
    assert found["whole_dice_apart"] == pytest.approx(0.1)


def test_whole_maps_may_be_of_any_sizes_that_the_generator_draws(monkeypatch):
    monkeypatch.setattr(judging, "_dices", lambda unet, segments: [float(i.float().mean()) for i in segments.images])
    unet = create_model("unet", image_shape=(1, 16, 16), channels=2, depth=1)
    small, large = mask_sources.draw_axons(1, 16), mask_sources.draw_axons(1, 24)
    whole = SegmentationDataset(small.images + large.images, small.masks + large.masks, small.class_names, ("a", "b"))
    found = judging._compare(generator(), small, whole, [judging.TrainedUNet(unet, 0.5)])
    assert found["whole_dice_apart"] > 0


def test_every_unet_looks_at_whole_maps_each_drawn_with_its_own_noise(monkeypatch):
    seen = []
    monkeypatch.setattr(judging, "_dices", lambda unet, segments: seen.append((unet, segments)) or [0.5] * 2)
    unets = [create_model("unet", image_shape=(1, 16, 16), channels=2, depth=1) for _ in range(2)]
    one = mask_sources.draw_axons(1, 32)
    whole = SegmentationDataset(one.images * 2, one.masks * 2, one.class_names, ("a", "again"))
    judging._compare(
        generator(), mask_sources.draw_axons(2, 16), whole, [judging.TrainedUNet(unet, 0.5) for unet in unets]
    )
    large = [(unet, segments) for unet, segments in seen if segments.images[0].shape[-1] == 32]
    assert [unet for unet, _ in large] == unets * 2  # with either noise
    for _, segments in large:
        assert not torch.equal(*segments.images)


@pytest.mark.parametrize(
    ("sizes", "drawn"),
    [
        ([64], True),
        ([20], False),  # no multiple of 8
        ([72], False),  # more than 16 windows of 16
        ([32, 20], False),  # one of them
    ],
)
def test_whole_maps_are_left_out_where_the_generator_cannot_draw_them(sizes, drawn, monkeypatch):
    monkeypatch.setattr(judging, "_dices", lambda unet, segments: [0.5] * len(segments))
    unet = create_model("unet", image_shape=(1, 16, 16), channels=2, depth=1)
    held_out, maps = mask_sources.draw_axons(2, 16), [mask_sources.draw_axons(1, size) for size in sizes]
    images, masks = ([each for some in maps for each in getattr(some, what)] for what in ("images", "masks"))
    whole = SegmentationDataset(images, masks, held_out.class_names, tuple(map(str, sizes)))
    found = judging._compare(generator(), held_out, whole, [judging.TrainedUNet(unet, 0.5)])
    assert found["label_dice_apart"] == 0
    assert found["whole_dice_apart"] == (0 if drawn else None)
    assert judge_tables({"trained": {}, "drawn": {"caps": found}})[1][1][0][3] == ("0.00%" if drawn else "")


def judged(seed, real, caps, variation):
    kinds = {"real": real, f"runs/caps-{seed}": caps, f"real + runs/caps-{seed}": real}
    drawn = {"parameters": 7, "label_dice": 0.5, "label_dice_apart": 0.1, "variation": variation, "ssim": 0.5}
    drawn |= {"whole_dice_apart": seed / 10, "kid": None, "n": 4}
    return {
        "data": "axons",
        "windows": 8,
        "draws": 2,
        "test_n": 4,
        "generator_seeds": {f"runs/caps-{seed}": seed},
        "unet": {"recipe": "judge", "settings": [], "parameters": 9, "first_seed": seed},
        "kid_of_real": 0.1 + seed,
        "trained": {
            kind: {"values": [dice], "n": 1, "generator_parameters": None if kind == "real" else 7}
            for kind, dice in kinds.items()
        },
        "drawn": {f"runs/caps-{seed}": drawn},
    }


def test_generators_of_several_seeds_as_one():
    one, other = judged(0, 0.8, 0.6, 0.1), judged(1, 0.9, 0.76, 0.3)
    other["trained"] = dict(reversed(other["trained"].items()))  # it is names that count, not their order
    pooled = pool([one, other])
    assert list(pooled["trained"]) == ["real", "caps", "real + caps"]
    caps = pooled["trained"]["caps"]
    assert (caps["n"], caps["mean"], caps["of_real"]) == (2, pytest.approx(0.68), pytest.approx(0.8))
    assert caps["generator_parameters"] == 7
    assert pooled["generator_seeds"] == {"caps": [0, 1]}
    assert pooled["drawn"]["caps"]["variation"] == pytest.approx(0.2)
    assert pooled["drawn"]["caps"]["n"] == 8
    assert pooled["drawn"]["caps"]["kid"] is None
    assert pooled["kid_of_real"] == pytest.approx(0.6)
    assert pooled["unet"]["first_seed"] == [0, 1]
    trained, drawn = judge_tables(pooled)
    assert trained[1][1][:3] == ["caps", "68.00% ± 11.31%", "2"]
    assert drawn[1] == [["caps", "50.00%", "10.00%", "5.00%", "20.00%", "0.500", ""]]


def test_judges_of_earlier_versions_did_not_look_at_whole_maps():
    old, new = judged(0, 0.8, 0.6, 0.1), judged(1, 0.9, 0.76, 0.3)
    del old["drawn"]["runs/caps-0"]["whole_dice_apart"]
    for results in ([old, new], [new, old], [old]):
        pooled = pool(results)
        assert judge_tables(pooled)[1][1][0][2:4] == ["10.00%", ""]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda other: other.update(test_n=5), "not judged alike: their test_n"),
        (lambda other: other["trained"].update(more=other["trained"]["real"]), "not judged alike: they have"),
        (lambda other: other["unet"].update(recipe="another"), "not judged alike: their recipe of the U-Net"),
        (lambda other: other["unet"].update(settings=["train.epochs=4"]), "not judged alike: their settings of the"),
        (lambda other: other["unet"].update(parameters=10), "not judged alike: their parameters of the U-Net"),
        (lambda other: other.update(judged(0, 0.9, 0.76, 0.3)), "judged twice"),
    ],
)
def test_what_was_not_judged_alike_is_not_one(change, message):
    other = judged(1, 0.9, 0.76, 0.3)
    change(other)
    with pytest.raises(UserError, match=message):
        pool([judged(0, 0.8, 0.6, 0.1), other])
