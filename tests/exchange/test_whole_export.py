"""Routing by poses runs in ONNX Runtime, with the same answers."""

import onnxruntime
import pytest
import torch

from torchcaps.layers import WholeCaps
from torchcaps.ops import Wholes
from torchcaps.similarity import Similarity


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the exporter warns of what it does itself
def test_onnx_finds_the_same_wholes(tmp_path):
    layer = WholeCaps(3, 2, [[0, 1], [0, 1, 2]], symmetry=(2, 1, 0))
    angle, scale = 360 * torch.rand(2, 5), 0.5 + torch.rand(2, 5)
    pose = Similarity.of(x=20 * torch.rand(2, 5), y=20 * torch.rand(2, 5), angle=angle, scale=scale)
    layout = layer.layouts(pose.numbers).pose[1]
    whole = pose[:, 0][:, None] @ Similarity(layout.numbers.detach())  # one class is there, the other is not
    poses = torch.cat([pose.numbers, whole.numbers], dim=1)
    types = torch.eye(3)[[0, 1, 2, 0, 1, 0, 1, 2]].expand(2, -1, -1).contiguous()
    given = (poses, torch.tensor([[1.0] * 8, [0.0] + [1.0] * 7]), types)
    expected = layer(*given)
    assert (expected.presence[:, 0] > 0.9).all()
    torch.onnx.export(layer, given, tmp_path / "whole.onnx", dynamo=True, verbose=False)
    session = onnxruntime.InferenceSession(tmp_path / "whole.onnx", providers=["CPUExecutionProvider"])
    answers = session.run(None, {each.name: x.numpy() for each, x in zip(session.get_inputs(), given)})
    for name, answer, wanted in zip(Wholes._fields, answers, expected):
        wanted = wanted.detach() if name != "log_odds" else wanted.detach().clamp_min(-1e4)
        answer = torch.from_numpy(answer) if name != "log_odds" else torch.from_numpy(answer).clamp_min(-1e4)
        torch.testing.assert_close(answer, wanted, atol=1e-4, rtol=1e-4, msg=name)
