"""Under DDP one process with a bad batch stops all of them, each with the sentence that says where it began."""

import os
import sys
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, multiprocessing, nn

from nnunet_gdla.errors import TrainingStopped
from nnunet_gdla.trainers.nnunet_trainer_gdla import nnUNetTrainerGDLA

BAD_RANK = 1
CAUSES = {
    "image": "first non-finite tensor: image of case case 1b, channel 0.",
    "module": "first non-finite tensor: output of module 2.",
}


def trainer_of(rank: int, cause: str) -> Any:  # noqa: ANN401
    """As much of a trainer as it takes to stop one."""
    # As nnU-Net has it under DDP: batch statistics of all processes together, for which one alone would wait for ever.
    network = nn.Sequential(nn.Conv2d(1, 4, 3), nn.SyncBatchNorm(4), nn.Conv2d(4, 2, 1)).train()
    if (rank, cause) == (BAD_RANK, "module"):
        network[2].register_forward_hook(lambda _module, _inputs, output: output * torch.nan)
    trainer = nnUNetTrainerGDLA.__new__(nnUNetTrainerGDLA)
    trainer.is_ddp, trainer.local_rank, trainer.device = True, rank, torch.device("cpu")
    trainer.network = SimpleNamespace(module=network)
    trainer.current_epoch, trainer._iteration = 2, 7
    trainer.plans_manager = SimpleNamespace(dataset_name="Dataset850_Tiny")
    return trainer


def batch_of(rank: int, cause: str) -> tuple[dict[str, Any], Tensor]:
    data, loss = torch.ones(2, 1, 8, 8), torch.tensor(1.0)
    if rank == BAD_RANK:
        loss = torch.tensor(torch.nan)
        if cause == "image":
            data[1, 0, 2, 2] = torch.nan
    return {"data": data, "keys": [f"case {rank}a", f"case {rank}b"]}, loss


def process(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo" if sys.platform == "linux" else "lo0")
    distributed.init_process_group("gloo", (folder / "store").as_uri(), timedelta(seconds=60), world_size=2, rank=rank)
    for cause in CAUSES:
        trainer = trainer_of(rank, cause)
        batch, loss = batch_of(rank, cause)
        trainer._stop_unless_finite(torch.tensor(0.5), batch, "training loss")  # a good step stops nobody
        try:
            trainer._stop_unless_finite(loss, batch, "training loss")
        except TrainingStopped as stopped:
            (folder / f"{cause} {rank}.txt").write_text(str(stopped))
    distributed.destroy_process_group()


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ddp")
    multiprocessing.spawn(process, args=(folder,), nprocs=2)  # type: ignore[attr-defined, no-untyped-call]
    return folder


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("cause", CAUSES)
def test_every_process_stops_and_names_the_bad_one(cause: str, rank: int, stopped: Path) -> None:
    """Which of them is heard is chance: nnU-Net kills the others as soon as one has ended."""
    sentence = (stopped / f"{cause} {rank}.txt").read_text()
    assert sentence.startswith("the training loss is not finite in epoch 2, step 7, cases case 1a, case 1b; ")
    assert CAUSES[cause] in sentence
