"""The discriminator of conditional synthesis, which classifies patches as real or generated."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm

from torchcaps.errors import UserError
from torchcaps.ops.squash import at_least_float32


class Discriminator(nn.Module):
    """PatchGAN (Isola et al. 2017): convolutions on label map and image; each output value sees one patch.

    Args:
        inputs: channels of the input, see `SynthesisModel.discriminator_input`.
        channels: of the first convolution; they double with each halving, up to eight times as many.
        depth: halvings: 3 for patches of 70×70 pixels, 2 for 34×34, 1 for 16×16.
        spectral_norm: bound the Lipschitz constant of each layer (Miyato et al. 2018), for stable training.
        instance_norm: instance normalisation after all layers but the first and the last, so that differences do not
            fade from layer to layer.
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

    def forward(self, inputs: Tensor) -> Tensor:
        """Classify patches.

        Args:
            inputs: (B, labels and channels, H, W).

        Returns:
            (B, 1, h, w) logits, above 0 where a patch is classified as real.
        """
        return at_least_float32(self.layers(inputs))

    def features(self, inputs: Tensor) -> list[Tensor]:
        """Compute the feature maps of every layer.

        Args:
            inputs: (B, labels and channels, H, W).

        Returns:
            (B, channels, h, w) of each layer but the last, and the logits.
        """
        maps, x = [], inputs
        for layer in self.layers:
            x = layer(x)
            if isinstance(layer, nn.LeakyReLU):
                maps.append(x)
        return [*maps, at_least_float32(x)]


def _layer(before: int, after: int, stride: int, normed: bool) -> nn.Module:
    convolution = nn.Conv2d(before, after, 4, stride, padding=1)
    return spectral_norm(convolution) if normed else convolution
