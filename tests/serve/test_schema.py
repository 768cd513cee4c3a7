"""Requests generated from the OpenAPI schema: every response has a documented status and matches its schema."""

import pytest
import schemathesis
from bodies import random_pixels
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import positive_data_acceptance

from torchcaps.serve.app import create_app

INFO = ("/healthz", "/api/model")
INFERENCE = tuple(f"/api/{name}" for name in ("predict", "reconstruct", "routing", "lattice", "transform", "shapes"))
FEW = settings(max_examples=30, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="session")
def described(explorer):
    return schemathesis.openapi.from_asgi("/openapi.json", create_app(explorer, hosts=None))


def try_out(operation, mode, change=lambda body: body, excluded=()):
    """The statuses of the responses to generated requests, each checked against the schema."""
    statuses = set()

    @FEW
    @given(case=operation.as_strategy(generation_mode=mode))
    def check(case):
        if mode is GenerationMode.POSITIVE and isinstance(case.body, dict):
            case.body = change(case.body)
        statuses.add(case.call_and_validate(excluded_checks=list(excluded)).status_code)

    check()
    return statuses


def fitting(body):
    """The body with an image, class and pose that fit the model, which a schema cannot require."""
    image = random_pixels()
    known = {"image": image, "compare": image, "class": 3, "decode": [1, 9], "pose": [0.5] * 16, "model": "capsules"}
    part = {"part": {"type": 1, "row": 2, "column": 3}} if body.get("part") else {}
    if body.get("placement"):
        part |= {"model": "poses", "placement": {**body["placement"], "stretch": 1}}  # which does not predict stretch
    return {**body, **{name: value for name, value in known.items() if body.get(name) is not None}, **part}


def fitting_poses(body):
    return {**fitting(body), "model": "poses"}


@pytest.mark.parametrize("path", INFO)
def test_info(described, path):
    assert try_out(described[path]["GET"], GenerationMode.POSITIVE) == {200}


@pytest.mark.parametrize("path", INFERENCE)
def test_fitting_requests_succeed(described, path):
    change = fitting_poses if path == "/api/lattice" else fitting
    assert try_out(described[path]["POST"], GenerationMode.POSITIVE, change) == {200}


@pytest.mark.parametrize("path", [path for path in INFERENCE if path != "/api/shapes"])  # which needs no model
def test_valid_requests_that_do_not_fit_the_model_get_422(described, path):
    found = try_out(described[path]["POST"], GenerationMode.POSITIVE, excluded=[positive_data_acceptance])
    assert 422 in found
    assert found <= {200, 422}


@pytest.mark.parametrize("path", INFERENCE)
def test_invalid_requests_are_rejected(described, path):
    assert try_out(described[path]["POST"], GenerationMode.NEGATIVE) <= {400, 415, 422}


def test_every_operation_is_tested(described):
    operations = {(each.ok().method.upper(), each.ok().path) for each in described.get_all_operations()}
    assert operations == {*(("GET", path) for path in INFO), *(("POST", path) for path in INFERENCE)}
