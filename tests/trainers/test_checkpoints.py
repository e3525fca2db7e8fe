"""Checkpoints: written in one step; damaged ones, and those of another network, are named with what to do."""

import re
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from nnunet_gdla.errors import TrainingStopped, UserError
from nnunet_gdla.in_use import in_use
from nnunet_gdla.trainers import nnUNetTrainerGDLA_B0
from nnunet_gdla.trainers.nnunet_gdla_checkpoint import read_checkpoint, write_checkpoint
from tests.trainers.nnunet_project import Project, as_ours, make_trainer, small_plans


@pytest.fixture
def trainer(project: Project) -> Any:  # noqa: ANN401
    made = make_trainer(nnUNetTrainerGDLA_B0, project)
    made.initialize()
    return made


def save(trainer: Any, name: str, epoch: int = 4) -> Path:  # noqa: ANN401
    trainer.current_epoch = epoch
    path = Path(trainer.output_folder) / name
    trainer.save_checkpoint(str(path))
    return path


def empty(path: Path) -> None:
    path.write_bytes(b"")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])


def cut_by_a_byte(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def cut_in_the_header(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:10])


def zeroed_within(path: Path) -> None:
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 4096] = bytes(4096)
    path.write_bytes(content)


def text(path: Path) -> None:
    path.write_text("version https://git-lfs.github.com/spec/v1\n")


def a_list(path: Path) -> None:
    torch.save([torch.ones(3)], path)


def weights_alone(path: Path) -> None:
    torch.save({"network_weights": {}}, path)


DAMAGES = {
    empty: "is empty",
    cut: "is cut, damaged or not a checkpoint (",
    cut_by_a_byte: "is cut, damaged or not a checkpoint (",
    cut_in_the_header: "is cut, damaged or not a checkpoint (",
    zeroed_within: "is damaged (checksum of",
    text: "is cut, damaged or not a checkpoint (",
    a_list: "holds a list, not a checkpoint",
    weights_alone: "lacks optimizer_state, logging, current_epoch, init_args",
}


def small(path: Path, epoch: int = 4) -> Path:
    content: dict[str, Any] = dict.fromkeys(("optimizer_state", "logging", "init_args"))
    torch.save(content | {"network_weights": {"weight": torch.rand(5000)}, "current_epoch": epoch + 1}, path)
    return path


@pytest.mark.parametrize(("damage", "words"), DAMAGES.items())
def test_a_damaged_checkpoint_is_named_with_what_to_do(
    damage: Callable[[Path], None], words: str, tmp_path: Path
) -> None:
    latest = small(tmp_path / "checkpoint_latest.pth")
    assert read_checkpoint(latest)["current_epoch"] == 5
    damage(latest)
    with pytest.raises(UserError) as alone:
        read_checkpoint(latest)
    assert str(alone.value).startswith(f"{latest} ")
    assert words in str(alone.value)
    assert f"mv {latest} {latest}.damaged" in str(alone.value)
    assert "no other checkpoint lies beside it, so train again without --c" in str(alone.value)
    small(tmp_path / "checkpoint_best.pth", epoch=2)
    with pytest.raises(UserError, match=r"--c then continues from checkpoint_best\.pth, after epoch 2$"):
        read_checkpoint(latest)


def test_what_lies_beside_a_damaged_checkpoint_is_looked_at_too(tmp_path: Path) -> None:
    best, final = small(tmp_path / "checkpoint_best.pth"), tmp_path / "checkpoint_final.pth"
    for damage, path in ((cut, best), (empty, final)):
        damage(path)
    with pytest.raises(UserError, match=r"checkpoint_best\.pth beside it is cut.*put that aside too"):
        read_checkpoint(final)
    with pytest.raises(UserError, match=r"without --val_best does not need it"):
        read_checkpoint(best)
    with pytest.raises(UserError, match=r"mine\.pth does not exist; take another"):
        read_checkpoint(final.with_name("mine.pth"))
    best.unlink()
    with pytest.raises(UserError, match=r"checkpoint_best\.pth does not exist; leave --val_best out$"):
        read_checkpoint(best)


