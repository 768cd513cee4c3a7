"""What operations and layers refuse: integers, arrays and numbers that are not whole, each with one sentence."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from torchcaps.capsules import Capsules
from torchcaps.errors import UserError
from torchcaps.layers import (
    ROUTINGS,
    ClassCaps,
    ConvCaps2d,
    Decoder,
    DeconvCaps2d,
    DenseCaps,
    MatrixConvCaps2d,
    MatrixPrimaryCaps,
    PrimaryCaps,
    concurrent,
    mask_capsules,
)
from torchcaps.models import create_model
from torchcaps.ops import (
    dynamic_routing,
    em_routing,
    em_routing_conv,
    inverted_attention_routing,
    local_routing,
    route_votes,
    self_attention_routing,
    squash,
    squash_maps,
)

U, WEIGHT, ONES = torch.rand(2, 6, 4), torch.rand(6, 3, 4, 4), torch.ones(4)
MAPS, MATRICES, BETA = torch.rand(2, 3, 4, 6, 6), torch.rand(6, 3, 2, 2), torch.zeros(3)
# Each called with the poses, or whatever comes first.
OPERATIONS = {
    "squash": (squash, U, "x"),
    "squash_maps": (lambda x: squash_maps(x, None, 4), torch.rand(2, 8, 3, 3), "maps"),
    "dynamic_routing": (lambda x: dynamic_routing(x, WEIGHT), U, "u"),
    "route_votes": (route_votes, torch.rand(2, 6, 3, 4), "votes"),
    "self_attention_routing": (lambda x: self_attention_routing(x, WEIGHT), U, "u"),
    "inverted_attention_routing": (lambda x: inverted_attention_routing(x, WEIGHT, ONES, ONES), U, "u"),
    "em_routing": (lambda x: em_routing(x, U[..., 0], MATRICES, BETA, BETA), U, "pose"),
    "em_routing_conv": (
        lambda x: em_routing_conv(x, MAPS[:, :, 0], torch.rand(27, 3, 2, 2), BETA, BETA),
        MAPS,
        "pose",
    ),
    "local_routing": (lambda x: local_routing(x, torch.rand(8, 4, 3, 3), torch.zeros(2, 4)), MAPS, "pose"),
    "mask_capsules": (mask_capsules, U, "poses"),
}
LAYERS = {
    **{f"DenseCaps, {routing}": (DenseCaps(6, 4, 3, 4, routing=routing), U, "poses") for routing in ROUTINGS},
    "ConvCaps2d": (ConvCaps2d(3, 4, 2, 4, 3), MAPS, "poses"),
    "DeconvCaps2d": (DeconvCaps2d(3, 4, 2, 4), MAPS, "poses"),
    "MatrixConvCaps2d": (MatrixConvCaps2d(3, 2, 2), MAPS, "poses"),
    "ClassCaps": (ClassCaps(3, 2, 2), MAPS, "poses"),
    "PrimaryCaps": (PrimaryCaps(4, 2, 4, 3), MAPS[:, 0], "features"),
    "MatrixPrimaryCaps": (MatrixPrimaryCaps(4, 2, 2), MAPS[:, 0], "features"),
}
CALLED = {**OPERATIONS, **LAYERS}


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool], ids=str)
@pytest.mark.parametrize("name", CALLED)
def test_integers_are_refused(name, dtype):
    function, given, label = CALLED[name]
    function(given)
    message = rf"{name.partition(',')[0]}: {label} must hold floating-point numbers, got {dtype}; use {label}.float\(\)"
    with pytest.raises(TypeError, match=message):
        function((255 * given).to(dtype))


@pytest.mark.parametrize("name", CALLED)
def test_arrays_are_refused(name):
    function, given, _ = CALLED[name]
    with pytest.raises(TypeError, match=rf"{name.partition(',')[0]}: .*, got ndarray; .*torch.as_tensor"):
        function(np.ones(given.shape))


@pytest.mark.parametrize("name", sorted(ROUTINGS))
def test_an_activation_of_integers_is_refused(name):
    with pytest.raises(TypeError, match=r"DenseCaps: activation must hold .* use activation.float\(\)"):
        LAYERS[f"DenseCaps, {name}"][0](Capsules(U, torch.ones(2, 6, dtype=torch.int64)))


def test_weights_of_integers_are_refused():
    with pytest.raises(TypeError, match=r"dynamic_routing: weight must hold .* use weight.float\(\)"):
        dynamic_routing(U, WEIGHT.long())


def test_complex_vectors_are_squashed_still():
    assert squash(torch.ones(2, 3, dtype=torch.complex64)).dtype == torch.complex64


EM = {
    "em_routing": (lambda a: em_routing(U, a, MATRICES, BETA, BETA), (2, 6)),
    "em_routing_conv": (
        lambda a: em_routing_conv(MAPS, a, torch.rand(27, 3, 2, 2), BETA, BETA),
        (2, 3, 6, 6),
    ),
    "DenseCaps": (lambda a: LAYERS["DenseCaps, em"][0](Capsules(U, a)), (2, 6)),
    "MatrixConvCaps2d": (lambda a: LAYERS["MatrixConvCaps2d"][0](Capsules(MAPS, a)), (2, 3, 6, 6)),
    "ClassCaps": (lambda a: LAYERS["ClassCaps"][0](Capsules(MAPS, a)), (2, 3, 6, 6)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", EM)
def test_em_refuses_negative_activations(name, dtype):
    function, shape = EM[name]
    given = torch.rand(shape, dtype=dtype)
    given.view(-1)[-1] = -0.5
    with pytest.raises(
        ValueError, match=r"must be in \[0, 1\], got -0.5; use activation.sigmoid\(\), or Capsules\(pos"
    ):
        function(given.requires_grad_())
    function(given.detach().abs())


@pytest.mark.parametrize("name", EM)
def test_em_takes_lengths_above_1_and_empty_batches_and_passes_nan_on(name):
    """Lengths of plain poses have no bound; NaN in training is traced to the layer that made it."""
    function, shape = EM[name]
    assert function(3 * torch.rand(shape))[1].isfinite().all()
    assert function(torch.full(shape, torch.nan))[1].isnan().all()
    with pytest.raises(ValueError, match="activation"):
        function(torch.empty(0, *shape[1:]))  # of another batch than the poses
    function(-1e-7 * torch.rand(shape))  # by rounding
    assert em_routing(U[:0], torch.empty(0, 6), MATRICES, BETA, BETA).poses.shape == (0, 3, 4)


def test_em_does_not_look_at_values_that_are_traced_or_transformed():
    activation = -torch.rand(2, 6)
    compiled = torch.compile(lambda a: em_routing(U, a, MATRICES, BETA, BETA).poses, fullgraph=True, backend="eager")
    assert compiled(activation).shape == (2, 3, 4)
    each = torch.func.vmap(lambda u, a: em_routing(u[None], a[None], MATRICES, BETA, BETA).poses)
    assert each(U, activation).shape == (2, 1, 3, 4)
    assert em_routing(*(x.to("meta") for x in (U, activation, MATRICES, BETA, BETA))).poses.shape == (2, 3, 4)


NORM = ONES, ONES
EM_WEIGHTS = MATRICES, BETA, BETA
ITERATED = {
    "dynamic_routing": lambda n: dynamic_routing(U, WEIGHT, n),
    "route_votes": lambda n: route_votes(torch.rand(2, 6, 3, 4), n),
    "inverted_attention_routing": lambda n: inverted_attention_routing(U, WEIGHT, *NORM, n),
    "em_routing": lambda n: em_routing(U, U[..., 0], *EM_WEIGHTS, n),
    "em_routing_conv": lambda n: em_routing_conv(MAPS, MAPS[:, :, 0], torch.rand(27, 3, 2, 2), BETA, BETA, n),
    "local_routing": lambda n: local_routing(MAPS, torch.rand(8, 4, 3, 3), torch.zeros(2, 4), n),
    "concurrent": lambda n: concurrent([LAYERS["DenseCaps, inverted_attention"][0]], U, n),
    **{
        f"DenseCaps, {routing}": lambda n, routing=routing: DenseCaps(6, 4, 3, 4, routing=routing, iterations=n)
        for routing in ROUTINGS
    },
    **{
        f"DenseCaps, {routing}, in a call": lambda n, routing=routing: LAYERS[f"DenseCaps, {routing}"][0](
            U, iterations=n
        )
        for routing in ROUTINGS
    },
    "ConvCaps2d": lambda n: ConvCaps2d(3, 4, 2, 4, iterations=n),
    "DeconvCaps2d": lambda n: DeconvCaps2d(3, 4, 2, 4, iterations=n),
    "MatrixConvCaps2d": lambda n: MatrixConvCaps2d(3, 2, iterations=n),
    "ClassCaps": lambda n: ClassCaps(3, 2, iterations=n),
    "capsnet": lambda n: create_model("capsnet_small", iterations=n),
    "em_capsnet": lambda n: create_model("em_capsnet", iterations=n),
}


@pytest.mark.parametrize("number", [2.5, 2.0, "3", None, True, 0, -1], ids=repr)
@pytest.mark.parametrize("name", ITERATED)
def test_iterations_are_whole_numbers(name, number):
    if number is None and name.endswith("in a call"):
        pytest.skip("None is the layer's own number")
    message = rf"{name.partition(',')[0]}: iterations must be a whole number, at least 1, got {number!r}$"
    with pytest.raises(UserError, match=message):
        ITERATED[name](number)


def test_an_integer_of_numpy_is_a_whole_number():
    for name in ("dynamic_routing", "DenseCaps, em", "em_capsnet"):
        ITERATED[name](np.int64(2))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DenseCaps(6.0, 4, 3, 4), "DenseCaps: in_capsules .* at least 1, got 6.0"),
        (lambda: DenseCaps(6, 4, 3, "4"), "DenseCaps: out_dim .* got '4'"),
        (lambda: DenseCaps(6, 4, True, 4), "DenseCaps: out_capsules .* got True"),
        (lambda: ConvCaps2d(3, 4.0, 2, 4), "ConvCaps2d: in_dim .* got 4.0"),
        (lambda: ConvCaps2d(3, 4, 2, 4, "5"), "ConvCaps2d: kernel .* got '5'"),
        (lambda: ConvCaps2d(3, 4, 2, 4, stride=1.5), "ConvCaps2d: stride .* got 1.5"),
        (lambda: ConvCaps2d(3, 4, 2, 4, padding=-1), "ConvCaps2d: padding .* at least 0, got -1"),
        (lambda: DeconvCaps2d(3, 4, None, 4), "DeconvCaps2d: out_types .* got None"),
        (lambda: MatrixConvCaps2d(3, 2, kernel=3.0), "MatrixConvCaps2d: kernel .* got 3.0"),
        (lambda: MatrixConvCaps2d(3, 2, stride=0), "MatrixConvCaps2d: stride .* got 0"),
        (lambda: ClassCaps("3", 2), "ClassCaps: in_types .* got '3'"),
        (lambda: PrimaryCaps(1, 0, 4), "PrimaryCaps: types .* got 0"),
        (lambda: PrimaryCaps(1, 2, 4, 2.5), "PrimaryCaps: kernel_size .* got 2.5"),
        (lambda: MatrixPrimaryCaps(1, 2.0), "MatrixPrimaryCaps: types .* got 2.0"),
        (lambda: Decoder(10, 16.0, (1, 8, 8)), "Decoder: dim .* got 16.0"),
        (lambda: create_model("capsnet_small", types=8.0), "capsnet: types .* got 8.0"),
        (lambda: create_model("capsnet_small", stride=0), "capsnet: stride .* got 0"),
        (lambda: create_model("em_capsnet", primary="8"), "em_capsnet: primary .* got '8'"),
        (lambda: create_model("posecaps_small", types=2.5), "posecaps: types .* got 2.5"),
        (lambda: create_model("efficient_capsnet", dim="8"), "efficient_capsnet: dim .* got '8'"),
        (lambda: create_model("segcaps", channels=16.0), "segcaps: channels .* got 16.0"),
        (lambda: create_model("unet", depth=2.5), "unet: depth .* got 2.5"),
        (lambda: create_model("pix2pix", channels="64"), "pix2pix: channels .* got '64'"),
        (lambda: create_model("capspix2pix", z=1.5), "CapsPix2Pix: z .* got 1.5"),
    ],
)
def test_sizes_are_whole_numbers(make, message):
    with pytest.raises(UserError, match=message):
        make()


def test_a_convolution_of_primary_capsules_may_have_pairs():
    assert PrimaryCaps(4, 2, 4, (3, 2), (1, 2))(MAPS[:, 0]).pose.shape == (2, 2 * 4 * 3, 4)
