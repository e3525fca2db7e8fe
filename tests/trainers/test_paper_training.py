"""`_Paper` trains as specs say the released code does: rates, loss, precision, passes, the rule for the best epoch."""

import math
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from nnunetv2.utilities.plans_handling.plans_handler import PlansManager
from timm.scheduler import CosineLRScheduler
from torch import nn
from torch.nn import functional

from nnunet_gdla.errors import TrainingStopped, UserError
from nnunet_gdla.losses import BoundaryDoULoss
from nnunet_gdla.paper_settings import SECTION, PaperSettings, read_paper_settings
from nnunet_gdla.trainers import resolve
from nnunet_gdla.trainers.nnunet_gdla_paper_augmentation import PhotographAugmentation, SliceAugmentation
from nnunet_gdla.trainers.nnunet_gdla_paper_data import case_dice
from nnunet_gdla.trainers.nnunet_gdla_schedule import paper_learning_rate
from nnunet_gdla.trainers.nnunet_gdla_supervision import FullResolutionSum
from tests.reference.boundary_dou import boundary_dou_naive
from tests.trainers.nnunet_project import Project, as_ours, make_trainer, small_plans

NAME = "nnUNetTrainerGDLA_B0_Paper"
SETTINGS = PaperSettings("busi", epochs=4, warmup_epochs=1, steps_per_epoch=3, augmentation="photographs")


def paper_plans(project: Project, **changes: Any) -> dict[str, Any]:  # noqa: ANN401
    return small_plans(project) | {SECTION: SETTINGS.section() | changes}


def paper_trainer(project: Project, name: str = NAME, **changes: Any) -> Any:  # noqa: ANN401
    return make_trainer(resolve(name), project, paper_plans(project, **changes))


@pytest.mark.parametrize(
    ("epochs", "warmup", "steps"), [(200, 10, 277), (150, 10, 82), (100, 10, 39), (150, 10, 450), (100, 5, 5)]
)
def test_every_rate_is_timms_without_warmup_prefix(epochs: int, warmup: int, steps: int) -> None:
    optimizer = torch.optim.AdamW([nn.Parameter(torch.zeros(1))], lr=5e-4)
    timm = CosineLRScheduler(
        optimizer,
        t_initial=epochs * steps,
        lr_min=1e-6,
        warmup_lr_init=1e-6,
        warmup_t=warmup * steps,
        cycle_limit=1,
        t_in_epochs=False,
        warmup_prefix=False,
    )
    for step in {0, 1, warmup * steps - 1, warmup * steps, *range(0, epochs * steps, 101), epochs * steps - 1}:
        timm.step_update(step)
        ours = paper_learning_rate(step, epochs * steps, warmup * steps, 5e-4)
        assert ours == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-9), step


def test_the_rate_falls_at_the_end_of_the_warm_up_as_published() -> None:
    rates = [paper_learning_rate(step, 200 * 277, 10 * 277, 5e-4) for step in (0, 2769, 2770, 200 * 277)]
    assert rates == pytest.approx([1e-6, 4.998e-4, 4.969e-4, 1e-6], rel=1e-4)


def test_plans_of_a_recipe_set_lengths_and_the_warm_up_is_used(project: Project) -> None:
    trainer = paper_trainer(project, epochs=100, warmup_epochs=10, steps_per_epoch=39)
    assert (trainer.num_epochs, trainer.num_iterations_per_epoch, trainer.warmup_steps) == (100, 39, 390)
    trainer.initialize()
    used = []
    for epoch, iteration in ((0, 0), (0, 38), (9, 38), (10, 0), (99, 38)):
        trainer.lr_scheduler.step(epoch, iteration)
        used.append({group["lr"] for group in trainer.optimizer.param_groups})
    wanted = [paper_learning_rate(step, 3900, 390, 5e-4) for step in (0, 38, 389, 390, 3899)]
    assert used == [{rate} for rate in wanted]


