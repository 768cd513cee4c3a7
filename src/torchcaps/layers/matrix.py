"""Matrix capsules: poses are P×P matrices, votes are products of matrices, routing is EM (Hinton et al. 2018).

Maps of capsules have poses (B, T, P·P, H, W), row by row, and activations (B, T, H, W).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from torchcaps.capsules import Capsules, as_capsules
from torchcaps.checks import check_floats, check_whole
from torchcaps.layers.annealing import EPSILON, FLOOR, Tempered
from torchcaps.layers.initial import em_betas, matrix_std
from torchcaps.ops import em_routing, em_routing_conv


class MatrixPrimaryCaps(nn.Module):
    """The first matrix capsules: one 1×1 convolution for the poses, another with a sigmoid for the activations.

    Args:
        in_channels: of the feature maps.
        types: T types of capsules.
        size: P.
    """

    def __init__(self, in_channels: int, types: int, size: int = 4):
        super().__init__()
        check_whole("MatrixPrimaryCaps", in_channels=in_channels, types=types, size=size)
        self.types = types
        self.pose = nn.Conv2d(in_channels, types * size * size, 1)
        self.activation = nn.Conv2d(in_channels, types, 1)

    def forward(self, features: Tensor) -> Capsules:
        """Map (B, in_channels, H, W) to pose (B, T, P·P, H, W) and activation (B, T, H, W)."""
        check_floats("MatrixPrimaryCaps", features=features)
        pose = self.pose(features).unflatten(1, (self.types, -1))
        return Capsules(pose, self.activation(features).sigmoid())


class _EMRouted(Tempered):
    """Base of layers with EM routing: matrices, the two costs of a parent, and what `Tempered` has.

    An inverse temperature that is given is saved with the weights. `rivals` are the children for the parents of one
    position, from which the first β_a follows; how many positions there will be is not known yet.
    """

    def __init__(
        self,
        spots: int,
        rivals: int,
        parents: int,
        size: int,
        iterations: int,
        inverse_temperature: float | Sequence[float] | None,
        epsilon: float,
        floor: float,
        std: float | None,
    ):
        super().__init__()
        self.size, self.iterations = size, iterations
        self.epsilon, self.floor = epsilon, floor
        noise = torch.randn(spots, parents, size, size)
        if std is None:
            weight = noise * matrix_std(spots, size**2, parents, size**2, iterations) + torch.eye(size)
        else:
            weight = noise * std
        self.weight = nn.Parameter(weight)
        betas = em_betas(rivals, parents, size**2)
        self.beta_u, self.beta_a = (nn.Parameter(betas[name]) for name in ("beta_u", "beta_a"))
        self.set_inverse_temperature(inverse_temperature, saved=True)

    def check(self, children: Capsules | Tensor, types: int) -> Capsules:
        """The children as Capsules; of a plain tensor the activation is the length."""
        children = as_capsules(children, type(self).__name__)
        pose = children.pose
        if pose.ndim != 5 or pose.shape[1:3] != (types, self.size**2):
            hint = "; PrimaryCaps(…, maps=True) returns maps" if pose.ndim == 3 else ""
            raise ValueError(
                f"{type(self).__name__}: expected poses of shape (B, {types}, {self.size**2}, H, W), "
                f"got {tuple(pose.shape)}{hint}"
            )
        return children


class MatrixConvCaps2d(_EMRouted):
    """Each parent gets votes from a window of children, through matrices shared by all positions.

    Args:
        in_types: T types of children.
        out_types: J types of parents.
        size: P.
        kernel: side of the window.
        stride: of the window; there is no padding.
        iterations: number of EM iterations.
        inverse_temperature: how sharp activations are; or two numbers for the start and the end of training, see
            `anneal`. The default follows from the numbers of children and parents, see `em_routing`.
        epsilon: added to sums of weights, see `em_routing`.
        floor: added to variances.
        std: of the initial weight, which is then random; by default matrices start near the identity
            (layers/initial.py).
    """

    def __init__(
        self,
        in_types: int,
        out_types: int,
        size: int = 4,
        kernel: int = 3,
        stride: int = 1,
        *,
        iterations: int = 3,
        inverse_temperature: float | Sequence[float] | None = None,
        epsilon: float = EPSILON,
        floor: float = FLOOR,
        std: float | None = None,
    ):
        check_whole("MatrixConvCaps2d", in_types=in_types, out_types=out_types, size=size, kernel=kernel)
        check_whole("MatrixConvCaps2d", stride=stride, iterations=iterations)
        constants = inverse_temperature, epsilon, floor, std
        rivals = in_types * stride**2  # children for the parents of each position
        super().__init__(kernel * kernel * in_types, rivals, out_types, size, iterations, *constants)
        self.in_types, self.kernel, self.stride = in_types, kernel, stride

    def forward(self, children: Capsules | Tensor) -> Capsules:
        """Map pose (B, T, P·P, H, W) and activation (B, T, H, W) to (B, J, P·P, H', W') and (B, J, H', W').

        The activation of a plain tensor, and of vector capsules, is the length of the pose.
        """
        children = self.check(children, self.in_types)
        if min(children.pose.shape[3:]) < self.kernel:
            height, width = children.pose.shape[3:]
            raise ValueError(f"MatrixConvCaps2d: a window of {self.kernel} does not fit on maps of {height}×{width}")
        routed = em_routing_conv(
            children.pose,
            children.activation,
            self.weight,
            self.beta_u,
            self.beta_a,
            self.iterations,
            stride=self.stride,
            inverse_temperature=self.inverse_temperature,
            epsilon=self.epsilon,
            floor=self.floor,
        )
        return Capsules(routed.poses, routed.activation)


class ClassCaps(_EMRouted):
    """A capsule for each class gets votes from every child, through matrices shared by all positions.

    So that the position still counts, each child adds its own, between 0 and 1, to the last column of its votes: row
    first, then column.

    Args:
        in_types: T types of children.
        classes: J.
        size: P.
        iterations: number of EM iterations.
        inverse_temperature: how sharp activations are; or two numbers for the start and the end of training, see
            `anneal`. The default follows from the numbers of children and parents, see `em_routing`.
        epsilon: added to sums of weights, see `em_routing`.
        floor: added to variances.
        std: of the initial weight, which is then random; by default matrices start near the identity
            (layers/initial.py).
    """

    def __init__(
        self,
        in_types: int,
        classes: int,
        size: int = 4,
        *,
        iterations: int = 3,
        inverse_temperature: float | Sequence[float] | None = None,
        epsilon: float = EPSILON,
        floor: float = FLOOR,
        std: float | None = None,
    ):
        check_whole("ClassCaps", in_types=in_types, classes=classes, size=size, iterations=iterations)
        super().__init__(in_types, in_types, classes, size, iterations, inverse_temperature, epsilon, floor, std)
        self.in_types = in_types

    def forward(
        self, children: Capsules | Tensor, *, return_couplings: bool = False
    ) -> Capsules | tuple[Capsules, Tensor | None]:
        """Route the children to the classes.

        Args:
            children: pose (B, T, P·P, H, W), activation (B, T, H, W); that of a plain tensor, and of vector capsules,
                is the length of the pose.
            return_couplings: also return the couplings of the last iteration.

        Returns:
            pose (B, J, P·P), activation (B, J); with return_couplings a tuple of that and the couplings (B, H·W·T, J).
        """
        children = self.check(children, self.in_types)
        height, width = children.pose.shape[3:]
        routed = em_routing(
            children.pose.permute(0, 3, 4, 1, 2).flatten(1, 3),
            children.activation.permute(0, 2, 3, 1).flatten(1),
            self.weight.repeat(height * width, 1, 1, 1),
            self.beta_u,
            self.beta_a,
            self.iterations,
            inverse_temperature=self.inverse_temperature,
            epsilon=self.epsilon,
            floor=self.floor,
            offset=self.places(height, width),
            return_couplings=return_couplings,
        )
        parents = Capsules(routed.poses, routed.activation)
        return (parents, routed.couplings) if return_couplings else parents

    def places(self, height: int, width: int) -> Tensor:
        """Offsets (H·W·T, P·P): the last column starts with the row and the column of the child, the rest is zero."""
        row_H, column_W = (
            (torch.arange(side, device=self.weight.device, dtype=self.weight.dtype) + 0.5) / side
            for side in (height, width)
        )
        places = self.weight.new_zeros(height, width, self.in_types, self.size**2)
        places[..., self.size - 1] = row_H[:, None, None]
        if self.size > 1:
            places[..., 2 * self.size - 1] = column_W[None, :, None]
        return places.flatten(0, 2)
