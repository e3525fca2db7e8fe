"""Made-up PVTv2 files: timm's names and others, good and bad, and a made-up hub cache."""

import functools
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import timm
import torch
from torch import Tensor

__all__ = ["BAD_FILES", "GOOD_FILES", "encoder_state", "features_name", "original_name", "write_hub_cache"]


@functools.cache
def encoder_state(name: str = "pvt_v2_b0") -> Mapping[str, Tensor]:
    """Return a whole PVTv2 under timm's names, classifier included, with random weights."""
    state: dict[str, Tensor] = timm.create_model(name, pretrained=False, in_chans=3, num_classes=10).state_dict()
    generator = torch.Generator().manual_seed(1)
    return {key: tensor + 0.01 * torch.randn(tensor.shape, generator=generator) for key, tensor in state.items()}


def features_name(timm_name: str) -> str:
    """Return the name that timm's feature extractor, and so our encoder, gives a tensor."""
    return re.sub(r"^stages\.", "stages_", timm_name)


def original_name(timm_name: str) -> str:
    """Return the name in the files of PVTv2's authors."""
    name = re.sub(r"^patch_embed\.", "patch_embed1.", timm_name)
    name = re.sub(r"^stages\.(\d)\.downsample\.", lambda m: f"patch_embed{int(m[1]) + 1}.", name)
    name = re.sub(r"^stages\.(\d)\.blocks\.", lambda m: f"block{int(m[1]) + 1}.", name)
    name = re.sub(r"^stages\.(\d)\.norm\.", lambda m: f"norm{int(m[1]) + 1}.", name)
    return name.replace(".mlp.dwconv.", ".mlp.dwconv.dwconv.")


def _prefixed(state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {prefix + name: tensor for name, tensor in state.items()}


def _without_head(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in state.items() if not name.startswith("head")}


# what is saved, from the state under timm's names
GOOD_FILES: dict[str, Callable[[Mapping[str, Tensor]], Any]] = {
    "timm": dict,
    "original": lambda state: {original_name(name): tensor for name, tensor in state.items()},
    "features only": lambda state: {features_name(name): tensor for name, tensor in _without_head(state).items()},
    "wrapped model": lambda state: {"model": dict(state)},
    "wrapped state_dict and epoch": lambda state: {"state_dict": dict(state), "epoch": 3},
    "module prefix": lambda state: _prefixed(state, "module."),
    "_orig_mod prefix": lambda state: _prefixed(state, "_orig_mod."),
    "wrapped and prefixed": lambda state: {"state_dict": _prefixed(state, "module.")},
    **{
        f"{prefix} prefix": functools.partial(_prefixed, prefix=prefix)
        for prefix in ("backbone.", "encoder.", "model.", "module.backbone.", "module._orig_mod.model.encoder.")
    },
    "model_state": lambda state: {"model_state": dict(state), "optimizer_state": {"state": {}}},
    "nested containers": lambda state: {"state_dict": {"model": {"module": _prefixed(state, "encoder.")}}, "epoch": 3},
    "container of an unknown name": lambda state: {"pvt": dict(state), "epoch": 3},
    "Lightning": lambda state: {
        "state_dict": {**_prefixed(state, "model.backbone."), "model.classifier.weight": torch.zeros(2, 256)},
        "pytorch-lightning_version": "2.6.6",
    },
    "no head": _without_head,
    "released network": lambda state: {
        "model_state_dict": {
            **{f"backbone.{original_name(name)}": tensor for name, tensor in _without_head(state).items()},
            "head1.weight": torch.zeros(2, 32, 1, 1),
        }
    },
}


class _Trap:
    """An object whose unpickling writes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def _save(content: Any) -> Callable[[Path], None]:  # noqa: ANN401
    return lambda path: torch.save(content, path)


def _change(name: str, change: Callable[[Tensor], Tensor]) -> Callable[[Path], None]:
    state = encoder_state()
    return _save({**state, name: change(state[name])})


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)


def _truncate(path: Path) -> None:
    torch.save(dict(encoder_state()), path)
    _write(path, path.read_bytes()[:5000])


MISSING = "stages.0.blocks.0.attn.q.bias"
# how the file is written, and what the message must say of it
BAD_FILES: dict[str, tuple[Callable[[Path], None], str]] = {
    "one tensor missing": (
        lambda path: torch.save({n: t for n, t in encoder_state().items() if n != MISSING}, path),
        r"1 .*stages_0\.blocks\.0\.attn\.q\.bias",
    ),
    "one tensor too many": (
        lambda path: torch.save({**encoder_state(), "stages.0.extra": torch.zeros(2)}, path),
        r"1 .*stages_0\.extra",
    ),
    "other size": (lambda path: torch.save(dict(encoder_state("pvt_v2_b1")), path), r"pvt_v2_b0.*\d+ .*patch_embed"),
    "deeper size": (lambda path: torch.save(dict(encoder_state("pvt_v2_b2")), path), r"pvt_v2_b0.*\d+ "),
    "NaN inside": (
        lambda path: _change("stages.2.norm.weight", lambda t: t * torch.nan)(path),
        r"1 .*stages_2\.norm\.weight",
    ),
    "one infinity inside": (
        lambda path: _change("stages.1.norm.bias", lambda t: torch.cat([t[:-1], t[-1:] + torch.inf]))(path),
        r"1 .*stages_1\.norm\.bias",
    ),
    "transposed stem": (
        lambda path: _change("patch_embed.proj.weight", lambda t: t.transpose(0, 1))(path),
        r"1 .*patch_embed\.proj\.weight",
    ),
    "html": (lambda path: _write(path, b"<html>404</html>"), "download|checkpoint|tensors"),
    "empty": (lambda path: _write(path, b""), "download|checkpoint|tensors"),
    "truncated": (_truncate, "damaged|download"),
    "pickled model": (
        lambda path: torch.save(timm.create_model("pvt_v2_b0", pretrained=False), path),
        "state_dict",
    ),
    "pickled trap": (lambda path: torch.save({"model": _Trap(path.with_suffix(".trap"))}, path), "state_dict|tensors"),
    "a list": (lambda path: torch.save([torch.zeros(2)], path), "list"),
    "no tensors": (lambda path: torch.save({"epoch": 3}, path), r"\d+ "),
    "a folder": (lambda path: path.mkdir(), "exist|file|checkpoint"),
    "nothing": (lambda path: None, "exist"),
}


def write_hub_cache(cache: Path, name: str, state: Mapping[str, Tensor], file_name: str = "model.safetensors") -> Path:
    """Lay the file where the hub's client looks for timm's weights of that encoder; return the file."""
    repository = timm.get_pretrained_cfg(name)
    assert repository is not None
    folder = cache / f"models--{str(repository.hf_hub_id).replace('/', '--')}"
    snapshot = folder / "snapshots" / "0123456789abcdef0123456789abcdef01234567"
    snapshot.mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(snapshot.name)
    path = snapshot / file_name
    if path.suffix == ".safetensors":
        safetensors.torch.save_file(dict(state), path)
    else:
        torch.save(dict(state), path)
    return path
