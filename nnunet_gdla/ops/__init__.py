"""Pure functions on tensors (B, H, N, D); they hold no parameters and import nothing but torch and jaxtyping."""

from nnunet_gdla.ops.differential import differential_attention as differential_attention
from nnunet_gdla.ops.differential import differential_linear_attention as differential_linear_attention
from nnunet_gdla.ops.feature_map import elu_plus_one as elu_plus_one
from nnunet_gdla.ops.linear import linear_attention as linear_attention

__all__ = ["differential_attention", "differential_linear_attention", "elu_plus_one", "linear_attention"]
