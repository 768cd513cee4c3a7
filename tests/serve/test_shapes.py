"""Boats and houses of parts that a client places."""

import math

import pytest
import torch

from torchcaps.data.datasets.shapes.wholes import member_table
from torchcaps.geometry import Affine


def parts_of(name, **pose):
    """The parts of a whole at a pose."""
    table = member_table((name,))
    whole = Affine.of(**{key: torch.tensor(float(value), dtype=torch.float64) for key, value in pose.items()})
    placed = (Affine(whole.linear[None], whole.shift[None]) @ table.poses[0]).parts()
    values = zip(table.label[0].tolist(), *(each.tolist() for each in (placed.x, placed.y, placed.angle, placed.scale)))
    return [{"type": table.names[kind], "x": x, "y": y, "angle": a, "scale": s} for kind, x, y, a, s in values]


@pytest.fixture
def find(client):
    def post(parts, **options):
        response = client.post("/api/shapes", json={"parts": parts, **options})
        assert response.status_code == 200, response.text
        return response.json()

    return post


def present(answer, step=-1):
    """Class, x, y, angle and scale of the wholes that are there."""
    wholes = [whole for whole in answer["steps"][step]["wholes"] if whole["presence"] > 0.5]
    return sorted([answer["classes"][each["class"]]["name"], *pose(each)] for each in wholes)


def pose(found):
    return [round(found[key], 2) for key in ("x", "y", "angle", "scale")]


@pytest.mark.parametrize("name", ["boat", "house"])
@pytest.mark.parametrize("angle", [0, 50, -170])
def test_the_same_parts_are_a_boat_or_a_house(find, name, angle):
    answer = find(parts_of(name, x=30, y=25, angle=angle, scale=1.5))
    assert len(answer["steps"]) == 5
    assert present(answer) == [[name, 30, 25, angle, 1.5]]
    (whole,) = (each for each in answer["steps"][-1]["wholes"] if each["presence"] > 0.5)
    assert min(whole["couplings"]) > 0.99
    assert max(answer["steps"][-1]["unexplained"]) < 0.01


def test_every_part_votes_for_every_class(find):
    answer = find(parts_of("boat", x=30, y=25, angle=20, scale=2))
    count = [
        sum(vote["part"] == part and vote["class"] == label for vote in answer["votes"])
        for part in (0, 1)
        for label in (0, 1)
    ]
    assert count == [2, 2, 1, 1]  # the rectangle looks the same after half a turn
    boats = [pose(vote) for vote in answer["votes"] if vote["class"] == 0]
    assert boats.count([30, 25, 20, 2]) == 2  # one of each part
    assert {vote["weight"] for vote in answer["votes"]} == {1.0}


def test_gaps_say_how_far_apart_two_parts_vote(find):
    parts = parts_of("boat", x=30, y=25, angle=20, scale=2)
    for given, order in ((parts, [0, 1]), (parts[::-1], [0, 1])):
        answer = find(given)
        gaps = {answer["classes"][gap["class"]]["name"]: gap for gap in answer["gaps"]}
        assert len(answer["gaps"]) == 2
        assert gaps["boat"]["parts"] == order
        assert [gaps["boat"][key] for key in ("pixels", "degrees", "scale")] == pytest.approx([0, 0, 1], abs=1e-5)
        assert gaps["boat"]["presence"] > 0.99
        assert gaps["house"]["presence"] < 0.01
        one, other = (answer["votes"][index] for index in gaps["house"]["votes"])
        assert (one["part"], other["part"], one["class"], other["class"]) == (0, 1, 1, 1)
        assert gaps["house"]["pixels"] == pytest.approx(
            math.dist((one["x"], one["y"]), (other["x"], other["y"])), abs=1e-4
        )
        turned = (one["angle"] - other["angle"] + 180) % 360 - 180
        assert gaps["house"]["degrees"] == pytest.approx(abs(turned), abs=1e-4) == pytest.approx(45, abs=1e-4)


def test_the_gap_between_scales_is_a_factor(find):
    rectangle, triangle = parts_of("house", x=30, y=25)
    for factor in (0.5, 2):
        gaps = find([rectangle, {**triangle, "scale": factor}])["gaps"]
        assert [gap["scale"] for gap in gaps] == pytest.approx([2, 2], abs=1e-5)


def shared_triangle():
    """A house, and a rectangle beside its roof that would make a boat of it, a pixel off."""
    rectangle, triangle = parts_of("house", x=32, y=32)
    hull, sail = member_table(("boat",)).poses[0][0], member_table(("boat",)).poses[0][1]
    roof = Affine.of(
        **{key: torch.tensor(value, dtype=torch.float64) for key, value in triangle.items() if key != "type"}
    )
    beside = (roof @ sail.inverse() @ hull).parts()
    return [
        rectangle,
        triangle,
        {"type": "rectangle", "x": float(beside.x) + 1, "y": float(beside.y), "angle": float(beside.angle)},
    ]


