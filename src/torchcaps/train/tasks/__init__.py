"""Tasks: what is learned, how it is measured and how it is reported."""

from torchcaps.train.tasks.base import Evaluation, Loss, Task
from torchcaps.train.tasks.classification import ClassificationTask
from torchcaps.train.tasks.register import TASKS, register_task
from torchcaps.train.tasks.segmentation import SegmentationTask
from torchcaps.train.tasks.synthesis import SynthesisTask

__all__ = [
    "TASKS",
    "ClassificationTask",
    "Evaluation",
    "Loss",
    "SegmentationTask",
    "SynthesisTask",
    "Task",
    "register_task",
]
