"""`nnunet-gdla weights convert`: a released checkpoint becomes a model folder of nnU-Net, and plans to train from."""

import argparse
import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nnunet_gdla import __version__
from nnunet_gdla.commands.dataset_json import read_json
from nnunet_gdla.commands.plan import check_patch_size
from nnunet_gdla.commands.weights_compare import DEFAULT_HEADS, USUAL_HEADS
from nnunet_gdla.commands.weights_dataset import Target, find_target
from nnunet_gdla.commands.weights_folder import CHECKPOINT, make_checkpoint, refuse_occupied, write_json, write_model
from nnunet_gdla.commands.weights_kind import Contents, Kind, classify
from nnunet_gdla.commands.weights_plans import choose_normalization, make_plans
from nnunet_gdla.errors import UserError, WriteError
from nnunet_gdla.networks import PVTGDLA
from nnunet_gdla.networks.released_layout import Layout, misfits, read_layout, with_choices
from nnunet_gdla.networks.weights import WEIGHTS_VARIABLE
from nnunet_gdla.networks.weights_file import read_content

__all__ = ["run"]

TRAINERS = {
    "gdla": "nnUNetTrainerGDLA",
    "linear": "nnUNetTrainerPVTLinearAttn",
    "self": "nnUNetTrainerPVTSelfAttn",
    "diff": "nnUNetTrainerPVTDiffAttn",
}
RELEASED_GATE = "sigmoid"


def run(args: argparse.Namespace) -> int:
    """Convert one file and print how to predict with it and train from it; return 0.

    Args:
        args: See `arguments_weights`.

    Raises:
        UserError: If the file is no released checkpoint, damaged or incomplete, or something is in the way; then
            nothing is written.
    """
    if args.dataset is None and args.out is None:
        raise UserError("say where the model goes: -d DATASET for a dataset's place in nnUNet_results, or --out FOLDER")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", args.plans_name) or "__" in args.plans_name:
        raise UserError(f"--plans-name {args.plans_name}: use letters, digits, - and single _ only")
    check_patch_size(args.patch_size)
    file = Path(args.file)
    state, layout, arguments = _read_released(file, args)
    target = find_target(args.dataset, args.dataset_json, args.file_ending, layout)
    trainer = TRAINERS[arguments["decoder"]]
    folder = _folder(args, target, trainer)
    refuse_occupied(folder, overwrite=args.overwrite)
    schemes = choose_normalization(args.normalization, target.content)
    plans = make_plans(
        name=args.plans_name,
        dataset=target.name,
        dataset_json=target.content,
        arguments=arguments,
        schemes=schemes,
        patch_size=args.patch_size,
        spacing=args.spacing,
        batch_size=args.batch_size,
    )
    _refuse_other_plans(target, plans, overwrite=args.overwrite)
    with torch.device("meta"):
        network = PVTGDLA(layout.input_channels, layout.num_classes, **arguments, deep_supervision=True)
    network.load_state_dict(state, assign=True)
    record = {**arguments, "source": file.name, "version": __version__}
    checkpoint = make_checkpoint(network, trainer=trainer, plans=plans, dataset_json=target.content, record=record)
    _write(folder, checkpoint, plans, target)
    _report(folder, target, trainer, args, layout, arguments, schemes)
    return 0


def _read_released(file: Path, args: argparse.Namespace) -> tuple[dict[str, Tensor], Layout, dict[str, Any]]:
    """The tensors in our names, what they tell, and the arguments of their network."""
    contents = classify(read_content(file))
    if contents.kind is not Kind.RELEASED:
        raise UserError(f"{file} is no released PVT-GDLA network but: {contents.kind}; {_instead(file, contents)}")
    state = {
        # Copies, since a tensor may be a part of a larger one, all of which would be saved.
        name: tensor.to(torch.float32 if tensor.is_floating_point() else tensor.dtype, copy=True).contiguous()
        for name, tensor in contents.in_our_names().items()
    }
    try:
        layout = read_layout(state)
        gate = args.gate or (RELEASED_GATE if "gate" in layout.untold else None)
        arguments = with_choices(
            layout,
            decoder=args.decoder,
            gate=gate,
            num_heads=args.num_heads,
            rope=None if args.rope is None else args.rope == "on",
        )
        faults = misfits(state, layout, arguments)
    except ValueError as error:
        raise UserError(f"{file} cannot be converted: {_option_names(str(error))}") from error
    if faults:
        raise UserError(
            f"{file} does not fit {arguments['encoder']} with decoder {arguments['decoder']}: {'; '.join(faults)}; "
            f"nothing was written, download the file again or ask whoever made it"
        )
    return state, layout, arguments


