"""Requests made up from the API's own description: each answer is one that the description names, and has its shape."""

import pytest
import schemathesis
from bodies import random_pixels
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import positive_data_acceptance

from torchcaps.serve.app import create_app

FACTS = ("/healthz", "/api/model")
QUESTIONS = tuple(f"/api/{name}" for name in ("predict", "reconstruct", "routing", "lattice", "transform"))
FEW = settings(max_examples=30, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="session")
def described(explorer):
    return schemathesis.openapi.from_asgi("/openapi.json", create_app(explorer, hosts=None))


def try_out(operation, mode, change=lambda body: body, excluded=()):
    """The codes of the answers to made-up requests, each checked against the description."""
    statuses = set()

    @FEW
    @given(case=operation.as_strategy(generation_mode=mode))
    def check(case):
        if mode is GenerationMode.POSITIVE and isinstance(case.body, dict):
            case.body = change(case.body)
        statuses.add(case.call_and_validate(excluded_checks=list(excluded)).status_code)

    check()
    return statuses


def sensible(body):
    """The same with what a schema cannot demand: a picture, a class and a pose that the network has."""
    image = random_pixels()
    known = {"image": image, "compare": image, "class": 3, "decode": [1, 9], "pose": [0.5] * 16, "model": "capsules"}
    part = {"part": {"type": 1, "row": 2, "column": 3}} if body.get("part") else {}
    if body.get("placement"):
        part |= {"model": "poses", "placement": {**body["placement"], "stretch": 1}}  # its network reads no stretch
    return {**body, **{name: value for name, value in known.items() if body.get(name) is not None}, **part}


def sensible_of_poses(body):
    return {**sensible(body), "model": "poses"}


@pytest.mark.parametrize("path", FACTS)
def test_facts(described, path):
    assert try_out(described[path]["GET"], GenerationMode.POSITIVE) == {200}


@pytest.mark.parametrize("path", QUESTIONS)
def test_sensible_questions_are_answered(described, path):
    change = sensible_of_poses if path == "/api/lattice" else sensible
    assert try_out(described[path]["POST"], GenerationMode.POSITIVE, change) == {200}


@pytest.mark.parametrize("path", QUESTIONS)
def test_questions_that_only_look_sensible_get_an_answer_too(described, path):
    found = try_out(described[path]["POST"], GenerationMode.POSITIVE, excluded=[positive_data_acceptance])
    assert 422 in found
    assert found <= {200, 422}


@pytest.mark.parametrize("path", QUESTIONS)
def test_questions_against_the_description_are_refused(described, path):
    assert try_out(described[path]["POST"], GenerationMode.NEGATIVE) <= {400, 415, 422}


def test_nothing_was_left_out(described):
    operations = {(each.ok().method.upper(), each.ok().path) for each in described.get_all_operations()}
    assert operations == {*(("GET", path) for path in FACTS), *(("POST", path) for path in QUESTIONS)}
