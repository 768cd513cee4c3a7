"""Explain predictions: reconstructions, sweeps, routing, placements, masks, and figures of them.

matplotlib is imported when the first figure is made.
"""

from torchcaps.explain.charts import (
    figure_by_size,
    figure_confusion,
    figure_curves,
    figure_lengths,
    figure_mistakes,
    figure_reliability,
)
from torchcaps.explain.drawings import (
    Interpolation,
    figure_drawings,
    figure_interpolation,
    figure_interpolation_features,
    film_strip,
    interpolate,
    label_picture,
)
from torchcaps.explain.features import LayerMaps, drawing_maps, feature_maps, figure_couplings, figure_features
from torchcaps.explain.figures import figure_reconstructions, figure_routing, figure_sweep
from torchcaps.explain.masks import (
    Comparison,
    centre_crop,
    compare,
    error_map,
    figure_masks,
    figure_predicted_mask,
    masked_reconstruction,
    overlay,
)
from torchcaps.explain.pair_figures import figure_pair_examples
from torchcaps.explain.pairs import pair_examples
from torchcaps.explain.placement import (
    PlacementReading,
    canonical_views,
    draw_placed,
    draw_upright,
    lattice_lengths,
    read_placements,
    read_poses,
    sweep_capsule,
    sweep_pose,
)
from torchcaps.explain.placement_charts import figure_lattice, figure_read_poses
from torchcaps.explain.placement_figures import figure_canonical, figure_placed, figure_pose_sweep, show_placement
from torchcaps.explain.reconstruct import Reconstructions, reconstructions
from torchcaps.explain.require import has_placement
from torchcaps.explain.routing import coupling_entropy, maps_on_image, routing_couplings, routing_maps
from torchcaps.explain.style import png_bytes
from torchcaps.explain.sweep import SWEEP, sweep
from torchcaps.metrics.classification import confusion_matrix, precision_recall, predicted_classes, worst_mistakes

__all__ = [
    "SWEEP",
    "Comparison",
    "Interpolation",
    "LayerMaps",
    "PlacementReading",
    "Reconstructions",
    "canonical_views",
    "centre_crop",
    "compare",
    "confusion_matrix",
    "coupling_entropy",
    "draw_placed",
    "draw_upright",
    "drawing_maps",
    "error_map",
    "feature_maps",
    "figure_by_size",
    "figure_canonical",
    "figure_confusion",
    "figure_couplings",
    "figure_curves",
    "figure_drawings",
    "figure_features",
    "figure_interpolation",
    "figure_interpolation_features",
    "figure_lattice",
    "figure_lengths",
    "figure_masks",
    "figure_mistakes",
    "figure_pair_examples",
    "figure_placed",
    "figure_pose_sweep",
    "figure_predicted_mask",
    "figure_read_poses",
    "figure_reconstructions",
    "figure_reliability",
    "figure_routing",
    "figure_sweep",
    "film_strip",
    "has_placement",
    "interpolate",
    "label_picture",
    "lattice_lengths",
    "maps_on_image",
    "masked_reconstruction",
    "overlay",
    "pair_examples",
    "png_bytes",
    "precision_recall",
    "predicted_classes",
    "read_placements",
    "read_poses",
    "reconstructions",
    "routing_couplings",
    "routing_maps",
    "show_placement",
    "sweep",
    "sweep_capsule",
    "sweep_pose",
    "worst_mistakes",
]
