"""Examples are images of the data that the served model was trained on, or there are none and the reason is given."""

import pytest
import torch
from bodies import as_file, pixels_of
from PIL import Image

from torchcaps.data import load_data, load_image
from torchcaps.errors import UserError
from torchcaps.models import create_model, save
from torchcaps.serve.explorer import Explorer
from torchcaps.serve.requests import PredictRequest, RoutingRequest
from torchcaps.serve.served_models import load_models

CLASSES = ("red", "green", "blue")


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """A folder of coloured images on white paper, four of each class."""
    folder = tmp_path_factory.mktemp("photos")
    for name in CLASSES:
        (folder / name).mkdir()
        for number in range(4):
            image = Image.new("RGB", (40, 40), "white")
            image.paste(name, (4 + number, 8, 20 + number, 30))
            image.save(folder / name / f"{number}.png")
    return folder


def saved(folder, **data):
    """A new network for colour images, saved as if it had been trained on this data."""
    torch.manual_seed(0)
    model = create_model("capsnet_small", image_shape=(3, 20, 20), num_classes=3, class_names=CLASSES).eval()
    settings = {"image_size": 20, "channels": None, "validation": 0, "test": 0.5, "split_seed": 0, "limit": None}
    model.trained_by = {"recipe": "folder", "seed": 0, "data": {**settings, **data}}
    save(model, folder)
    return folder


@pytest.fixture(scope="module")
def served(photos, tmp_path_factory):
    (model,) = load_models(str(saved(tmp_path_factory.mktemp("run") / "run", source="folder", path=str(photos))))
    return model


def test_a_model_of_a_folder_gets_images_of_its_test_split(served, photos):
    split = load_data("folder", path=photos, image_size=20, validation=0, test=0.5).test
    described = served.describe()
    assert not described.draws
    assert described.examples.kind == "data"
    assert str(photos) not in described.examples.note  # visitors need not know
    labels = [example.classes for example in described.examples.images]
    assert len(labels) == len(split) == 6
    assert labels[:3] == [[name] for name in served.model.class_names]  # one image of each class first
    known = {tuple(image.flatten().tolist()) for image in split.images}
    for index, example in enumerate(described.examples.images):
        image = (255 * served.examples.images[index]).round().to(torch.uint8)
        assert tuple(image.flatten().tolist()) in known
        assert (pixels_of(example.picture) == image.permute(1, 2, 0).numpy()).all()
        colour = example.classes[0]
        assert image[CLASSES.index(colour)].float().mean() > 100  # the image has the colour of its class


def test_an_example_is_predicted_as_the_model_takes_it(served):
    explorer = Explorer([served])
    answer = explorer.predict(PredictRequest(image={"example": 4}))
    expected = served.model(served.examples.images[4:5]).lengths[0]
    torch.testing.assert_close(torch.tensor(answer.lengths), expected.detach(), atol=1e-5, rtol=0)
    assert explorer.routing(RoutingRequest(image={"example": 4})).seen == answer.seen
    with pytest.raises(UserError, match="6 examples, numbered from 0"):
        explorer.predict(PredictRequest(image={"example": 6}))


def test_a_photograph_is_prepared_as_by_predict(served, photos):
    """In its colours, neither inverted nor centred."""
    path = photos / "blue" / "1.png"
    answer = Explorer([served]).predict(PredictRequest(image={"png": as_file(Image.open(path)), "centre": True}))
    expected = load_image(path, (3, 20, 20)).permute(1, 2, 0).numpy()
    assert abs(pixels_of(answer.seen) - expected.astype(int)).max() <= 2  # two ways to shrink an image
    assert pixels_of(answer.seen)[0, 0].tolist() == [255, 255, 255]


def test_embedded_digits_for_a_model_of_them():
    (model,) = load_models("capsnet-digits")
    test = load_data("digits", image_size=16, channels=1).test
    assert model.describe().draws
    examples = model.describe().examples
    assert examples.kind == "data"
    assert [each.classes for each in examples.images] == [[str(index % 10)] for index in range(30)]
    known = {tuple(image.flatten().tolist()) for image in test.images}
    shown = (255 * model.examples.images).round().to(torch.uint8)
    assert all(tuple(image.flatten().tolist()) in known for image in shown)
    answers = [Explorer([model]).predict(PredictRequest(image={"example": index})).winners[0] for index in range(30)]
    assert sum(answer == index % 10 for index, answer in enumerate(answers)) >= 29


def test_the_strokes_of_the_page_for_a_model_of_mnist():
    main, *others = load_models("capsnet-mnist")
    assert (main.describe().examples.kind, main.describe().examples.images) == ("drawn", [])
    assert all(other.describe().examples.images == [] for other in others)


def test_data_that_is_gone_is_said_to_be(tmp_path):
    (model,) = load_models(str(saved(tmp_path / "run", source="folder", path=str(tmp_path / "gone"))))
    examples = model.describe().examples
    assert (examples.kind, examples.images) == ("none", [])
    assert examples.note == "No examples: the data that this network was trained on (folder) cannot be loaded."
    assert "gone" in model.examples.reason
    with pytest.raises(UserError, match="0 examples"):
        Explorer([model]).predict(PredictRequest(image={"example": 0}))


def test_a_model_without_a_record_of_its_data_has_none(tmp_path):
    model = create_model("capsnet_small", image_shape=(1, 20, 20)).eval()
    save(model, tmp_path / "run")
    (served,) = load_models(str(tmp_path / "run"))
    assert served.describe().examples.note == "No examples: it is not recorded what this network was trained on."
    assert served.describe().draws


def test_nothing_is_downloaded_for_examples(tmp_path, monkeypatch):
    def download(*_, **__):
        raise AssertionError("a file was fetched")

    monkeypatch.setenv("TORCHCAPS_DATA", str(tmp_path / "data"))
    monkeypatch.setattr("pooch.retrieve", download)
    (model,) = load_models(str(saved(tmp_path / "run", source="cifar10", path=None)))
    assert model.describe().examples.kind == "none"
    assert "cifar-10-binary.tar.gz is not in" in model.examples.reason
