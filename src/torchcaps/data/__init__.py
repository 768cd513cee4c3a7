"""Sources of tensors: images and targets in memory, ready for a device."""

from torchcaps.data.augment import augment, centre_crop
from torchcaps.data.axons import AxonParameters, draw_axons
from torchcaps.data.batches import Batch, Resident, batches, class_weights, epoch_order, num_batches
from torchcaps.data.dataset import Dataset, Splits
from torchcaps.data.download import dataset_folder
from torchcaps.data.idx import read_idx
from torchcaps.data.images import load_image
from torchcaps.data.multimnist import resident
from torchcaps.data.pairs import Crops, Segments, SegmentSplits, load_pairs, read_pairs, split_pairs
from torchcaps.data.sources import SOURCES, load_data, named_data

__all__ = [
    "SOURCES",
    "AxonParameters",
    "Batch",
    "Crops",
    "Dataset",
    "Resident",
    "SegmentSplits",
    "Segments",
    "Splits",
    "augment",
    "batches",
    "centre_crop",
    "class_weights",
    "dataset_folder",
    "draw_axons",
    "epoch_order",
    "load_data",
    "load_image",
    "load_pairs",
    "named_data",
    "num_batches",
    "read_idx",
    "read_pairs",
    "resident",
    "split_pairs",
]
