"""The discriminator of conditional synthesis: it tells drawn images from real ones, patch by patch."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm

from torchcaps.errors import UserError
from torchcaps.ops.squash import at_least_float32


class Discriminator(nn.Module):
    """PatchGAN (Isola et al. 2017): convolutions on label map and image, whose every answer sees a patch of them.

    channels       of the first convolution; they double with each halving, up to eight times as many
    depth          halvings: 3 for patches of 70×70 pixels, 2 for 34×34, 1 for 16×16
    spectral_norm  bound how steep each layer is (Miyato et al. 2018), so that training is stable
    instance_norm  bring what each layer but the first and the last finds to mean 0 and deviation 1 within an image, so
                   that differences do not fade from layer to layer
    """

    def __init__(
        self,
        inputs: int,
        *,
        channels: int = 64,
        depth: int = 3,
        spectral_norm: bool = True,
        instance_norm: bool = False,
    ):
        super().__init__()
        if min(inputs, channels, depth) < 1:
            raise UserError(f"discriminator: channels and depth must be at least 1, got {channels} and {depth}")
        widths = [channels * min(8, 2**level) for level in range(depth + 1)]
        layers: list[nn.Module] = []
        for level, (before, after) in enumerate(zip([inputs, *widths], widths)):
            layers.append(_layer(before, after, 2 if level < depth else 1, spectral_norm))
            if instance_norm and level:
                layers.append(nn.InstanceNorm2d(after, affine=True))
            layers.append(nn.LeakyReLU(0.2))
        self.layers = nn.Sequential(*layers, _layer(widths[-1], 1, 1, spectral_norm))

    def forward(self, seen: Tensor) -> Tensor:
        """(B, 1, h, w) logits, above 0 where a patch of `seen` (B, labels and colours, H, W) is taken for real."""
        return at_least_float32(self.layers(seen))

    def noticed(self, seen: Tensor) -> list[Tensor]:
        """What each layer but the last makes of it, (B, channels, h, w), and last the logits."""
        maps, found = [], seen
        for layer in self.layers:
            found = layer(found)
            if isinstance(layer, nn.LeakyReLU):
                maps.append(found)
        return [*maps, at_least_float32(found)]


def _layer(before: int, after: int, stride: int, normed: bool) -> nn.Module:
    convolution = nn.Conv2d(before, after, 4, stride, padding=1)
    return spectral_norm(convolution) if normed else convolution
