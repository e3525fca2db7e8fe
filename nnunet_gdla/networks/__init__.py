"""The PVT-GDLA network and its weights; nothing here imports nnU-Net."""

from nnunet_gdla.networks.pvt_gdla import PVTGDLA as PVTGDLA

__all__ = ["PVTGDLA"]
