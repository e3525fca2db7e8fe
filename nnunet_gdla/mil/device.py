"""Where a model runs."""

import torch

from nnunet_gdla.errors import UserError

__all__ = ["pick_device"]


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
