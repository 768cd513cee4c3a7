"""The paths of dynamic routing under one interface, for tests that compare them."""

from functools import partial
from types import SimpleNamespace

from torchcaps.ops.dynamic import reference as paper
from torchcaps.ops.dynamic.operators import route


def _routing(backend, u_BIK, weight_IJDK, iterations, bias_JD, leaky):
    return route(backend, u_BIK, weight_IJDK, iterations, bias_JD, leaky, couplings=True)


reference = SimpleNamespace(dynamic_routing=paper.dynamic_routing)
chunked = SimpleNamespace(dynamic_routing=partial(_routing, "chunked"))
fused = SimpleNamespace(dynamic_routing=partial(_routing, "fused"))
