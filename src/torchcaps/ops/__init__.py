"""Pure functions on tensors: no parameters, no modules, no I/O."""

from torchcaps.ops.primary import squash_maps
from torchcaps.ops.routing import dynamic_routing, route_votes
from torchcaps.ops.squash import squash

__all__ = ["dynamic_routing", "route_votes", "squash", "squash_maps"]