def test_a_checkpoint_of_other_classes_or_another_encoder_is_refused(trainer: Any, project: Project) -> None:  # noqa: ANN401
    path = save(trainer, "checkpoint_latest.pth")
    two = project.dataset_json(labels={"background": 0, "disc": 1})
    other = make_trainer(nnUNetTrainerGDLA_B0, project, dataset_json=two)
    with pytest.raises(UserError, match=r"3 output channels where there are 2 now; 8 of another shape \(decoder\.seg_"):
        other.load_checkpoint(str(path))
    plans = small_plans(project, architecture=as_ours(encoder="pvt_v2_b0", num_heads=[1, 1, 1], gate=None))
    with pytest.raises(UserError, match=r"does not fit this network: .* of another shape"):
        make_trainer(nnUNetTrainerGDLA_B0, project, plans).load_checkpoint(str(path))
    content = torch.load(path, weights_only=False)
    next(iter(content["network_weights"].values()))[0] = torch.nan
    torch.save(content, path)
    with pytest.raises(UserError, match=r"1 not finite .* had diverged .* so train again without --c$"):
        trainer.load_checkpoint(str(path))
    best = save(trainer, "checkpoint_best.pth")
    with pytest.raises(UserError, match=r"1 not finite .* --c then continues from checkpoint_best\.pth"):
        trainer.load_checkpoint(str(path))
    torch.save(content, best)
    with pytest.raises(UserError, match=r"checkpoint_best\.pth beside it holds weights that are not finite"):
        trainer.load_checkpoint(str(path))
    torch.save({**content, "current_epoch": "x"}, path)
    with pytest.raises(UserError, match="has the current_epoch 'x', which is no number of epochs"):
        trainer.load_checkpoint(str(path))
    cut(path)
    with pytest.raises(UserError, match=r"checkpoint_latest\.pth is cut, damaged"):
        trainer.load_checkpoint(str(path))


def test_a_whole_checkpoint_loads_and_changed_plans_are_logged(trainer: Any, project: Project) -> None:  # noqa: ANN401
    path = save(trainer, "checkpoint_latest.pth")
    plans = small_plans(project, patch_size=(96, 64))
    other = make_trainer(nnUNetTrainerGDLA_B0, project, plans)
    other.load_checkpoint(path)
    assert other.current_epoch == 5
    for one, two in zip(trainer.network.parameters(), other.network.parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=0, atol=0)
    log = Path(other.log_file).read_text()
    assert "NOTE: the plans are not those of this checkpoint: patch_size [64, 64] -> [96, 64]" in log
    assert log.count("NOTE:") == 1


def test_an_interrupted_write_leaves_the_earlier_checkpoint(
    trainer: Any,  # noqa: ANN401
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = save(trainer, "checkpoint_latest.pth")
    before = path.read_bytes()

    def half(content: object, file: str) -> None:
        Path(file).write_bytes(before[:1000])
        raise KeyboardInterrupt

    monkeypatch.setattr(torch, "save", half)
    with pytest.raises(KeyboardInterrupt):
        save(trainer, "checkpoint_latest.pth")
    assert path.read_bytes() == before
    assert not list(path.parent.glob(".unfinished*"))


@pytest.fixture
def small_files() -> Iterator[None]:
    """No file may grow beyond 100 kB, as on a disk that is full."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.usefixtures("small_files")
def test_a_full_disk_ends_in_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint_latest.pth"
    path.write_bytes(b"earlier")
    expected = re.escape(f"{path} could not be written (")
    with pytest.raises(TrainingStopped, match=f"^{expected}.* GiB are free.*the earlier one stays; make room.*--c$"):
        write_checkpoint(path, lambda unfinished: torch.save(torch.ones(100_000), unfinished))
    assert path.read_bytes() == b"earlier"
    assert list(tmp_path.iterdir()) == [path]


def test_the_data_are_marked_as_read_and_missing_ones_named(trainer: Any, project: Project) -> None:  # noqa: ANN401
    assert in_use(project.preprocessed / "nnUNetPlans_2d")
    plans = small_plans(project, data_identifier="nnUNetPlans_2d_2")
    other = make_trainer(nnUNetTrainerGDLA_B0, project, plans)
    with pytest.raises(UserError, match=r"not there \(.*nnUNetPlans_2d_2\).* -d 850 -plans_name nnUNetPlans -c 2d$"):
        other.initialize()
