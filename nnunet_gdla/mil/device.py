"""Where a model runs."""

import torch

from nnunet_gdla.errors import UserError
from nnunet_gdla.mil.config_schema import TrainConfig
from nnunet_gdla.words import counted

__all__ = ["pick_device", "refuse_missing_devices"]


def pick_device(accelerator: str) -> torch.device:
    """Return the device behind "auto" (CUDA where there is one, else the CPU), "cpu", "gpu" (or "cuda") or "mps".

    Raises:
        UserError: If it is not there.
    """
    if accelerator in ("gpu", "cuda") and not torch.cuda.is_available():
        raise UserError(f"{accelerator} was asked for, but PyTorch sees no CUDA device; see nvidia-smi, or choose cpu")
    if accelerator == "mps":
        if not torch.backends.mps.is_available():
            raise UserError("mps was asked for, but PyTorch sees none here; choose cpu")
        return torch.device("mps")
    return torch.device("cuda" if accelerator != "cpu" and torch.cuda.is_available() else "cpu")


def refuse_missing_devices(train: TrainConfig) -> None:
    """Raise unless this machine has what the settings want to train on.

    Raises:
        UserError: If the device, or so many of them, are not there.
    """
    device = pick_device(train.accelerator)
    if device.type == "cuda" and train.devices > torch.cuda.device_count():
        raise UserError(
            f"train.devices is {train.devices}, this machine has {counted(torch.cuda.device_count(), 'GPU')}"
        )
    if device.type == "mps" and train.devices > 1:
        raise UserError(f"train.devices is {train.devices}: MPS is a single device")
