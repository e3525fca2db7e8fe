"""nnUNetTrainerGDLA: the paper's recipe on nnU-Net's data pipeline."""

from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from nnunetv2.training.nnUNetTrainer.nnUNetTrainer import nnUNetTrainer
from nnunetv2.utilities.plans_handling.plans_handler import PlansManager
from torch import Tensor, nn
from torch._dynamo import OptimizedModule

from nnunet_gdla.errors import TrainingStopped, install_excepthook
from nnunet_gdla.layers.kernel_check import compare_kernels
from nnunet_gdla.losses import BoundaryDoULoss
from nnunet_gdla.networks import PVTGDLA
from nnunet_gdla.trainers.nnunet_gdla_checkpoint import (
    changed_plans,
    read_checkpoint,
    refuse_other_network,
    write_checkpoint,
)
from nnunet_gdla.trainers.nnunet_gdla_data import claim_data
from nnunet_gdla.trainers.nnunet_gdla_finite import first_non_finite
from nnunet_gdla.trainers.nnunet_gdla_network import encoder_of, network_builder, refuse_plans
from nnunet_gdla.trainers.nnunet_gdla_pretrained import fill_encoder, require_encoder_weights
from nnunet_gdla.trainers.nnunet_gdla_progress import epoch_bars
from nnunet_gdla.trainers.nnunet_gdla_schedule import WarmupCosine
from nnunet_gdla.trainers.nnunet_gdla_supervision import output_scales, supervise

__all__ = ["nnUNetTrainerGDLA"]

_CUDA = torch.device("cuda")
# AMP starts at 2^16 and halves at each overflow; a training that works stays above 1.
_SMALLEST_LOSS_SCALE = 2.0**-10


