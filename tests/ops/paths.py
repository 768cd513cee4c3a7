"""The paths of dynamic routing under one interface, for tests that compare them."""

from types import SimpleNamespace

from torchcaps.ops import dynamic_routing
from torchcaps.ops.dispatch import using
from torchcaps.ops.dynamic import operators
from torchcaps.ops.dynamic import reference as paper


def _chunked(u_BIK, weight_IJDK, iterations, bias_JD, leaky, inverse_temperature=1.0):
    options = {"bias": bias_JD, "leaky": leaky, "inverse_temperature": inverse_temperature}
    with using("chunked"):
        routed = dynamic_routing(u_BIK, weight_IJDK, iterations, **options, return_couplings=True)
    return routed.poses, routed.couplings


def _fused(u_BIK, weight_IJDK, iterations, bias_JD, leaky, inverse_temperature=1.0):
    """The operator itself: `dynamic_routing` would go over to chunked for what the kernels do not serve."""
    return operators.fused(u_BIK, weight_IJDK, bias_JD, iterations, leaky, inverse_temperature, True)


reference = SimpleNamespace(dynamic_routing=paper.dynamic_routing)
chunked = SimpleNamespace(dynamic_routing=_chunked)
fused = SimpleNamespace(dynamic_routing=_fused)