def test_an_epoch_suffix_shortens_the_training_not_the_warm_up(project: Project) -> None:
    trainer = paper_trainer(project, f"{NAME}_2epochs", epochs=100, warmup_epochs=10, steps_per_epoch=39)
    assert (trainer.num_epochs, trainer.num_iterations_per_epoch, trainer.warmup_steps) == (2, 39, 390)


def test_other_plans_get_nnunets_epochs_and_steps_and_five_per_cent(project: Project) -> None:
    for plans in (small_plans(project), small_plans(project, architecture=as_ours(encoder="pvt_v2_b0"))):
        trainer = make_trainer(resolve(NAME), project, plans)
        assert (trainer.num_epochs, trainer.num_iterations_per_epoch, trainer.warmup_steps) == (1000, 250, 12_500)
    assert make_trainer(resolve(f"{NAME}_20epochs"), project).warmup_steps == 250


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"epochs": 0}, "epochs in .* is 0"),
        ({"steps_per_epoch": 1.5}, "steps_per_epoch in .* is 1.5"),
        ({"seed": True}, "seed in .* is True"),
        ({"warmup_epochs": 4}, "4 epochs of warm-up and 4 epochs in all"),
        ({"augmentation": "none"}, "choose one of slices, photographs"),
        ({"mine": 1}, "must have exactly"),
    ],
)
def test_settings_that_make_no_sense_are_refused_before_a_folder_is_made(
    change: dict[str, Any], says: str, project: Project, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=says) as caught:
        paper_trainer(project, **change)
    assert "nnunet-gdla recipe NAME --write-plans --overwrite" in str(caught.value)
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize("value", [None, [], "busi"])
def test_a_section_that_is_no_table_is_refused(value: object) -> None:
    with pytest.raises(UserError, match="must have exactly"):
        read_paper_settings({SECTION: value})


