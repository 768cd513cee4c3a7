"""A model, a routing, data and a task of your own: trained by a recipe, reproduced, saved, loaded and exported."""

import subprocess
import sys
from pathlib import Path

import torch

import torchcaps
from torchcaps.data import Dataset
from torchcaps.layers import DenseCaps, PrimaryCaps
from torchcaps.losses import margin_loss
from torchcaps.models import ImageModel, Output
from torchcaps.ops import Routed, squash
from torchcaps.train.tasks import ClassificationTask


@torchcaps.register_routing
def mean_vote(u, weight, iterations, return_couplings=False):
    return Routed(squash(torch.einsum("ijdk,bik->bjd", weight, u) / weight.shape[1]))


@torchcaps.register_data
def bars():
    images, labels = 0.3 * torch.rand(600, 1, 12, 12, generator=torch.Generator().manual_seed(0)), torch.arange(600) % 3
    for number, (image, label) in enumerate(zip(images, labels)):
        image[:, number % 12] += 0.7 * (label != 1)
        image[:, :, number % 11] += 0.7 * (label != 0)
    return Dataset(images.clamp(max=1), labels, ("across", "down", "both"))


class BarCaps(ImageModel):
    def __init__(self, image_shape=(1, 12, 12), num_classes=3, *, dim=8, **options):
        super().__init__(image_shape, num_classes, **options)
        self.primary = PrimaryCaps(image_shape[0], 8, 4, kernel_size=5, stride=2)
        self.classes = DenseCaps(8 * 4 * 4, 4, num_classes, dim, routing="mean_vote")

    def forward(self, images, targets=None, *, each=None):
        capsules = self.classes(self.primary(self.normalise(images)))
        return Output(capsules.activation, capsules.pose)


@torchcaps.register_model
def bar_caps(image_shape=(1, 12, 12), num_classes=3, **options) -> BarCaps:
    return BarCaps(image_shape, num_classes, **options)


@torchcaps.register_task
class StrictTask(ClassificationTask):
    def terms(self, output, images, targets):
        return {"margin": margin_loss(output.lengths, targets, present=0.95, absent=0.05)}


if __name__ == "__main__":
    recipe, command = Path(__file__).with_suffix(".yaml"), [sys.executable, "-m", "torchcaps"]
    subprocess.run(
        [*command, "reproduce", recipe, "--seeds", "2", "--side-by-side", "2", "--device", "cpu"], check=True
    )
    torchcaps.save(torchcaps.load("runs/reproduce/own_everything-0"), "bar_caps")
    subprocess.run([*command, "export", "bar_caps", "--plugin", __file__], check=True)
