"""The loss on four outputs: which loss, with which weights, and no silent mismatch."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from nnunetv2.training.loss.compound_losses import DC_and_BCE_loss, DC_and_CE_loss
from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer
from nnunetv2.utilities.label_handling.label_handling import LabelManager
from torch import Tensor, nn

from nnunet_gdla.losses import BoundaryDoULoss
from nnunet_gdla.trainers import resolve
from nnunet_gdla.trainers.nnunet_gdla_supervision import supervise

WEIGHTS = [8 / 15, 4 / 15, 2 / 15, 1 / 15]
SIZES = [(40, 56), (5, 7), (2, 4), (1, 2)]
LABELS: dict[str, tuple[dict[str, Any], list[int] | None]] = {
    "labels": ({"background": 0, "a": 1, "b": 2}, None),
    "labels with ignore": ({"background": 0, "a": 1, "b": 2, "ignore": 3}, None),
    "regions": ({"background": 0, "whole": [1, 2], "core": [2]}, [1, 2]),
    "regions with ignore": ({"background": 0, "whole": [1, 2], "core": [2], "ignore": 3}, [1, 2]),
}


def fake_trainer(kind: str, deep_supervision: bool = True) -> SimpleNamespace:
    """As much of a trainer as a loss is built from."""
    labels, order = LABELS[kind]
    fake = SimpleNamespace(
        label_manager=LabelManager(labels, order),
        configuration_manager=SimpleNamespace(
            batch_dice=True, patch_size=SIZES[0], pool_op_kernel_sizes=[[1, 1]] * 5, configuration={}
        ),
        is_ddp=False,
        enable_deep_supervision=deep_supervision,
        device=torch.device("cpu"),
        _do_i_compile=lambda: False,
    )
    fake._get_deep_supervision_scales = lambda: resolve("nnUNetTrainerGDLA")._get_deep_supervision_scales(fake)
    return fake


def build_loss(name: str, fake: SimpleNamespace) -> Any:  # noqa: ANN401
    return resolve(name)._build_loss(fake)


def outputs_and_targets(labels: LabelManager) -> tuple[list[Tensor], list[Tensor]]:
    generator = torch.Generator().manual_seed(1)
    heads, extra = labels.num_segmentation_heads, int(labels.has_ignore_label)
    outputs = [torch.randn(2, heads, *size, generator=generator, requires_grad=True) for size in SIZES]
    if labels.has_regions:
        return outputs, [torch.rand(2, heads + extra, *size, generator=generator) < 0.4 for size in SIZES]
    return outputs, [torch.randint(0, heads + extra, (2, 1, *size), generator=generator).float() for size in SIZES]


def expected_loss(name: str, labels: LabelManager) -> nn.Module:
    """The single loss, put together from what the name promises."""
    ignore = labels.ignore_label
    if not name.endswith("DiceCE"):
        return BoundaryDoULoss(regions=labels.has_regions, ignore_label=ignore)
    from nnunetv2.training.loss.dice import MemoryEfficientSoftDiceLoss as Dice

    soft_dice = {"batch_dice": True, "smooth": 1e-5, "ddp": False}
    if labels.has_regions:
        return DC_and_BCE_loss({}, soft_dice | {"do_bg": True}, use_ignore_label=ignore is not None, dice_class=Dice)  # type: ignore[no-any-return]
    return DC_and_CE_loss(soft_dice | {"do_bg": False}, {}, ignore_label=ignore, dice_class=Dice)  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", LABELS)
@pytest.mark.parametrize(
    "name", ["nnUNetTrainerGDLA", "nnUNetTrainerGDLA_DiceCE", "nnUNetTrainerPVTSelfAttn_B1_DiceCE"]
)
def test_the_weighted_sum_over_all_outputs(name: str, kind: str) -> None:
    fake = fake_trainer(kind)
    loss, single = build_loss(name, fake), expected_loss(name, fake.label_manager)
    outputs, targets = outputs_and_targets(fake.label_manager)
    value = loss(outputs, targets)
    parts = [weight * single(*pair) for weight, pair in zip(WEIGHTS, zip(outputs, targets, strict=True), strict=True)]
    torch.testing.assert_close(value, torch.stack(parts).sum())
    value.backward()
    assert all(output.grad is not None and output.grad.abs().max() > 0 for output in outputs)


@pytest.mark.parametrize("kind", LABELS)
@pytest.mark.parametrize("name", ["nnUNetTrainerGDLA", "nnUNetTrainerGDLA_DiceCE"])
def test_without_deep_supervision_it_is_the_loss_itself(name: str, kind: str) -> None:
    fake = fake_trainer(kind, deep_supervision=False)
    outputs, targets = outputs_and_targets(fake.label_manager)
    value = build_loss(name, fake)(outputs[0], targets[0])
    torch.testing.assert_close(value, expected_loss(name, fake.label_manager)(outputs[0], targets[0]))


def test_the_stock_loss_would_leave_the_last_output_out() -> None:
    """The reason why the variant does not take nnU-Net's whole loss."""
    stock = nnUNetTrainer._build_loss(fake_trainer("labels"))
    assert stock.weight_factors[-1] == 0
    ours = build_loss("nnUNetTrainerGDLA_DiceCE", fake_trainer("labels"))
    assert ours.weight_factors == pytest.approx(WEIGHTS)
    assert sum(ours.weight_factors) == pytest.approx(1)


def test_ddp_reaches_the_loss() -> None:
    fake = fake_trainer("labels")
    fake.is_ddp = True
    assert build_loss("nnUNetTrainerGDLA", fake).loss.ddp
    assert build_loss("nnUNetTrainerGDLA_DiceCE", fake).loss.dc.ddp
    assert build_loss("nnUNetTrainerGDLA_DiceCE", fake).weight_factors == pytest.approx(WEIGHTS)


@pytest.mark.parametrize("fault", ["target missing", "output missing", "other size", "other order", "both short"])
def test_outputs_and_targets_that_do_not_belong_together_are_refused(fault: str) -> None:
    fake = fake_trainer("labels")
    loss = build_loss("nnUNetTrainerGDLA", fake)
    outputs, targets = outputs_and_targets(fake.label_manager)
    if fault in ("target missing", "both short"):
        targets = targets[:-1]
    if fault in ("output missing", "both short"):
        outputs = outputs[:-1]
    if fault == "other size":
        targets[1] = targets[1][..., :-1]
    if fault == "other order":
        targets[1], targets[2] = targets[2], targets[1]
    with pytest.raises(ValueError, match=r"outputs of sizes .* targets of sizes .* must agree and be 4"):
        loss(outputs, targets)


def test_supervise_wraps_only_where_asked() -> None:
    loss = BoundaryDoULoss()
    assert supervise(loss, False) is loss
    assert supervise(loss, True).loss is loss
