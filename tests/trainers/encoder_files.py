"""PVTv2 files as timm publishes them, and a hub cache made up of one."""

from pathlib import Path

import huggingface_hub
import pytest
import safetensors.torch
import timm
from torch import Tensor

__all__ = ["hub_cache_with", "published_tensors", "set_hub_cache"]


def published_tensors(encoder: str = "pvt_v2_b0") -> dict[str, Tensor]:
    """A file's content, classifier head included; random, and so unlike any network made in a test."""
    return {name: tensor.clone() for name, tensor in timm.create_model(encoder, in_chans=3).state_dict().items()}


def set_hub_cache(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Let this process look for the hub's files in `folder`."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(folder))


def hub_cache_with(folder: Path, encoder: str, tensors: dict[str, Tensor]) -> Path:
    """Lay out a cache as the hub's client does; returns the file that it will find."""
    published = timm.get_pretrained_cfg(encoder)
    assert published is not None
    repository = str(published.hf_hub_id)
    base = folder / f"models--{repository.replace('/', '--')}"
    snapshot = base / "snapshots" / "0123456789abcdef0123456789abcdef01234567"
    snapshot.mkdir(parents=True)
    (base / "refs").mkdir()
    (base / "refs" / "main").write_text(snapshot.name)
    safetensors.torch.save_file(tensors, snapshot / "model.safetensors")
    return snapshot / "model.safetensors"
