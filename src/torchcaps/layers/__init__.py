"""Modules with weights: they take `Capsules`, or a plain pose tensor, and return `Capsules`."""

from torchcaps.layers.annealing import anneal
from torchcaps.layers.concurrent import concurrent
from torchcaps.layers.conv import ConvCaps2d, DeconvCaps2d
from torchcaps.layers.decoder import ConvDecoder, Decoder, EnlargedDecoder, make_decoder, mask_capsules
from torchcaps.layers.dense import DenseCaps
from torchcaps.layers.head import CapsHead
from torchcaps.layers.matrix import ClassCaps, MatrixConvCaps2d, MatrixPrimaryCaps
from torchcaps.layers.part import PartCaps, PartMaps, PickedParts
from torchcaps.layers.primary import PrimaryCaps
from torchcaps.layers.routings import ROUTINGS, Routing, register_routing
from torchcaps.layers.whole import WholeCaps

__all__ = [
    "ROUTINGS",
    "CapsHead",
    "ClassCaps",
    "ConvCaps2d",
    "ConvDecoder",
    "Decoder",
    "DeconvCaps2d",
    "DenseCaps",
    "EnlargedDecoder",
    "MatrixConvCaps2d",
    "MatrixPrimaryCaps",
    "PartCaps",
    "PartMaps",
    "PickedParts",
    "PrimaryCaps",
    "Routing",
    "WholeCaps",
    "anneal",
    "concurrent",
    "make_decoder",
    "mask_capsules",
    "register_routing",
]
