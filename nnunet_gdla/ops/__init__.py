"""Pure functions on tensors (B, H, N, D); they hold no parameters and import nothing but torch and jaxtyping."""

from nnunet_gdla.ops._dispatch import forms as forms
from nnunet_gdla.ops._dispatch import use_forms as use_forms
from nnunet_gdla.ops.differential import differential_attention as differential_attention
from nnunet_gdla.ops.differential import differential_linear_attention as differential_linear_attention
from nnunet_gdla.ops.exclusive import exclusive_projection as exclusive_projection
from nnunet_gdla.ops.feature_map import elu_plus_one as elu_plus_one
from nnunet_gdla.ops.gated_differential import gated_differential_attention as gated_differential_attention
from nnunet_gdla.ops.linear import linear_attention as linear_attention
from nnunet_gdla.ops.neighbours import NeighbourGraph as NeighbourGraph
from nnunet_gdla.ops.neighbours import grid_neighbours as grid_neighbours
from nnunet_gdla.ops.neighbours import local_homogeneity as local_homogeneity
from nnunet_gdla.ops.neighbours import nearest_neighbours as nearest_neighbours
from nnunet_gdla.ops.neighbours import shuffled as shuffled
from nnunet_gdla.ops.nystrom import nystrom_attention as nystrom_attention
from nnunet_gdla.ops.nystrom import nystrom_attention_row as nystrom_attention_row
from nnunet_gdla.ops.redundancy import neighbourhood_mean as neighbourhood_mean
from nnunet_gdla.ops.redundancy import redundancy_projection as redundancy_projection

__all__ = [
    "NeighbourGraph",
    "differential_attention",
    "differential_linear_attention",
    "elu_plus_one",
    "exclusive_projection",
    "forms",
    "gated_differential_attention",
    "grid_neighbours",
    "linear_attention",
    "local_homogeneity",
    "nearest_neighbours",
    "neighbourhood_mean",
    "nystrom_attention",
    "nystrom_attention_row",
    "redundancy_projection",
    "shuffled",
    "use_forms",
]
