"""Why a model answers as it does: tensors in, arrays or figures out. matplotlib is imported when a figure is made."""

from torchcaps.explain.charts import (
    figure_by_size,
    figure_confusion,
    figure_curves,
    figure_lengths,
    figure_mistakes,
)
from torchcaps.explain.drawings import (
    Walk,
    figure_drawings,
    figure_walk,
    figure_walk_features,
    film_strip,
    label_picture,
    walk,
)
from torchcaps.explain.features import LayerMaps, drawing_maps, feature_maps, figure_couplings, figure_features
from torchcaps.explain.figures import figure_reconstructions, figure_routing, figure_sweep
from torchcaps.explain.masks import Compared, compare, error_map, figure_found, figure_masks, middle, overlay, redraw
from torchcaps.explain.paper import coupling_maps, digit_examples, pair_examples, perturbations
from torchcaps.explain.paper_figures import (
    figure_coupling_maps,
    figure_digit_examples,
    figure_pair_examples,
    figure_perturbations,
)
from torchcaps.explain.placement import (
    Standing,
    canonical_views,
    draw_placed,
    draw_upright,
    has_placement,
    lattice_lengths,
    read_poses,
    stand,
    sweep_capsule,
    sweep_pose,
)
from torchcaps.explain.placement_charts import figure_lattice, figure_read_poses
from torchcaps.explain.placement_figures import figure_canonical, figure_placed, figure_pose_sweep, show_placement
from torchcaps.explain.reconstruct import Reconstructions, reconstructions
from torchcaps.explain.routing import coupling_entropy, maps_on_image, routing_couplings, routing_maps
from torchcaps.explain.style import png_bytes
from torchcaps.explain.sweep import SWEEP, sweep
from torchcaps.metrics.classification import confusion_matrix, precision_recall, predicted_classes, worst_mistakes

__all__ = [
    "SWEEP",
    "Compared",
    "LayerMaps",
    "Reconstructions",
    "Standing",
    "Walk",
    "canonical_views",
    "compare",
    "confusion_matrix",
    "coupling_entropy",
    "coupling_maps",
    "digit_examples",
    "draw_placed",
    "draw_upright",
    "drawing_maps",
    "error_map",
    "feature_maps",
    "figure_by_size",
    "figure_canonical",
    "figure_confusion",
    "figure_coupling_maps",
    "figure_couplings",
    "figure_curves",
    "figure_digit_examples",
    "figure_drawings",
    "figure_features",
    "figure_found",
    "figure_lattice",
    "figure_lengths",
    "figure_masks",
    "figure_mistakes",
    "figure_pair_examples",
    "figure_perturbations",
    "figure_placed",
    "figure_pose_sweep",
    "figure_read_poses",
    "figure_reconstructions",
    "figure_routing",
    "figure_sweep",
    "figure_walk",
    "figure_walk_features",
    "film_strip",
    "has_placement",
    "label_picture",
    "lattice_lengths",
    "maps_on_image",
    "middle",
    "overlay",
    "pair_examples",
    "perturbations",
    "png_bytes",
    "precision_recall",
    "predicted_classes",
    "read_poses",
    "reconstructions",
    "redraw",
    "routing_couplings",
    "routing_maps",
    "show_placement",
    "stand",
    "sweep",
    "sweep_capsule",
    "sweep_pose",
    "walk",
    "worst_mistakes",
]
