"""Order of the slides, windows of accumulated gradients, decay groups, and which epoch is the best."""

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
import torch
from torch import nn

from nnunet_gdla.errors import UserError
from nnunet_gdla.mil.bundle_info import BundleInfo
from nnunet_gdla.mil.data import EpochSampler, EverySlideOnce, SlideBags, Visit, slide_loader
from nnunet_gdla.mil.fit import fit
from nnunet_gdla.mil.models import build_model
from nnunet_gdla.mil.module import SlideModule
from nnunet_gdla.mil.optimiser import parameter_groups
from nnunet_gdla.mil.tasks import SlideLoss, best_epoch, class_weights, sampling_weights, training_logits
from nnunet_gdla.ops import _self_check, use_forms
from tests.fake_kernels import right_kernels
from tests.mil.small_cohorts import make_cohort, small_config

pytestmark = pytest.mark.usefixtures("no_figures")

INFO = BundleInfo("classification", "slide_transformer", {}, 8, 2, classes=("a", "b"))


def of_rank(
    monkeypatch: pytest.MonkeyPatch, rank: int, world: int, sampler: EpochSampler | EverySlideOnce
) -> list[Visit]:
    monkeypatch.setattr("nnunet_gdla.mil.data.process_rank", lambda: (rank, world))
    visits = list(sampler)
    assert len(visits) == len(sampler)
    return visits


def test_the_order_comes_from_seed_and_epoch_alone() -> None:
    sampler, other = EpochSampler(10, 4, seed=3), EpochSampler(10, 4, seed=3)
    first = sampler.order()
    sampler.set_epoch(1)
    assert sampler.order() != first
    other.set_epoch(1)
    assert other.order() == sampler.order()
    assert sorted(first) == list(range(10))
    assert EpochSampler(10, 4, seed=4).order() != first


def test_the_last_window_is_divided_by_its_own_size() -> None:
    visits = list(EpochSampler(10, 4, seed=0))
    assert [visit.share for visit in visits] == [1 / 4] * 8 + [1 / 2] * 2
    assert [visit.position for visit in visits if visit.last] == [3, 7, 9]
    assert EpochSampler(10, 4, seed=0).optimiser_steps() == 3


