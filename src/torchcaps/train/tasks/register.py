"""Tasks by name, and which of them learns from which data."""

from __future__ import annotations

import re
from typing import Any, TypeVar, overload

from torchcaps.errors import UserError
from torchcaps.registry import Registry
from torchcaps.train.tasks.base import Task
from torchcaps.train.tasks.classification import ClassificationTask
from torchcaps.train.tasks.detection import DetectionTask
from torchcaps.train.tasks.segmentation import SegmentationTask
from torchcaps.train.tasks.synthesis import SynthesisTask

Kind = TypeVar("Kind", bound=type[Task])

_KNOWN: dict[str, type[Task]] = {
    "classification": ClassificationTask,
    "detection": DetectionTask,
    "segmentation": SegmentationTask,
    "synthesis": SynthesisTask,
}
TASKS = Registry("task", "register_task", _KNOWN)  # by `ImageModel.task`, or the key `task` of a recipe


@overload
def register_task(task: Kind) -> Kind: ...
@overload
def register_task(*, name: str | None = None) -> Any: ...
def register_task(task: Any = None, *, name: str | None = None) -> Any:
    """Register a task, so that recipes (task), `fit(task=NAME)` and `ImageModel.task` find it; use it as a decorator.

        @register_task
        class StrictTask(ClassificationTask):  # its name is "strict"
            def terms(self, output, images, targets):
                return {"margin": losses.margin_loss(output.lengths, targets, present=0.95)}

    Args:
        task: a subclass of `Task`; one of an existing task learns from the same data and evaluates like it.
        name: by default that of the class in lower case, without "Task" at the end.

    Returns:
        The same class.
    """

    def register(kind: Kind) -> Kind:
        words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", kind.__name__.removesuffix("Task")).lower()
        TASKS.add(name or words, kind, kind)
        return kind

    return register if task is None else register(task)


def find_task(name: str, data: Any, model: str) -> type[Task]:
    """The task of this name; raise a UserError if it cannot learn from the data.

    Args:
        name: of the task.
        data: what it would learn from.
        model: what messages call the model.
    """
    task = TASKS[name]
    if not issubclass(task, tuple(TASKS[each] for each in data.tasks)):
        given = TASKS[data.tasks[0]].learns_from
        raise UserError(
            f"model.name={model}: it learns from {task.learns_from}, and these are {given}; choose another model "
            "(segcaps and unet find masks, capspix2pix draws from masks, scenecaps finds objects), or other data"
        )
    return task
