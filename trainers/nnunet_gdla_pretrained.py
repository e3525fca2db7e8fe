"""When and whence a training takes its encoder weights."""

import os
from pathlib import Path

import torch.distributed as dist

from nnunet_gdla.errors import UserError
from nnunet_gdla.networks import PVTGDLA
from nnunet_gdla.networks.weights import (
    WEIGHTS_VARIABLE,
    encoder_weights_advice,
    find_encoder_weights,
    load_encoder_weights,
)
from nnunet_gdla.variables import path_mistake

__all__ = ["encoder_weights_source", "fill_encoder", "require_encoder_weights"]


def encoder_weights_source() -> str | None:
    """What the user asks for: "imagenet" (default), a path, or None for a start from scratch."""
    value = os.environ.get(WEIGHTS_VARIABLE, "").strip() or "imagenet"
    return None if value.lower() == "none" else "imagenet" if value.lower() == "imagenet" else value


def require_encoder_weights(encoder: str, *, is_ddp: bool, rank: int) -> None:
    """Fetch or find the file before anything else is done; rank 0 fetches, the others wait for it.

    Raises:
        UserError: If weights are wanted and cannot be had.
    """
    source = encoder_weights_source()
    if source is None:
        return
    if rank == 0 and find_encoder_weights(encoder, source, fetch=True) is None:
        if source == "imagenet":
            raise UserError(encoder_weights_advice(encoder))
        mistake = path_mistake(WEIGHTS_VARIABLE, source)
        if mistake is not None:
            raise UserError(f"{WEIGHTS_VARIABLE}: {mistake}")
        wrong = "that is a folder" if Path(source).is_dir() else "there is no such file"
        raise UserError(
            f"{WEIGHTS_VARIABLE}={source}: {wrong}; name a PVTv2 file, 'imagenet', or 'none' to train from scratch"
        )
    if is_ddp:
        dist.barrier()


def fill_encoder(network: PVTGDLA) -> str:
    """Load what `require_encoder_weights` has found; returns the line for the log.

    Raises:
        UserError: If the file does not fit the encoder.
    """
    try:
        return load_encoder_weights(network, encoder_weights_source())
    except (ValueError, FileNotFoundError) as error:
        raise UserError(str(error)) from error
