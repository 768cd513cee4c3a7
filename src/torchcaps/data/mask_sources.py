"""Named sources of images with masks: drawn, or read from a folder."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from torchcaps.data.dataset import Splits
from torchcaps.data.datasets.axons import draw_axons
from torchcaps.data.download import dataset_folder
from torchcaps.data.images import set_channels
from torchcaps.data.mask_folder import LAYOUT, load_mask_folder
from torchcaps.data.segmentation import SegmentationDataset, split_segmentation
from torchcaps.errors import UserError
from torchcaps.registry import Registry

AXONS, AXON_SIZE = 400, 64  # images for training and validation, and the side of each
TEST_AXONS, TEST_SEED = 100, 20190619


@dataclass(frozen=True)
class MaskOptions:
    """Options of a source of images with masks; see `load_data`."""

    path: Path | None = None
    size: tuple[int, int] | None = None
    channels: int | None = None
    positive: int | None = None
    num_classes: int | None = None
    validation: float = 0.1
    test: float | str = 0.2
    seed: int = 0
    limit: int | None = None


def _axons(options: MaskOptions) -> Splits[SegmentationDataset]:
    """Draw fibres with boutons, 64×64; the test images have their own seed."""
    if (
        options.path is not None
        or options.positive is not None
        or options.num_classes is not None
        or isinstance(options.test, str)
    ):
        raise UserError("axons are drawn: omit path, positive, num_classes and names of test images")
    side, width = options.size or (AXON_SIZE, AXON_SIZE)
    if side != width:
        raise UserError(f"image_size={side}×{width}: axons are drawn as squares, give one number")
    drawn = (draw_axons(AXONS, side), draw_axons(TEST_AXONS, side, TEST_SEED))
    first, test = (
        replace(each, images=[set_channels(image[None], options.channels)[0] for image in each.images])
        for each in drawn
    )
    train, validation, _ = split_segmentation(first, options.validation, 0, options.seed, options.limit)
    return Splits(train, validation, test, "axons")


def _pairs(options: MaskOptions) -> Splits[SegmentationDataset]:
    if options.path is None:
        raise UserError(f"source='pairs' needs path= (or --data FOLDER): {LAYOUT}")
    if options.size is not None:
        raise UserError("image_size: images with masks keep their size; set augment.crop to train on windows")
    return load_mask_folder(
        options.path,
        positive=options.positive,
        channels=options.channels,
        num_classes=options.num_classes,
        validation=options.validation,
        test=options.test,
        seed=options.seed,
        limit=options.limit,
    )


def _isbi2012(options: MaskOptions) -> Splits[SegmentationDataset]:
    """Read the 30 labelled slices of the ISBI 2012 challenge from the data folder; downloading needs a registration."""
    folder = options.path or dataset_folder("isbi2012")
    if not folder.is_dir():
        raise UserError(
            f"there is no folder {folder}: register at the ISBI 2012 challenge, save its labelled slices as 00.png to "
            f"29.png in images and masks there, or give another folder with --data"
        )
    return replace(_pairs(replace(options, path=folder)), source="isbi2012")


_KNOWN: dict[str, Callable[[MaskOptions], Splits[SegmentationDataset]]] = {
    "axons": _axons,
    "pairs": _pairs,
    "isbi2012": _isbi2012,
}
MASK_SOURCES = Registry("data set", "register_data", _KNOWN)
