"""The gradient of each example by itself, through capsule layers: which digits pull hardest on an untrained network."""

import torch
from torch import nn
from torch.func import functional_call, grad, vmap

from torchcaps.data import load_data
from torchcaps.layers import DenseCaps, PrimaryCaps
from torchcaps.losses import margin_loss


def gradient_norms(network, images, targets):
    """(N,) the norm of each example's gradient of all weights."""
    weights = {name: weight.detach() for name, weight in network.named_parameters()}

    def loss(weights, image, target):
        capsules = functional_call(network, weights, (image[None],))
        return margin_loss(capsules.activation, target[None]).mean()

    gradients = vmap(grad(loss), in_dims=(None, 0, 0))(weights, images, targets)
    return sum(each.flatten(1).square().sum(1) for each in gradients.values()).sqrt()


if __name__ == "__main__":
    torch.manual_seed(0)
    network = nn.Sequential(PrimaryCaps(1, 8, 4, kernel_size=3, stride=2, padding=1), DenseCaps(8 * 4 * 4, 4, 10, 16))
    digits = load_data("digits").train
    norms = gradient_norms(network, digits.images[:32] / 255, digits.targets[:32])
    for index in norms.argsort(descending=True)[:3]:
        print(f"digit {digits.targets[index]}: gradient of norm {norms[index]:.3f}")