@pytest.mark.parametrize(("count", "accumulate", "world"), [(10, 4, 2), (13, 16, 3), (7, 1, 2), (5, 3, 4)])
def test_processes_share_every_window_and_step_together(
    count: int, accumulate: int, world: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampler = EpochSampler(count, accumulate, seed=1, world=world)
    alone = {v.position: (v.number, v.share) for v in EpochSampler(count, max(accumulate, world), seed=1)}
    ranks = [of_rank(monkeypatch, rank, world, sampler) for rank in range(world)]
    worked = [visit for visits in ranks for visit in visits if visit.number >= 0]
    assert {v.position: (v.number, v.share) for v in worked} == alone
    assert len(worked) == count
    assert all([v.last for v in visits] == [v.last for v in ranks[0]] for visits in ranks)
    assert sum(visit.last for visit in ranks[0]) == sampler.optimiser_steps()


@pytest.mark.parametrize("world", [1, 2, 3])
def test_evaluation_takes_every_slide_once(world: int, monkeypatch: pytest.MonkeyPatch) -> None:
    visits = [v.number for rank in range(world) for v in of_rank(monkeypatch, rank, world, EverySlideOnce(7))]
    assert sorted(visits) == list(range(7))


def test_balanced_sampling_draws_classes_equally_often() -> None:
    table = pd.DataFrame({"label": ["a"] * 90 + ["b"] * 10})
    sampler = EpochSampler(100, 4, 0, sampling_weights(table, "classification"))
    drawn = []
    for epoch in range(20):
        sampler.set_epoch(epoch)
        drawn += [table["label"][number] for number in sampler.order()]
    assert 0.45 < drawn.count("b") / len(drawn) < 0.55


def test_a_window_equals_the_mean_loss_of_its_slides(tmp_path: Path) -> None:
    """One epoch of six slides in windows of four, against a plain loop with AdamW."""
    make_cohort(tmp_path, "classification", slides=10)
    config = small_config(
        tmp_path, "classification", epochs=1, accumulate=4, clip_norm=None, model={"name": "abmil"}, patience=None
    )
    fit(config, run=tmp_path / "run")
    trained = torch.load(tmp_path / "run" / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]

    from nnunet_gdla.mil.prepare import prepare
    from nnunet_gdla.mil.schedule import warmup_cosine, warmup_steps
    from nnunet_gdla.mil.slides import read_slide

    table = prepare(config).tables["train"]
    torch.manual_seed(0)
    model = build_model("abmil", 16, 2)
    order = EpochSampler(len(table), 4, 0).order()
    assert len(order) % 4
    optimiser = torch.optim.AdamW(
        parameter_groups(model, config.train.weight_decay, decay_norms_and_biases=False), lr=config.train.lr
    )
    total = -(-len(order) // 4)
    for step in range(total):
        window = order[4 * step : 4 * step + 4]
        losses = []
        for number in window:
            logits = model(read_slide(table["path"][number]).features[None])
            losses.append(nn.functional.cross_entropy(logits, torch.tensor([int(table["label"][number] == "b")])))
        torch.stack(losses).mean().backward()
        for group in optimiser.param_groups:
            group["lr"] = config.train.lr * warmup_cosine(step, total, warmup_steps(total, 0.05))
        optimiser.step()
        optimiser.zero_grad()
    for name, tensor in model.named_parameters():
        if optimiser.state[tensor]["exp_avg"].abs().max() < 1e-7:
            continue  # the softmax does not see this bias: its gradient is rounding, which Adam blows up
        torch.testing.assert_close(trained[f"model.{name}"], tensor, rtol=1e-4, atol=1e-6)


def names_of(model: nn.Module, group: Sequence[torch.Tensor]) -> set[str]:
    ids = set(map(id, group))
    return {name for name, parameter in model.named_parameters() if id(parameter) in ids}


def test_released_decay_leaves_out_gate_biases_only() -> None:
    model = build_model("slide_transformer", 8, 2, width=24, depth=2, num_heads=2)
    decayed, kept = parameter_groups(model, 0.05, decay_norms_and_biases=True)
    assert (decayed["weight_decay"], kept["weight_decay"]) == (0.05, 0.0)
    left_out = names_of(model, kept["params"])
    assert left_out
    assert all(".gate." in name and "bias" in name for name in left_out), left_out
    assert {"norm.weight", "norm.bias", "head.bias"} <= names_of(model, decayed["params"])
    assert len(decayed["params"]) + len(kept["params"]) == len(list(model.parameters()))


def test_own_data_decay_leaves_out_norms_and_biases_too() -> None:
    model = build_model("slide_transformer", 8, 2, width=24, depth=2, num_heads=2)
    decayed, _ = parameter_groups(model, 0.05, decay_norms_and_biases=False)
    names = names_of(model, decayed["params"])
    assert not any("bias" in name or "norm" in name for name in names), names
    assert any(".gate." in name for name in names)  # weights of the gate stay decayed


def test_learned_coefficients_never_decay() -> None:
    model = build_model("slide_transformer", 8, 2, width=24, depth=2, num_heads=2, correction="fixed:learned")
    _, kept = parameter_groups(model, 0.05, decay_norms_and_biases=True)
    assert any(name.endswith("beta") for name in names_of(model, kept["params"]))


def test_class_weights_average_to_one_over_the_slides() -> None:
    table = pd.DataFrame({"label": ["a"] * 3 + ["b"]})
    assert class_weights("balanced", table, ("a", "b")) == pytest.approx((4 / 6, 2.0))
    assert class_weights([1.0, 3.0], table, ("a", "b")) == pytest.approx((2 / 3, 2.0))
    assert class_weights(None, table, ("a", "b")) == ()
    with pytest.raises(UserError, match="give 2 numbers, for a, b"):
        class_weights([1.0], table, ("a", "b"))


def test_a_class_weight_is_not_cancelled_by_the_single_slide() -> None:
    table = pd.DataFrame({"label": ["a", "b"]})
    logits = [torch.tensor([[0.3, -0.2]])]
    plain, weighted = SlideLoss.of(table, INFO), SlideLoss.of(table, INFO, (0.5, 1.5))
    assert weighted(logits, 1).item() == pytest.approx(1.5 * plain(logits, 1).item())


def test_dsmil_trains_bag_and_instances() -> None:
    model = build_model("dsmil", 8, 2)
    assert len(training_logits(model, {"features": torch.randn(1, 5, 8)})) == 2
    assert len(training_logits(build_model("abmil", 8, 2), {"features": torch.randn(1, 5, 8)})) == 1


def history(metric: list[float], loss: list[float]) -> list[dict[str, float | int]]:
    return [{"val_loss": a, "val_c_index": b} for a, b in zip(loss, metric, strict=True)]


def test_of_equally_good_epochs_the_one_with_the_lower_loss_is_the_best() -> None:
    assert best_epoch(history([0.5, 0.7, 0.7, 0.6], [4.0, 3.0, 2.0, 1.0]), "c_index") == 2
    assert best_epoch(history([0.7, 0.7, 0.7], [2.0, 3.0, 2.0]), "c_index") == 0  # equal in both: the earliest
    nan = float("nan")
    assert best_epoch(history([nan, nan, nan], [3.0, 2.0, 2.0]), "c_index") == 1


def test_an_undefined_metric_hands_over_to_the_loss_throughout() -> None:
    nan = float("nan")
    assert best_epoch(history([0.9, nan, 0.5], [3.0, 2.0, 1.0]), "c_index") == 2
    assert best_epoch(history([nan, 0.9, 0.5], [1.0, 2.0, 1.0]), "c_index") == 0
    assert best_epoch(history([0.9, 0.1], [3.0, 2.0]), "loss") == 1


def test_selection_by_an_unknown_metric_lists_the_known_ones(tmp_path: Path) -> None:
    make_cohort(tmp_path, "classification", slides=16)
    with pytest.raises(UserError, match="no metric 'f1'; choose one of loss, accuracy, balanced_accuracy"):
        fit(small_config(tmp_path, "classification", epochs=1, select="f1"), run=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("workers", [0, 1])
def test_a_reader_in_another_process_says_the_same_sentence(workers: int, tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    path.write_bytes(b"no h5 file")
    bags = SlideBags({"a": path}, ["a"], {})
    with pytest.raises(UserError) as direct:
        bags.read(0)
    with pytest.raises(UserError) as caught:
        list(slide_loader(bags, EverySlideOnce(1), workers=workers, pin_memory=False))
    assert str(caught.value) == str(direct.value)
    assert str(path) in str(caught.value)


def test_named_kernels_are_compared_before_the_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    right_kernels(monkeypatch)
    model = build_model("slide_transformer", 8, 2, width=32, depth=2, num_heads=2, num_landmarks=4)
    precision = SimpleNamespace(forward_context=nullcontext)
    trainer = SimpleNamespace(precision_plugin=precision)
    module = SimpleNamespace(model=model, info=INFO, device=torch.device("cpu"), trainer=trainer)
    with use_forms("triton"):
        SlideModule.on_train_start(module)
    assert {operator for operator, _ in _self_check._verdicts} == {"alignment", "correction"}
