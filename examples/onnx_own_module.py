"""A module of your own with capsule layers as an ONNX file, compared with PyTorch in ONNX Runtime.

Needs `pip install 'torchcaps[export]'`.
"""

from pathlib import Path

import onnxruntime
import torch
from torch import nn

from torchcaps.layers import ConvCaps2d, DenseCaps, PrimaryCaps


class Classifier(nn.Module):
    """Images of 16×16 → lengths of three capsules; files hold tensors, so it returns those and no Capsules."""

    def __init__(self):
        super().__init__()
        self.capsules = nn.Sequential(
            PrimaryCaps(1, 4, 8, kernel_size=5, stride=2, padding=2, maps=True),
            ConvCaps2d(4, 8, 4, 8, kernel=3, stride=2, padding=1),
            DenseCaps(4 * 4 * 4, 8, 3, 16, routing="self_attention"),
        )

    def forward(self, images):
        return self.capsules(images).activation


def export(path):
    """Write the file, and return the largest difference for batches of one and of seven."""
    torch.manual_seed(0)
    network, example = Classifier().eval(), torch.rand(2, 1, 16, 16)
    torch.onnx.export(
        network,
        (example,),
        path,
        dynamo=True,
        input_names=["images"],
        output_names=["lengths"],
        dynamic_shapes=({0: torch.export.Dim("batch")},),
    )
    session = onnxruntime.InferenceSession(path)
    batches = [torch.rand(count, 1, 16, 16) for count in (1, 7)]
    found = [torch.from_numpy(session.run(None, {"images": images.numpy()})[0]) for images in batches]
    return max((ours - network(images)).abs().max().item() for ours, images in zip(found, batches))


if __name__ == "__main__":
    print(f"classifier.onnx differs from PyTorch by {export(Path('classifier.onnx')):.1e}")
