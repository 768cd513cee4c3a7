"""An explorer with small untrained models: its predictions are meaningless but must match the models' own."""

import pytest
import torch
from fastapi.testclient import TestClient

from torchcaps.models import create_model
from torchcaps.serve.app import create_app
from torchcaps.serve.explorer import Explorer
from torchcaps.serve.served_models import ServedModel


@pytest.fixture(scope="session")
def served_models():
    torch.manual_seed(0)
    small = {"channels": 8, "types": 4, "hidden": (16, 32)}
    main, pairs = (
        create_model("capsnet_small", image_shape=(1, side, side), variant=variant, **small).eval()
        for side, variant in ((28, "paper"), (36, "authors"))  # without and with a bias inside routing
    )
    pairs.classes.bias.data.normal_(0, 0.1)
    for model in (main, pairs):
        model.classes.weight.data.mul_(30)  # long votes, so that routing has an effect
    poses = create_model("posecaps_small", width=4, types=4, hidden=16, shears=(-0.2, 0.0, 0.2)).eval()
    poses.offset.weight.data.normal_(0, 3)  # so that the predicted pose differs between views
    return [
        ServedModel("capsules", main),
        ServedModel("pairs", pairs, "overlap"),
        ServedModel(
            "cnn", create_model("matched_cnn", image_shape=(1, 28, 28), parameters=20_000).eval(), "comparison"
        ),
        ServedModel("poses", poses),
    ]


@pytest.fixture(scope="session")
def explorer(served_models):
    return Explorer(served_models)


@pytest.fixture(scope="session")
def client(explorer):
    return TestClient(create_app(explorer), base_url="http://localhost", raise_server_exceptions=False)
