"""Training steps of whole networks. The CapsNet is compared with its floor: the same network with one Linear layer in
place of routing, which is a lower bound for its run time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from torchcaps.bench.timing import Call, cuda_graph, extra_mib, median_seconds
from torchcaps.data import Dataset
from torchcaps.layers import mask_capsules
from torchcaps.losses import combine
from torchcaps.models import CapsNet, Output, create_model
from torchcaps.train.cudagraph import tuned
from torchcaps.train.recipe import LossSection
from torchcaps.train.state import seeded
from torchcaps.train.tasks import ClassificationTask, Task

PAPER = ClassificationTask({"margin": 1.0, "reconstruction": 0.0005})  # the losses of Sabour et al. 2017


class Floor(nn.Module):
    """A CapsNet whose class capsules are replaced by a Linear layer. All other layers are the same.

    Args:
        options: As for CapsNet.
    """

    def __init__(self, **options: Any):
        super().__init__()
        model = CapsNet(**options)
        classes = model.classes
        self.conv, self.features, self.decoder = model.conv, model.primary.conv, model.decoder
        self.linear = nn.Linear(classes.in_capsules * classes.in_dim, classes.out_capsules * classes.out_dim)
        self.shape = (classes.out_capsules, classes.out_dim)

    def forward(self, images: Tensor, targets: Tensor | None = None) -> Output:
        features = self.features(functional.relu(self.conv(images)))
        poses = self.linear(features.flatten(1)).view(-1, *self.shape)
        reconstruction = None if self.decoder is None else self.decoder(mask_capsules(poses, targets))
        return Output(poses.norm(dim=-1), poses, reconstruction)


class StepRow(NamedTuple):
    """Run time and memory of a CapsNet and of its floor."""

    what: str
    batch: int
    capsnet_ms: float
    floor_ms: float
    capsnet_mib: float | None
    floor_mib: float | None

    @property
    def ratio(self) -> float:
        """Run time of the CapsNet relative to its floor."""
        return self.capsnet_ms / self.floor_ms


class NetworkRow(NamedTuple):
    """Run time of a training step, and the memory that training takes."""

    name: str
    parameters: int
    batch: int
    ms: float
    mib: float | None


def measure_network(name: str, device: torch.device, batch: int, rounds: int = 11) -> NetworkRow:
    """Measure a model, sized for MNIST, with its own losses; on CUDA in bf16, compiled, as a CUDA graph."""
    with seeded(0, device):
        model = create_model(name).to(device)
        images, targets = _batch(batch, device)
    task = ClassificationTask.make(model, Dataset(images, targets, model.class_names), LossSection())
    return NetworkRow(name, model.parameter_count(), batch, *measure_training(model, images, targets, task, rounds))


def measure_training(
    model: nn.Module, images: Tensor, targets: Tensor, task: Task, rounds: int
) -> tuple[float, float | None]:
    """Milliseconds and MiB of a training step on these images; on CUDA in bf16, compiled, as a CUDA graph."""
    device = images.device
    with tuned(device, tensor_cores=True):
        call = training_step(model, images, targets, task)
        mib = peak_mib(call, model, training=True)
        if device.type == "cuda":
            call = cuda_graph(call)
        return median_seconds({"step": call}, device, rounds)["step"] * 1e3, mib


def measure(device: torch.device, batch: int, rounds: int = 11) -> list[StepRow]:
    """Measure a training step, inference, and inference with batch 1; on CUDA in bf16, compiled, as CUDA graphs."""
    torch.manual_seed(0)
    models: dict[str, nn.Module] = {"capsnet": CapsNet().to(device), "floor": Floor().to(device)}
    rows = []
    with tuned(device, tensor_cores=True):
        for what, size in (("training step", batch), ("inference", batch), ("inference", 1)):
            images, targets = _batch(size, device)
            calls: dict[str, Call] = {}
            memory: dict[str, float | None] = {}
            for name, model in models.items():
                trained = what == "training step"
                calls[name] = (training_step if trained else _inference)(model, images, targets)
                memory[name] = peak_mib(calls[name], model, trained)
                if device.type == "cuda":
                    calls[name] = cuda_graph(calls[name])
            ms = {name: seconds * 1e3 for name, seconds in median_seconds(calls, device, rounds).items()}
            rows.append(StepRow(what, size, ms["capsnet"], ms["floor"], memory["capsnet"], memory["floor"]))
    return rows


def _batch(size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    return torch.rand(size, 1, 28, 28, device=device), torch.arange(size, device=device) % 10


def peak_mib(call: Call, model: nn.Module, training: bool) -> float | None:
    """MiB that a call needs, with the weights and, in training, gradients and two moments of the same size."""
    extra = extra_mib(call, next(model.parameters()).device)
    if extra is None:
        return None
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    return extra + weights * (4 if training else 1) / 2**20


def training_step(model: nn.Module, images: Tensor, targets: Tensor, task: Task = PAPER) -> Call:
    """A function that runs one training step on these images: forward, losses, backward, Adam."""
    cuda = images.is_cuda
    if cuda:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    lr = torch.tensor(1e-3, device=images.device) if cuda else 1e-3
    optimizer = torch.optim.Adam(model.parameters(), lr=lr, fused=True, capturable=cuda)
    loss_of = _loss_of(model, task)

    def step() -> None:
        optimizer.zero_grad()
        loss_of(images, targets).backward()
        optimizer.step()

    return step


def _loss_of(model: nn.Module, task: Task) -> Callable[..., Tensor]:
    def loss_of(images: Tensor, targets: Tensor) -> Tensor:
        with torch.autocast(images.device.type, torch.bfloat16, enabled=images.is_cuda):
            output = model(images, targets)
        return combine(task.terms(output, images, targets), task.weights)

    return torch.compile(loss_of, dynamic=False) if next(model.parameters()).is_cuda else loss_of


def _inference(model: nn.Module, images: Tensor, targets: Tensor) -> Call:
    def infer(images: Tensor) -> Output:
        with torch.autocast(images.device.type, torch.bfloat16, enabled=images.is_cuda):
            return model(images)

    chosen = torch.compile(infer, dynamic=False) if images.is_cuda else infer

    def call() -> None:
        with torch.no_grad():
            chosen(images)

    return call
