"""Capsule layers behind a small ResNet, trained by `torchcaps.fit` on the embedded digits."""

import torch
from torch import nn

import torchcaps
from torchcaps.data import load_data
from torchcaps.layers import DenseCaps, PrimaryCaps


class Block(nn.Module):
    """Two 3×3 convolutions with batch normalisation, and what came in."""

    def __init__(self, channels):
        super().__init__()
        layers = [nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels)]
        layers += [nn.ReLU(), nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels)]
        self.layers = nn.Sequential(*layers)

    def forward(self, maps):
        return torch.relu(maps + self.layers(maps))


class CapsuleResNet(nn.Module):
    """A ResNet for images of 8×8 whose head are capsules: one for each class, as long as the class is likely."""

    def __init__(self, classes=10, channels=32):
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(1, channels, 3, padding=1), Block(channels), Block(channels))
        self.primary = PrimaryCaps(channels, types=8, dim=8, kernel_size=3, stride=2, padding=1)
        self.classes = DenseCaps(8 * 4 * 4, 8, classes, 16)

    def forward(self, images):
        return self.classes(self.primary(self.backbone(images)))


def train(epochs=4):
    data = load_data("digits", validation=0)
    model, history = torchcaps.fit(
        CapsuleResNet(), data.train, validation=data.test, epochs=epochs, batch_size=32, lr=2e-3
    )
    return model, history


if __name__ == "__main__":
    model, history = train()
    print(f"{history[-1]['val_accuracy']:.2%} of the test digits right after {len(history)} epochs")
