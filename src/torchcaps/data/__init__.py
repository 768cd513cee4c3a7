"""Data sets in memory or in files, their splits, augmentation, and loaders that make batches on a device."""

from torchcaps.data.augment import augment, centre_crop
from torchcaps.data.dataset import Dataset, Examples, Splits, class_weights
from torchcaps.data.datasets.axons import AxonParameters, draw_axons
from torchcaps.data.datasets.scattered import scatter_digits
from torchcaps.data.datasets.shapes.annotated import annotate
from torchcaps.data.datasets.shapes.objects import Objects
from torchcaps.data.datasets.shapes.parameters import ShapeParameters
from torchcaps.data.datasets.shapes.scenes import Scenes, draw_shapes
from torchcaps.data.datasets.shapes.sets import frozen_set, shapes_splits
from torchcaps.data.download import dataset_folder
from torchcaps.data.formats.idx import read_idx
from torchcaps.data.hugging_face import open_hugging_face
from torchcaps.data.images import load_image
from torchcaps.data.loader import (
    Batch,
    CropLoader,
    DeviceLoader,
    batches,
    epoch_order,
    epoch_size,
    make_loader,
    num_batches,
)
from torchcaps.data.mask_folder import load_mask_folder, read_label, read_mask_folder, read_picture
from torchcaps.data.mask_sources import MASK_SOURCES
from torchcaps.data.mixing import mix
from torchcaps.data.objects import ObjectDataset
from torchcaps.data.register import register_data
from torchcaps.data.segmentation import SegmentationDataset, split_segmentation, tiles
from torchcaps.data.sources import SOURCES, load_data, named_data
from torchcaps.data.storage import StorageOptions
from torchcaps.data.streamed import FileImages, StreamedDataset, StreamedLoader
from torchcaps.data.tar_shards import open_shards

__all__ = [
    "MASK_SOURCES",
    "SOURCES",
    "AxonParameters",
    "Batch",
    "CropLoader",
    "Dataset",
    "DeviceLoader",
    "Examples",
    "FileImages",
    "ObjectDataset",
    "Objects",
    "Scenes",
    "SegmentationDataset",
    "ShapeParameters",
    "Splits",
    "StorageOptions",
    "StreamedDataset",
    "StreamedLoader",
    "annotate",
    "augment",
    "batches",
    "centre_crop",
    "class_weights",
    "dataset_folder",
    "draw_axons",
    "draw_shapes",
    "epoch_order",
    "epoch_size",
    "frozen_set",
    "load_data",
    "load_image",
    "load_mask_folder",
    "make_loader",
    "mix",
    "named_data",
    "num_batches",
    "open_hugging_face",
    "open_shards",
    "read_idx",
    "read_label",
    "read_mask_folder",
    "read_picture",
    "register_data",
    "scatter_digits",
    "shapes_splits",
    "split_segmentation",
    "tiles",
]
