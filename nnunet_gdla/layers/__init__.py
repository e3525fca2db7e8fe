"""Modules that own parameters and call `nnunet_gdla.ops`."""

from nnunet_gdla.layers.attention import DifferentialAttention as DifferentialAttention
from nnunet_gdla.layers.attention import LinearAttention as LinearAttention
from nnunet_gdla.layers.attention import SoftmaxAttention as SoftmaxAttention
from nnunet_gdla.layers.blocks import AttentionBlock as AttentionBlock
from nnunet_gdla.layers.blocks import GDLABlock as GDLABlock
from nnunet_gdla.layers.feed_forward import MixFFN as MixFFN
from nnunet_gdla.layers.feed_forward import Mlp as Mlp
from nnunet_gdla.layers.feed_forward import SwiGLU as SwiGLU
from nnunet_gdla.layers.gdla import GatedDifferentialLinearAttention as GatedDifferentialLinearAttention

__all__ = [
    "AttentionBlock",
    "DifferentialAttention",
    "GDLABlock",
    "GatedDifferentialLinearAttention",
    "LinearAttention",
    "MixFFN",
    "Mlp",
    "SoftmaxAttention",
    "SwiGLU",
]
