"""Sources of tensors: images and targets in memory, ready for a device."""

from torchcaps.data.augment import augment, centre_crop
from torchcaps.data.batches import Batch, Resident, batches, class_weights, epoch_order, num_batches
from torchcaps.data.dataset import Dataset, Splits
from torchcaps.data.download import dataset_folder
from torchcaps.data.idx import read_idx
from torchcaps.data.images import load_image
from torchcaps.data.multimnist import resident
from torchcaps.data.sources import SOURCES, load_data, named_data

__all__ = [
    "SOURCES",
    "Batch",
    "Dataset",
    "Resident",
    "Splits",
    "augment",
    "batches",
    "centre_crop",
    "class_weights",
    "dataset_folder",
    "epoch_order",
    "load_data",
    "load_image",
    "named_data",
    "num_batches",
    "read_idx",
    "resident",
]
