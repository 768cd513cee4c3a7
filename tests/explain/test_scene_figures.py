"""Pictures of a scene that is parsed: what they draw, and where."""

import torch

from torchcaps.data import frozen_set
from torchcaps.data.datasets.shapes.known import known_wholes
from torchcaps.explain.scene_figures import SceneObject, figure_parse_tree, figure_scene_routing
from torchcaps.similarity import Similarity

SQUARE = torch.tensor([(1.0, 1.0), (3.0, 1.0), (3.0, 3.0), (1.0, 3.0)])
IMAGE = torch.zeros(1, 8, 8)


def objects(*names: str) -> list[SceneObject]:
    return [SceneObject(name, [SQUARE + 2 * at], "red") for at, name in enumerate(names)]


def test_the_children_of_one_whole_stand_side_by_side_in_the_tree():
    levels = [objects("a", "b", "c", "d"), objects("X", "Y")]
    shares = torch.tensor([[0.0, 1.0], [1.0, 0.0], [0.0, 0.6], [0.8, 0.0]])
    figure = figure_parse_tree(IMAGE, levels, [shares])
    tree = figure.axes[-1]
    named = sorted((text.xy[0], text.get_text()) for text in tree.texts if text.xy[1] == 0)
    assert [name for _, name in named] == ["b", "d", "a", "c"]  # X took b and d
    edges = [line for line in tree.lines if len(line.get_xdata()) == 2]
    assert sorted(line.get_alpha() for line in edges) == [torch.tensor(each).item() for each in (0.6, 0.8, 1.0, 1.0)]
    assert figure.axes[0].get_title() == "1 a, 1 b, 1 c, 1 d"
    assert figure.axes[1].get_title() == "1 X, 1 Y"


def test_hypotheses_are_as_pale_as_they_are_absent():
    presence = torch.tensor([[1.0, 0.9], [1.0, 0.0]])
    couplings = torch.tensor([[[0.5, 0.5, 0.0]], [[0.98, 0.0, 0.02]]])
    hypotheses = [objects("boat", "house")] * 2
    figure = figure_scene_routing(IMAGE, ["rectangle"], hypotheses, presence, couplings, (1, 3))
    first, second, _, last = figure.axes
    assert [axes.get_title() for axes in (first, second)] == ["iteration 1", "iteration 3"]
    assert [round(line.get_alpha(), 3) for line in second.lines] == [1.0, 0.08]
    assert [label.get_text() for label in last.get_xticklabels()] == ["boat 1.00", "house 0.00", "none"]
    assert [text.get_text() for text in last.texts] == ["1.0"]  # shares below a twentieth are not written


def test_known_wholes_find_the_harbours_of_true_parts():
    scenes = frozen_set("harbours")[:4]
    one = scenes.parts.to(dtype=torch.float64)
    pose = Similarity.of(x=one.x, y=one.y, angle=one.angle, scale=one.scale).numbers
    types = torch.nn.functional.one_hot(one.label, len(one.names)).double()
    wholes = known_wholes(("house", "boat"), (0.5, 3.0, 0.05))(pose, one.present.double(), types)
    assert (wholes.presence > 0.5).sum(1).tolist() == [4] * 4
    harbours = known_wholes(("harbour",), (1.0, 5.0, 0.1))(*wholes[:3])
    assert (harbours.presence > 0.5).sum(1).tolist() == [1] * 4
    assert not any(parameter.requires_grad for parameter in known_wholes(("face",), (1, 5, 0.1)).parameters())
    found, true = Similarity(harbours.pose[:, 0]), scenes.wholes
    assert torch.allclose(torch.stack([found.x, found.y]).float(), torch.stack([true.x, true.y])[..., 0], atol=0.1)
