"""Tasks: what is learned, how it is measured and how it is reported."""

from torchcaps.train.tasks.base import Task
from torchcaps.train.tasks.classification import ClassificationTask
from torchcaps.train.tasks.segmentation import SegmentationTask
from torchcaps.train.tasks.synthesis import SynthesisTask

TASKS: dict[str, type[Task]] = {
    "classification": ClassificationTask,
    "segmentation": SegmentationTask,
    "synthesis": SynthesisTask,
}  # by `ImageModel.task`

__all__ = ["TASKS", "ClassificationTask", "SegmentationTask", "SynthesisTask", "Task"]