def test_a_part_of_one_whole_is_explained_away_for_another(find):
    answer = find(shared_triangle())
    assert [name for name, *_ in present(answer, 0)] == ["boat", "house"]
    assert [name for name, *_ in present(answer, 1)] == [name for name, *_ in present(answer)] == ["house"]
    boat = next(
        index
        for index, whole in enumerate(answer["steps"][0]["wholes"])
        if answer["classes"][whole["class"]]["name"] == "boat" and whole["presence"] > 0.5
    )
    assert answer["steps"][1]["wholes"][boat]["presence"] < 0.1
    assert answer["steps"][-1]["unexplained"] == pytest.approx([0, 0, 1], abs=0.01)
    (gap,) = (gap for gap in answer["gaps"] if gap["parts"] == [1, 2] and gap["class"] == 0)
    assert gap["presence"] > 0.5  # these votes agree: without the house they are a boat
    assert [name for name, *_ in present(find(shared_triangle()[1:]))] == ["boat"]


def test_neighbours_of_one_class_are_all_found(find):
    parts = [part for x in (14, 28, 42) for part in parts_of("house", x=x, y=30)]
    assert present(find(parts)) == [["house", x, 30, 0, 1] for x in (14, 28, 42)]


def test_shares_of_a_part_sum_to_one(find):
    for step in find(shared_triangle())["steps"]:
        for part, left in enumerate(step["unexplained"]):
            assert left + sum(whole["couplings"][part] for whole in step["wholes"]) == pytest.approx(1, abs=1e-4)


def test_parts_may_be_uncertain(find):
    """As a network would give them: with presence 0 a part has no influence."""
    boat = parts_of("boat", x=30, y=25)
    assert present(find([*boat, {**boat[0], "x": 60, "presence": 0.9}])) == [["boat", 30, 25, 0, 1]]
    answer = find([{**boat[0], "presence": 0}, boat[1]])
    assert present(answer) == []
    assert answer["gaps"] == []
    assert {vote["part"] for vote in answer["votes"]} == {1}
    assert answer["steps"][-1]["unexplained"][0] == 1
    weights = {vote["weight"] for vote in find([{**boat[0], "presence": 0.25}])["votes"]}
    assert weights == {0.25}


@pytest.mark.parametrize("parts", [[], parts_of("boat", x=1, y=1)[:1], parts_of("boat", x=1, y=1)[1:]])
def test_too_few_parts_are_no_whole(find, parts):
    answer = find(parts, iterations=3)
    assert len(answer["steps"]) == 3
    assert present(answer) == []
    assert answer["gaps"] == []
    assert [kind["type"] for kind in answer["kinds"]] == ["rectangle", "triangle"]
    assert [each["name"] for each in answer["classes"]] == ["boat", "house"]


def test_a_full_scene_is_answered(find):
    parts = [
        part for index in range(12) for part in parts_of("house", x=10 + 14 * (index % 4), y=10 + 20 * (index // 4))
    ]
    answer = find(parts)
    assert len(present(answer)) == 12
    assert len(answer["gaps"]) == 2 * 12 * 12


PART = {"type": "rectangle", "x": 1, "y": 2}
WRONG = {
    "25 parts": ([PART] * 25, "parts: List should have at most 24 items"),
    "unknown type": ([{**PART, "type": "disc"}], "parts.0.type: Input should be 'rectangle' or 'triangle'"),
    "no type": ([{"x": 1, "y": 1}], "parts.0.type: Field required"),
    "infinite by overflow": ([{**PART, "x": 1e308}], "parts.0.x: Input should be less than or equal to 1000"),
    "text": ([PART, {**PART, "y": "2"}], "parts.1.y: Input should be a valid number"),
    "scale of zero": ([{**PART, "scale": 0}], "parts.0.scale: Input should be greater than or equal to 0.05"),
    "unknown field": ([{**PART, "colour": 1}], "parts.0.colour: Extra inputs are not permitted"),
    "no list": (PART, "parts: Input should be a valid list"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_parts_are_named(client, name):
    parts, message = WRONG[name]
    response = client.post("/api/shapes", json={"parts": parts})
    assert response.status_code == 422
    assert message in response.json()["detail"]


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_that_are_none_are_rejected(client, value):
    body = f'{{"parts": [{{"type": "triangle", "x": {value}, "y": 1}}]}}'
    response = client.post("/api/shapes", content=body, headers={"content-type": "application/json"})
    assert response.status_code in (400, 422)
    assert set(response.json()) == {"detail"}
