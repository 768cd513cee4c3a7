"""Modules that own weights: they take and return `Capsules`, or a plain pose tensor."""

from torchcaps.layers.decoder import ConvDecoder, Decoder, mask_capsules
from torchcaps.layers.dense import DenseCaps
from torchcaps.layers.primary import PrimaryCaps

__all__ = ["ConvDecoder", "Decoder", "DenseCaps", "PrimaryCaps", "mask_capsules"]
