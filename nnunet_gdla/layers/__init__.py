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
from nnunet_gdla.layers.ppeg import PPEG as PPEG
from nnunet_gdla.layers.redundancy import FixedSRP as FixedSRP
from nnunet_gdla.layers.redundancy import GatedSRP as GatedSRP
from nnunet_gdla.layers.redundancy import OutputSRP as OutputSRP
from nnunet_gdla.layers.redundancy import RedundancyGate as RedundancyGate

__all__ = [
    "PPEG",
    "AttentionBlock",
    "DifferentialAttention",
    "FixedSRP",
    "GDLABlock",
    "GatedDifferentialLinearAttention",
    "GatedSRP",
    "LinearAttention",
    "MixFFN",
    "Mlp",
    "OutputSRP",
    "RedundancyGate",
    "SoftmaxAttention",
    "SwiGLU",
]