def test_the_seed_is_the_plans_or_the_variables(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    assert paper_trainer(project).seed == 42
    assert paper_trainer(project, seed=43).seed == 43
    assert make_trainer(resolve(NAME), project).seed == 42
    first, again, other = (paper_trainer(project, seed=seed) for seed in (42, 42, 43))
    for trainer in (first, again, other):
        trainer.initialize()
    key = "decoder.blocks.0.attention.qkv.weight"
    weights = [next(p for n, p in t.network.named_parameters() if p.ndim > 1) for t in (first, again, other)]
    assert torch.equal(weights[0], weights[1]), key
    assert not torch.equal(weights[0], weights[2])
    monkeypatch.setenv("NNUNET_GDLA_SEED", "7")
    assert paper_trainer(project).seed == 7
    monkeypatch.setenv("NNUNET_GDLA_SEED", "-7")
    with pytest.raises(UserError, match="NNUNET_GDLA_SEED=-7"):
        paper_trainer(project)


@pytest.mark.parametrize("classes", [2, 4])
def test_the_loss_is_the_sum_of_four_at_full_resolution(classes: int) -> None:
    outputs = [torch.randn(2, classes, 64 // s, 64 // s, dtype=torch.float64) for s in (1, 8, 16, 32)]
    target = torch.randint(classes, (2, 1, 64, 64))
    expected = sum(
        boundary_dou_naive(
            functional.interpolate(output, scale_factor=scale, mode="bilinear", align_corners=False), target
        )
        for output, scale in zip(outputs, (1, 8, 16, 32), strict=True)
    )
    found = FullResolutionSum(BoundaryDoULoss())(outputs, [target])
    torch.testing.assert_close(found, torch.as_tensor(expected, dtype=found.dtype))
    assert 1 < found < 4


def test_only_one_dimensional_parameters_and_biases_are_not_decayed(project: Project) -> None:
    trainer = paper_trainer(project)
    trainer.initialize()
    decayed, plain = trainer.optimizer.param_groups
    assert (decayed["weight_decay"], plain["weight_decay"]) == (1e-4, 0.0)
    lambdas = [p for name, p in trainer.network.named_parameters() if "lambda" in name]
    assert lambdas
    assert all(any(p is q for q in decayed["params"]) for p in lambdas if p.ndim > 1)
    assert all(p.ndim <= 1 for p in plain["params"])
    assert trainer.optimizer.defaults["betas"] == (0.9, 0.999)
    assert trainer.gradient_norm == 1.0


@pytest.mark.parametrize("planned", ["stock", "ours"])
def test_the_network_computes_in_float32_under_autocast(planned: str, project: Project) -> None:
    plans = paper_plans(project)
    if planned == "ours":
        plans["configurations"]["2d"]["architecture"] = as_ours(encoder="pvt_v2_b0")
    manager = PlansManager(deepcopy(plans))
    network = resolve(NAME).build_network_architecture(manager, manager.get_configuration("2d"), 1, 3, False)
    kinds = set()
    for module in network.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            module.register_forward_hook(lambda _m, inputs, output: kinds.update({inputs[0].dtype, output.dtype}))
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        assert network.eval()(torch.randn(1, 1, 64, 64)).dtype == torch.float32
    assert kinds == {torch.float32}
    trainer = make_trainer(resolve(NAME), project, plans)
    assert trainer.grad_scaler is None
    assert trainer.float32


def test_a_comparator_keeps_its_decoder(project: Project) -> None:
    trainer = paper_trainer(project, "nnUNetTrainerPVTSelfAttn_B0_Paper_1epoch")
    trainer.initialize()
    plain = make_trainer(resolve("nnUNetTrainerPVTSelfAttn_B0"), project)
    plain.initialize()
    assert trainer.network.state_dict().keys() == plain.network.state_dict().keys()
    assert trainer.num_epochs == 1


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("nnUNetTrainerGDLA_Paper_DiceCE", "_DiceCE contradicts _Paper"),
        ("nnUNetTrainerGDLA_B1_DiceCE_Paper", "_DiceCE contradicts _Paper"),
        ("nnUNetTrainerPVTDiffAttn_Paper_NoMirroring", "_NoMirroring contradicts _Paper"),
        ("nnUNetTrainerGDLA_Paper_DiceCE_NoMirroring_2epochs", "_NoMirroring contradicts _Paper"),
    ],
)
def test_contradictions_are_refused_in_a_sentence(name: str, says: str) -> None:
    with pytest.raises(AttributeError, match=says):
        resolve(name)


def test_a_pass_has_every_slice_once_in_the_steps_of_an_epoch(project: Project) -> None:
    trainer = paper_trainer(project, steps_per_epoch=2)  # four cases, batches of two
    trainer.initialize()
    loader = trainer.get_dataloaders()[0]
    passes = [[next(loader)["keys"] for _ in range(2)] for _ in range(4)]
    named = [[key for keys in one for key in keys] for one in passes]
    assert all(sorted(one) == sorted(named[0]) for one in named)
    assert len(set(named[0])) == 4
    assert len({tuple(one) for one in named}) > 1


def test_batches_depend_on_seed_and_step_only(project: Project) -> None:
    def batches(count: int, *, epoch: int = 0, seed: int = 42, thread: int = 0, workers: int = 1) -> list[Any]:
        trainer = paper_trainer(project, seed=seed)
        trainer.initialize()
        trainer.current_epoch = epoch
        loader = trainer.get_dataloaders()[0].data_loader
        loader.share = trainer._share(workers)
        loader.set_thread_id(thread)
        return [next(loader) for _ in range(count)]

    straight = batches(6)
    resumed, interleaved, other = batches(3, epoch=1), batches(3, thread=1, workers=2), batches(6, seed=1)
    for wanted, found in [*zip(straight[3:], resumed, strict=True), *zip(straight[1::2], interleaved, strict=True)]:
        assert wanted["keys"] == found["keys"]
        assert torch.equal(wanted["data"], found["data"])
        assert torch.equal(wanted["target"], found["target"])
    assert not all(torch.equal(a["data"], b["data"]) for a, b in zip(straight, other, strict=True))


def test_the_best_epoch_has_the_highest_dice_of_whole_cases(project: Project, tmp_path: Path) -> None:
    trainer = paper_trainer(project)
    trainer.initialize()
    trainer.get_dataloaders()
    assert trainer.num_val_iterations_per_epoch == 2
    # Case a: class 1 perfect, class 2 absent with a false positive; case b: halves; case c: nothing to find.
    given = [
        ([10, 0], [0, 7], [0, 0]),
        ([5, 0], [5, 0], [5, 4]),
        ([0, 0], [3, 0], [0, 0]),
    ]
    wanted = (1.0 + (0.5 + 0.0) / 2) / 2
    saved = []
    trainer.logger.plot_progress_png = lambda _folder: None
    trainer.save_checkpoint = lambda name: saved.append((trainer.current_epoch, Path(name).name))
    for epoch, scale in enumerate((1, 0.5, 1.2)):
        trainer.current_epoch = epoch
        trainer.on_epoch_start()
        trainer.logger.log("lrs", 1e-6, epoch)
        trainer.logger.log("train_losses", 3.0, epoch)
        counts = [
            dict(zip(("tp_hard", "fp_hard", "fn_hard"), map(np.array, case), strict=True)) | {"loss": 3.5}
            for case in given
        ]
        for case in counts:
            case["tp_hard"] = case["tp_hard"] * scale
        trainer.on_validation_epoch_end(counts)
        if epoch == 0:
            assert trainer.logger.get_value("mean_fg_dice", step=-1) == pytest.approx(wanted)
        assert trainer.logger.get_value("ema_fg_dice", step=-1) == trainer.logger.get_value("mean_fg_dice", step=-1)
        trainer.on_epoch_end()
    assert saved == [(0, "checkpoint_best.pth"), (2, "checkpoint_best.pth")]
    assert "1 without foreground left out" in Path(trainer.log_file).read_text()


def test_folds_without_any_foreground_stop_with_a_sentence(project: Project) -> None:
    trainer = paper_trainer(project)
    nothing = {"tp_hard": np.zeros(2), "fp_hard": np.ones(2), "fn_hard": np.zeros(2), "loss": 3.0}
    with pytest.raises(TrainingStopped, match=r"no validation case of fold 0 has any foreground \(2 in all\)"):
        trainer.on_validation_epoch_end([nothing, nothing])


def test_absent_classes_are_undefined() -> None:
    counts = [{"tp_hard": [2, 0], "fp_hard": [2, 9], "fn_hard": [0, 0]}]
    np.testing.assert_array_equal(case_dice(counts), [[2 / 3, math.nan]])


def test_whole_validation_cases_are_counted_as_the_network_sees_them(project: Project) -> None:
    trainer = paper_trainer(project)
    trainer.initialize()
    _, whole = trainer.get_dataloaders()
    trainer.network.eval()
    with torch.no_grad():
        for _ in range(len(whole)):
            batch = next(whole)
            data, seg, _, _ = whole.cases.load_case(batch["keys"][0])
            assert batch["data"].shape == (1, 1, *data.shape[2:])  # larger than the patch, so not padded
            found = trainer.validation_step(batch)
            answer = trainer.network(batch["data"])[0].argmax(1)[0].numpy()
            truth = np.maximum(seg[0, 0], 0)
            for place, label in enumerate((1, 2)):
                assert found["tp_hard"][place] == ((answer == label) & (truth == label)).sum()
                assert found["fp_hard"][place] == ((answer == label) & (truth != label)).sum()
                assert found["fn_hard"][place] == ((answer != label) & (truth == label)).sum()
            assert 0 < found["loss"] <= 4


def test_small_images_are_padded_to_the_patch(project: Project) -> None:
    plans = paper_plans(project)
    plans["configurations"]["2d"]["patch_size"] = [160, 160]
    trainer = make_trainer(resolve(NAME), project, plans)
    trainer.initialize()
    loader, whole = trainer.get_dataloaders()
    batch = next(whole)
    assert batch["data"].shape[-2:] == batch["target"].shape[-2:] == (160, 160)
    assert batch["target"].min() == 0
    assert next(loader)["data"].shape == (2, 1, 160, 160)


def marked(size: int = 64) -> dict[str, torch.Tensor]:
    """An image that equals its labels, both of which tell every direction apart."""
    labels = torch.zeros(1, size, size, dtype=torch.int16)
    labels[:, 8:24, 10:50], labels[:, 24:50, 10:20] = 1, 2
    return {"image": labels.float(), "segmentation": labels}


def drawn(transform: Any, count: int) -> list[dict[str, Any]]:  # noqa: ANN401
    np.random.seed(0)  # noqa: NPY002
    return [transform.get_parameters(**marked()) for _ in range(count)]


def test_slices_are_turned_as_often_as_the_paper_turns_them() -> None:
    found = drawn(SliceAugmentation(), 4000)
    flipped, rotated = ([one for one in found if one[key] is not None] for key in ("flip", "degrees"))
    assert len(flipped) / 4000 == pytest.approx(0.5, abs=0.03)
    assert len(rotated) / 4000 == pytest.approx(0.25, abs=0.03)
    assert {one["degrees"] for one in rotated} == set(range(-20, 20))
    assert len({(one["turns"], one["flip"]) for one in flipped}) == 4 * 2
    np.random.seed(1)  # noqa: NPY002
    for _ in range(30):
        made = SliceAugmentation()(**marked())
        assert torch.equal(made["image"], made["segmentation"].float())
        assert set(made["segmentation"].unique().tolist()) == {0, 1, 2}
    wide = {"image": torch.zeros(1, 32, 64), "segmentation": torch.zeros(1, 32, 64)}
    assert {tuple(SliceAugmentation()(**dict(wide))["image"].shape) for _ in range(30)} == {(1, 32, 64)}


def test_photographs_are_changed_as_often_as_the_paper_changes_them() -> None:
    found = drawn(PhotographAugmentation(), 800)
    for key, share in (("degrees", 0.5), ("tone", 0.2), ("kernel", 0.3), ("displacement", 0.3)):
        assert sum(one[key] is not None for one in found) / 800 == pytest.approx(share, abs=0.05), key
    for axis in (-1, -2):
        assert sum(axis in one["flips"] for one in found) / 800 == pytest.approx(0.5, abs=0.05)
    degrees = np.array([one["degrees"] for one in found if one["degrees"] is not None])
    assert -30 <= degrees.min() < -28
    assert 28 < degrees.max() <= 30
    assert {one["kernel"] for one in found} == {None, 3, 5, 7}
    assert max(one["displacement"].abs().max() for one in found if one["displacement"] is not None) < 0.1 / 64


def test_labels_of_photographs_stay_with_their_pixels_and_values_in_0_to_1() -> None:
    np.random.seed(2)  # noqa: NPY002
    for _ in range(40):
        made = PhotographAugmentation()(**marked())
        assert (made["image"].min(), made["image"].max()) == (0, 2)  # the range that it had
        labels = made["segmentation"]
        assert labels.dtype == torch.int16
        assert set(labels.unique().tolist()) <= {0, 1, 2}
        # Where the labels are flat for several pixels, so is the image, brightest where 2 is.
        inner = -functional.max_pool2d((labels != 2).float(), 9, 1, 4) + 1
        if inner.any():
            assert made["image"][inner.bool()].mean() > 1.5
    flat = PhotographAugmentation()(image=torch.full((3, 32, 32), 0.25), segmentation=torch.zeros(1, 32, 32))
    assert torch.equal(flat["image"], torch.full((3, 32, 32), 0.25))
