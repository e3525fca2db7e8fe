"""Pretrained encoders: where a file is, what is in it, and whether all of it fits."""

import os
from collections.abc import Mapping
from pathlib import Path

import huggingface_hub
import timm
from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled
from torch import Tensor

from nnunet_gdla.networks.misfits import state_misfits
from nnunet_gdla.networks.pvt_gdla import PVTGDLA
from nnunet_gdla.networks.released import (
    adapt_first_convolution,
    convert_released_state_dict,
    encoder_key,
)
from nnunet_gdla.networks.weights_file import read_content
from nnunet_gdla.networks.wrapped_weights import encoder_part, unwrap
from nnunet_gdla.write_errors import no_room_error

__all__ = [
    "WEIGHTS_VARIABLE",
    "convert_released_state_dict",
    "encoder_weights_advice",
    "fetch_encoder_weights",
    "find_encoder_weights",
    "load_encoder_weights",
]

WEIGHTS_VARIABLE = "NNUNET_GDLA_ENCODER_WEIGHTS"
_FILE_NAMES = ("model.safetensors", "pytorch_model.bin")
_FIRST_CONVOLUTION = "patch_embed.proj.weight"


def encoder_weights_advice(encoder: str, reason: str = "") -> str:
    """One sentence for whoever has no file: its name, why it cannot be had, where it goes, how to do without."""
    repository = _hub_repository(encoder)
    folder = Path(huggingface_hub.constants.HF_HUB_CACHE) / f"models--{repository.replace('/', '--')}"
    return (
        f"the ImageNet weights of {encoder} ({_FILE_NAMES[0]} of https://huggingface.co/{repository}) are not in the "
        f"cache {folder} and could not be fetched{reason and f' ({reason})'}; download that file elsewhere and set "
        f"{WEIGHTS_VARIABLE}=/path/to/{_FILE_NAMES[0]}, or set {WEIGHTS_VARIABLE}=none to train from scratch"
    )


def find_encoder_weights(
    encoder: str, source: str | os.PathLike[str] = "imagenet", *, fetch: bool = False
) -> Path | None:
    """Where the encoder's file is on this machine.

    Args:
        encoder: "pvt_v2_b0" to "pvt_v2_b5".
        source: "imagenet" for the hub's cache, or the path of a file.
        fetch: Download a file that the cache lacks.

    Returns:
        The file, or None if it is not here (with `fetch`: and could not be had).
    """
    if source != "imagenet":
        return Path(source) if Path(source).is_file() else None
    if fetch:
        try:
            return fetch_encoder_weights(encoder)
        except FileNotFoundError:
            return None
    return _cached(_hub_repository(encoder))


def fetch_encoder_weights(encoder: str) -> Path:
    """The encoder's file from the hub's cache, downloaded into it where it is not there yet.

    Raises:
        FileNotFoundError: If it cannot be had; the message has the reason, and says how to go on.
        WriteError: If there is no room for it.
    """
    repository = _hub_repository(encoder)
    reason = "the hub does not have it"
    if (here := _cached(repository)) is not None:
        return here
    for name in _FILE_NAMES:
        try:
            # Asks once, while a download asks for half a minute whether there is a network.
            huggingface_hub.get_hf_file_metadata(huggingface_hub.hf_hub_url(repository, name), timeout=10)
            return Path(huggingface_hub.hf_hub_download(repository, name))
        except EntryNotFoundError:
            continue
        except Exception as error:  # the hub's versions bring three HTTP libraries, without common base
            failed = no_room_error(error, Path(huggingface_hub.constants.HF_HUB_CACHE))
            if failed is not None:
                raise failed from error
            reason = " ".join(str(error).split()) or type(error).__name__
            break
    raise FileNotFoundError(encoder_weights_advice(encoder, reason))


def _cached(repository: str) -> Path | None:
    for name in _FILE_NAMES:
        try:
            return Path(huggingface_hub.hf_hub_download(repository, name, local_files_only=True))
        except (HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled, OSError):
            continue  # not in the cache: the caller says what to do
    return None


def load_encoder_weights(network: PVTGDLA, source: str | os.PathLike[str] | None) -> str:
    """Fill the encoder of a network from a PVTv2 file; every tensor has to match, or nothing is changed.

    Args:
        network: The network whose encoder is filled; its first convolution may have any number of input channels.
        source: "imagenet" (timm's file from the hub's cache or the hub), the path of a PVTv2 file with original, timm's
            or feature-extractor names, or None to leave the random weights.

    Returns:
        One sentence that says what was loaded, for the log.

    Raises:
        FileNotFoundError: If the file is not there and cannot be fetched; the message says where to put it.
        ValueError: If the file is not a checkpoint, or a tensor is missing, unknown, of another shape or not finite;
            the message has the counts and the first three names.
    """
    if source is None:
        return "encoder: random weights"
    path = find_encoder_weights(network.encoder_name, source, fetch=True)
    if path is None:
        if source == "imagenet":
            raise FileNotFoundError(encoder_weights_advice(network.encoder_name))
        raise FileNotFoundError(
            f"encoder weights {source} do not exist; set {WEIGHTS_VARIABLE} to a PVTv2 file, to 'imagenet' or to 'none'"
        )
    state = _encoder_state(path)
    encoder = network.encoder
    note = _adapt_stem(state, network.input_channels)
    own = encoder.state_dict()
    if faults := state_misfits(state, own):
        raise ValueError(
            f"{path} does not fit {network.encoder_name} ({len(own)} tensors): {'; '.join(faults)}; nothing was "
            f"loaded, use a PVTv2 file of that size"
        )
    encoder.load_state_dict(state)
    return f"encoder: loaded all {len(state)} tensors of {network.encoder_name} from {path}{note}"


def _hub_repository(encoder: str) -> str:
    config = timm.get_pretrained_cfg(encoder)
    assert config is not None  # all six encoders have one
    return str(config.hf_hub_id)


def _encoder_state(path: Path) -> dict[str, Tensor]:
    """The encoder's tensors under our names, unwrapped; a classifier head is left out."""
    content = read_content(path)
    if not isinstance(content, Mapping):
        raise ValueError(f"{path} holds a {type(content).__name__}, not a dictionary of tensors; save a state_dict()")
    try:
        state, _ = encoder_part(unwrap(content).tensors)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return {encoder_key(name): value for name, value in state.items() if not name.startswith("head.")}


def _adapt_stem(state: dict[str, Tensor], input_channels: int) -> str:
    weight = state.get(_FIRST_CONVOLUTION)
    if weight is None or weight.ndim != 4 or weight.shape[1] == input_channels or weight.shape[1] != 3:
        return ""
    state[_FIRST_CONVOLUTION] = adapt_first_convolution(weight, input_channels)
    how = "the three filters summed" if input_channels == 1 else "filters repeated and scaled by 3/channels"
    return f"; first convolution fitted from 3 to {input_channels} input channels ({how})"
