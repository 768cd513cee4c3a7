"""Pure functions on tensors: no parameters, no modules, no I/O."""

from torchcaps.ops.attention import inverted_attention_routing, self_attention_routing
from torchcaps.ops.dispatch import using
from torchcaps.ops.dynamic import dynamic_routing, route_votes
from torchcaps.ops.em import em_routing, em_routing_conv
from torchcaps.ops.local import Window, local_routing
from torchcaps.ops.poses import Wholes, pose_routing
from torchcaps.ops.primary import squash_maps
from torchcaps.ops.result import Routed
from torchcaps.ops.squash import squash

__all__ = [
    "Routed",
    "Wholes",
    "Window",
    "dynamic_routing",
    "em_routing",
    "em_routing_conv",
    "inverted_attention_routing",
    "local_routing",
    "pose_routing",
    "route_votes",
    "self_attention_routing",
    "squash",
    "squash_maps",
    "using",
]