def _instead(file: Path, contents: Contents) -> str:
    if contents.is_encoder:
        return f"trainings start from it with {WEIGHTS_VARIABLE}={shlex.quote(str(file))}"
    if contents.kind in (Kind.NNUNET_OURS, Kind.NNUNET_OTHER):
        return "nnU-Net can use it as it is"
    return "name the file that the authors of PVT-GDLA released"


def _option_names(message: str) -> str:
    if message.endswith("say which one it is"):
        return message.replace("say which one it is", "say which with --decoder self or --decoder linear")
    return message


def _folder(args: argparse.Namespace, target: Target, trainer: str) -> Path:
    if args.out is not None:
        return Path(args.out).absolute()
    results = os.environ.get("nnUNet_results")
    if not results:
        raise UserError(
            "nnUNet_results is not set; export nnUNet_results=/path/to/nnUNet_results, or give --out FOLDER"
        )
    return Path(results).absolute() / target.name / f"{trainer}__{args.plans_name}__2d"


def _refuse_other_plans(target: Target, plans: Mapping[str, Any], *, overwrite: bool) -> None:
    if target.preprocessed is None:
        return
    file = target.preprocessed / f"{plans['plans_name']}.json"
    if file.exists() and not overwrite and read_json(file) != plans:
        raise UserError(f"{file} is there already and says something else; give another --plans-name, or --overwrite")


def _write(folder: Path, checkpoint: Mapping[str, Any], plans: Mapping[str, Any], target: Target) -> None:
    write_model(folder, checkpoint, plans, target.content)
    if target.preprocessed is None:
        return
    try:
        write_json(target.preprocessed / f"{plans['plans_name']}.json", plans)
        if not (target.preprocessed / "dataset.json").exists():
            write_json(target.preprocessed / "dataset.json", target.content)
    except WriteError as error:
        raise error.going_on(f"convert again with --overwrite; the model itself is in {folder}") from error


def _assumed(args: argparse.Namespace, layout: Layout, arguments: Mapping[str, Any]) -> str:
    """A line that names what neither the tensors nor the user say: other values would predict wrongly, silently."""
    assumed = []
    if "num_heads" in layout.untold and args.num_heads is None:
        heads = DEFAULT_HEADS.get(arguments["encoder"], USUAL_HEADS)
        assumed.append(f"heads {', '.join(map(str, heads))} at strides 4, 8, 16 (else --num-heads H4 H8 H16)")
    if "rope" in layout.untold and args.rope is None:
        on, other = ("on", "off") if arguments["rope"] else ("off", "on")
        assumed.append(f"rotary positions {on} (else --rope {other})")
    return f"assumed:       {'; '.join(assumed)}: the tensors cannot tell, ask who trained it\n" if assumed else ""


def _report(
    folder: Path,
    target: Target,
    trainer: str,
    args: argparse.Namespace,
    layout: Layout,
    arguments: Mapping[str, Any],
    schemes: list[str],
) -> None:
    gate = f", gate {arguments['gate']}" if arguments["decoder"] == "gdla" else ""
    said = " (not in the tensors; released networks have it)" if gate and args.gate is None else ""
    print(
        f"network:       PVTGDLA, {arguments['encoder']}, decoder {arguments['decoder']}{gate}{said}, "
        f"input channels {layout.input_channels}, classes {layout.num_classes}\n"
        f"{_assumed(args, layout, arguments)}"
        f"normalisation: {', '.join(schemes)}; spacing {args.spacing[0]:g} {args.spacing[1]:g}, "
        f"patch {args.patch_size[0]} x {args.patch_size[1]}\n"
        f"dataset.json:  {target.origin}\n"
        f"plans:         {args.plans_name}\n"
        f"model:         {folder}\n\n"
        f"predict with it (the released code does not mirror: --disable_tta):\n"
        f"  nnUNetv2_predict_from_modelfolder -i IN -o OUT -m {shlex.quote(str(folder))} -f 0"
    )
    if args.out is None:
        print(f"  nnUNetv2_predict -i IN -o OUT -d {target.number} -c 2d -f 0 -tr {trainer} -p {args.plans_name}")
    if target.preprocessed is None:
        missing = "export nnUNet_preprocessed" if args.dataset is not None else "name the dataset with -d"
        print(f"\nto train from it: {missing} and convert again; the plans have to be in nnUNet_preprocessed")
        return
    print("\ntrain from it (the heads start anew; another length gives the training a folder of its own):")
    if not (target.preprocessed / "dataset_fingerprint.json").exists():
        print(f"  nnUNetv2_extract_fingerprint -d {target.number}")
    print(
        f"  nnUNetv2_preprocess -d {target.number} -plans_name {args.plans_name} -c 2d\n"
        f"  nnUNetv2_train {target.number} 2d 0 -tr {trainer}_150epochs -p {args.plans_name} "
        f"-pretrained_weights {shlex.quote(str(folder / CHECKPOINT))}"
    )
