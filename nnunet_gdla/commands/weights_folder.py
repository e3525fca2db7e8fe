"""Write a converted model where nnU-Net looks for it: all of it or nothing."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from nnunet_gdla.commands.weights_compare import RECORD
from nnunet_gdla.errors import UserError
from nnunet_gdla.files import replaced_folder, write_text
from nnunet_gdla.networks import PVTGDLA
from nnunet_gdla.networks.weights_file import read_content

__all__ = ["CHECKPOINT", "make_checkpoint", "refuse_occupied", "write_json", "write_model"]

CHECKPOINT = Path("fold_0") / "checkpoint_final.pth"


def make_checkpoint(
    network: PVTGDLA,
    *,
    trainer: str,
    plans: Mapping[str, Any],
    dataset_json: Mapping[str, Any],
    record: Mapping[str, Any],
) -> dict[str, Any]:
    """Put a network into a checkpoint as nnU-Net's trainers write it, before its first epoch.

    Args:
        network: The network, with deep supervision on as in a training.
        trainer: Name of the trainer that would have trained it.
        plans: Its plans.
        dataset_json: Its dataset.json.
        record: What the weights were made with, see `weights_compare`.
    """
    from nnunetv2.training.logging.nnunet_logger import LocalLogger

    from nnunet_gdla.trainers import resolve

    # The optimiser is the trainer's own, so that `--val` and `--c` can load it too.
    kind = resolve(trainer)
    stand_in: Any = object.__new__(kind)  # without its constructor, which makes folders
    vars(stand_in).update(
        network=network,
        device=torch.device("cpu"),
        weight_decay=1e-4,
        initial_lr=5e-4,
        num_epochs=1,
        num_iterations_per_epoch=1,
    )
    optimizer, _ = stand_in.configure_optimizers()
    return {
        "network_weights": network.state_dict(),
        "optimizer_state": optimizer.state_dict(),
        "grad_scaler_state": None,
        "logging": LocalLogger().get_checkpoint(),
        "_best_ema": None,
        "current_epoch": 0,
        "init_args": {
            "plans": dict(plans),
            "configuration": "2d",
            "fold": 0,
            "dataset_json": dict(dataset_json),
            "device": torch.device("cpu"),
        },
        "trainer_name": trainer,
        "inference_allowed_mirroring_axes": (0, 1),
        RECORD: dict(record),
    }


def write_model(
    folder: Path, checkpoint: Mapping[str, Any], plans: Mapping[str, Any], dataset_json: Mapping[str, Any]
) -> None:
    """Write a model folder under another name, then give it its own.

    Raises:
        WriteError: If it cannot be written; what was there before is there still.
    """
    with replaced_folder(folder, option="--out") as partial:
        (partial / CHECKPOINT).parent.mkdir()
        write_json(partial / "plans.json", plans)
        write_json(partial / "dataset.json", dataset_json)
        torch.save(dict(checkpoint), partial / CHECKPOINT)


def refuse_occupied(folder: Path, *, overwrite: bool) -> None:
    """Refuse to write where a model folder is; with `overwrite` one that `convert` wrote is not in the way.

    Raises:
        UserError: If one is.
    """
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    if not overwrite:
        raise UserError(f"{folder} is there already; give --overwrite, or another folder with --out or --plans-name")
    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir()}
    written = {"plans.json", "dataset.json", str(CHECKPOINT)}
    content: Any = read_content(folder / CHECKPOINT) if files == written else None
    if not isinstance(content, Mapping) or RECORD not in content:
        raise UserError(
            f"{folder} holds more than a converted model, perhaps a training, and is not overwritten; remove it "
            f"yourself, or name another folder with --out or --plans-name"
        )


def write_json(file: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file in one step.

    Raises:
        WriteError: If it cannot be written.
    """
    write_text(file, json.dumps(content, indent=4) + "\n")