class nnUNetTrainerGDLA(nnUNetTrainer):
    """PVT-GDLA trained with AdamW, warm-up and cosine per step, and boundary DoU loss on all four outputs.

    The network is the plans' own where they name one of ours, else PVTGDLA with its defaults. The paper sums four
    losses at full resolution; here each output meets nnU-Net's target at its own resolution, weighted 1, 1/2, 1/4, 1/8
    (over their sum). `NNUNET_GDLA_ENCODER_WEIGHTS` says what the encoder of a fresh training starts from.

    Subclasses may set `decoder` and `encoder` in their class body; `num_epochs`, `num_iterations_per_epoch`,
    `initial_lr` and the like after `super().__init__`, as with any nnU-Net trainer.
    """

    decoder: ClassVar[str] = "gdla"
    encoder: ClassVar[str | None] = None
    gradient_norm: ClassVar[float] = 1.0
    float32: ClassVar[bool] = False

    build_network_architecture = staticmethod(network_builder("gdla", None))

    def __init_subclass__(cls, **kwargs: Any) -> None:  # noqa: ANN401
        super().__init_subclass__(**kwargs)
        own = cls.__dict__
        if own.keys() & {"decoder", "encoder", "float32"} and "build_network_architecture" not in own:
            # A static method, because nnU-Net's predictor calls it on the class; so it cannot look at `cls` itself.
            cls.build_network_architecture = staticmethod(
                network_builder(cls.decoder, cls.encoder, float32=cls.float32)
            )

    def __init__(
        self,
        plans: dict[str, Any],
        configuration: str,
        fold: int | str,
        dataset_json: dict[str, Any],
        device: torch.device = _CUDA,
    ) -> None:
        install_excepthook()
        refuse_plans(PlansManager(deepcopy(plans)), configuration, self.decoder, self.encoder)
        super().__init__(plans, configuration, fold, dataset_json, device)
        self.initial_lr = 5e-4
        self.weight_decay = 1e-4
        self.num_epochs = 250
        self.save_every = 5
        self._iteration = 0

    def initialize(self) -> None:
        """nnU-Net's own; the preprocessed data have to be there, and are marked as read.

        Kernels that `NNUNET_GDLA_FORMS` names are compared with the plain forms now: nothing is compiled yet.

        Raises:
            UserError: If the data are not there, or the variable cannot be read.
        """
        if not self.was_initialized:
            claim_data(self)
        super().initialize()
        image = torch.zeros(1, self.num_input_channels, 64, 64, device=self.device)
        with self._autocast():
            compare_kernels(self._bare_network(), image)

    def _autocast(self) -> AbstractContextManager[Any]:
        return torch.autocast("cuda") if self.device.type == "cuda" and not self.float32 else nullcontext()

    def configure_optimizers(self) -> tuple[torch.optim.Optimizer, WarmupCosine]:
        """AdamW without decay on 1-D parameters, biases and lambda; the schedule reads the counts when it is used."""
        decayed: list[nn.Parameter] = []
        plain: list[nn.Parameter] = []
        for name, parameter in self.network.named_parameters():
            if parameter.requires_grad:
                (decayed if self._is_decayed(name, parameter) else plain).append(parameter)
        groups = [{"params": decayed, "weight_decay": self.weight_decay}, {"params": plain, "weight_decay": 0.0}]
        fused = True if self.device.type == "cpu" else None
        optimizer = torch.optim.AdamW(groups, lr=self.initial_lr, betas=(0.9, 0.999), fused=fused)
        return optimizer, WarmupCosine(
            optimizer, lambda: (self.num_epochs, self.num_iterations_per_epoch, self.initial_lr)
        )

    def _is_decayed(self, name: str, parameter: nn.Parameter) -> bool:
        return parameter.ndim > 1 and "lambda" not in name

    def _get_deep_supervision_scales(self) -> list[list[float]] | None:
        return output_scales(self.configuration_manager.patch_size) if self.enable_deep_supervision else None

    def _build_loss(self) -> nn.Module:
        labels = self.label_manager
        loss = BoundaryDoULoss(
            activation="sigmoid" if labels.has_regions else "softmax",
            ignore_label=labels.ignore_label,
            regions=labels.has_regions,
            ddp=self.is_ddp,
        )
        return supervise(loss, self.enable_deep_supervision)

    def on_train_start(self) -> None:
        """Fill the encoder of a fresh training; a checkpoint or -pretrained_weights has initialised already."""
        if not self.was_initialized:
            require_encoder_weights(
                encoder_of(self.configuration_manager, self.encoder), is_ddp=self.is_ddp, rank=self.local_rank
            )
            self.initialize()
            network = self._bare_network()
            self.print_to_log_file(
                f"network: {type(network).__name__}, encoder {getattr(network, 'encoder_name', 'own')}"
            )
            self.print_to_log_file(fill_encoder(network))
        super().on_train_start()

    def run_training(self) -> None:
        """nnU-Net's own loop, on a terminal with a bar an epoch."""
        with epoch_bars(self):
            super().run_training()

    def _bare_network(self) -> PVTGDLA:
        network = self.network.module if self.is_ddp else self.network
        return network._orig_mod if isinstance(network, OptimizedModule) else network  # type: ignore[return-value]

    def on_train_epoch_start(self) -> None:
        """Set the rate of the epoch's first step and log it with all its digits."""
        super().on_train_epoch_start()
        self._iteration = 0
        # nnU-Net's own line rounds to five decimals, which shows a warm-up as 0.
        self.print_to_log_file(f"learning rate of the first step: {self.optimizer.param_groups[0]['lr']:.6e}")

    def train_step(self, batch: dict[str, Any]) -> dict[str, Any]:
        """One optimiser step at its own learning rate.

        Raises:
            TrainingStopped: If the loss, or without AMP a gradient, is not finite, or CUDA memory runs out.
        """
        self.lr_scheduler.step(self.current_epoch, self._iteration)
        data = batch["data"].to(self.device, non_blocking=True)
        target = [part.to(self.device, non_blocking=True) for part in _as_list(batch["target"])]
        self.optimizer.zero_grad(set_to_none=True)
        try:
            with self._autocast():
                loss = self.loss(self.network(data), target if self.enable_deep_supervision else target[0])
            self._update(loss, batch)
        except torch.OutOfMemoryError as error:
            raise TrainingStopped(self._out_of_memory()) from error
        self._iteration += 1
        return {"loss": loss.detach().cpu().numpy()}

    def _update(self, loss: Tensor, batch: dict[str, Any]) -> None:
        (loss if self.grad_scaler is None else self.grad_scaler.scale(loss)).backward()
        # Looked at behind the backward pass: a look waits for the GPU, which would idle in front of it.
        self._stop_unless_finite(loss.detach(), batch, "training loss")
        parameters = list(self.network.parameters())
        if self.grad_scaler is not None:
            self.grad_scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(parameters, self.gradient_norm)
            # The scaler leaves out a step whose gradients overflow.
            self.grad_scaler.step(self.optimizer)
            self.grad_scaler.update()
            return
        # In two steps: clipping by a norm of NaN would spoil all gradients before anybody could tell which one was bad.
        norm = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        self._stop_unless_finite(norm, batch, "training gradient")
        nn.utils.clip_grads_with_norm_(parameters, self.gradient_norm, norm)
        self.optimizer.step()

    def on_train_epoch_end(self, train_outputs: list[dict[str, Any]]) -> None:
        """Log the epoch's loss, unless the gradients of every step overflowed under AMP.

        Raises:
            TrainingStopped: If the loss scale has fallen to nothing: the scaler left out step after step.
        """
        super().on_train_epoch_end(train_outputs)
        if self.grad_scaler is not None and self.grad_scaler.get_scale() < _SMALLEST_LOSS_SCALE:
            raise TrainingStopped(
                f"no finite gradients in epoch {self.current_epoch} although the losses are finite: AMP's loss scale "
                f"has fallen to {self.grad_scaler.get_scale():.1e}. Nothing was saved from this epoch; check the data "
                f"with 'nnunet-gdla doctor -d {self.plans_manager.dataset_name}'"
            )

    def validation_step(self, batch: dict[str, Any]) -> dict[str, Any]:
        """nnU-Net's own step; its loss has to be finite too.

        Raises:
            TrainingStopped: If it is not, or CUDA memory runs out.
        """
        try:
            result: dict[str, Any] = super().validation_step(batch)
        except torch.OutOfMemoryError as error:
            raise TrainingStopped(self._out_of_memory()) from error
        self._stop_unless_finite(torch.as_tensor(result["loss"], device=self.device), batch, "validation loss")
        return result

    def save_checkpoint(self, filename: str) -> None:
        """nnU-Net's own, in one step: an interrupted training leaves the earlier checkpoint whole.

        Raises:
            TrainingStopped: If it cannot be written.
        """
        save = super().save_checkpoint
        if self.local_rank != 0 or self.disable_checkpointing:
            save(filename)
        else:
            write_checkpoint(Path(filename), lambda unfinished: save(str(unfinished)))

    def load_checkpoint(self, filename_or_checkpoint: str | Path | dict[str, Any]) -> None:
        """nnU-Net's own; a file is looked at first, and what has changed in the plans since is logged.

        Raises:
            UserError: If the file is damaged, or of another network than these plans and dataset.json make.
        """
        if isinstance(filename_or_checkpoint, dict):
            super().load_checkpoint(filename_or_checkpoint)
            return
        content = read_checkpoint(Path(filename_or_checkpoint))
        if not self.was_initialized:
            self.initialize()
        refuse_other_network(str(filename_or_checkpoint), content, self._bare_network().state_dict())
        for change in changed_plans(content, self.plans_manager, self.configuration_name):
            self.print_to_log_file(f"NOTE: the plans are not those of this checkpoint: {change}")
        super().load_checkpoint(str(filename_or_checkpoint))  # by position: its name differs between versions

    def _stop_unless_finite(self, value: Tensor, batch: dict[str, Any], what: str) -> None:
        finite = torch.isfinite(value).all().float()
        here = bool(finite)
        if self.is_ddp:
            # Every rank has to leave together, or the others wait for it for ever.
            dist.all_reduce(finite, op=dist.ReduceOp.MIN)
        if bool(finite):
            return
        found = None if here else self._where_it_began(batch, gradients=what == "training gradient")
        if self.is_ddp:
            # The process that knows tells the others, for whichever speaks first is heard.
            everybody: list[tuple[str, str] | None] = [None] * dist.get_world_size()
            dist.all_gather_object(everybody, found)
            found = next(answer for answer in everybody if answer is not None)
        assert found is not None  # some process has seen the value
        cases, where = found
        raise TrainingStopped(
            f"the {what} is not finite in epoch {self.current_epoch}, step {self._iteration}, cases {cases}; first "
            f"non-finite tensor: {where}. Nothing was saved from this epoch; check these cases with "
            f"'nnunet-gdla doctor -d {self.plans_manager.dataset_name}'"
        )

    def _where_it_began(self, batch: dict[str, Any], *, gradients: bool) -> tuple[str, str]:
        """Case ids of the batch and the first non-finite tensor."""
        cases = [str(case) for case in batch.get("keys", [])]
        network = self._bare_network()
        if self.is_ddp:
            network.eval()  # or its batch normalisation would wait for processes that do not take part
        where = first_non_finite(network, batch["data"].to(self.device), cases, gradients=gradients)
        return ", ".join(cases), where

    def _out_of_memory(self) -> str:
        patch, batch = list(self.configuration_manager.patch_size), self.batch_size
        return (
            f"CUDA ran out of memory with patch size {patch} and batch size {batch}; plan for this GPU with "
            f"'nnUNetv2_plan_experiment -d {self.plans_manager.dataset_name} -pl nnUNetPlannerGDLA "
            f"-gpu_memory_target GB' and train with '-p nnUNetGDLAPlans', or use a smaller "
            f"encoder (nnUNetTrainerGDLA_B0)"
        )


def _as_list(target: Tensor | list[Tensor]) -> list[Tensor]:
    return target if isinstance(target, list) else [target]
