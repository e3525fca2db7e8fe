"""Arguments of `nnunet-gdla weights`; standard library only."""

import argparse

__all__ = ["DETAILS", "PLANS_NAME", "SUMMARY", "weights"]

SUMMARY = "fetches encoder weights, says what is in a file, makes an nnU-Net model of a released checkpoint"
DETAILS = """\
fetch    downloads the ImageNet weights of the encoders, for compute nodes without internet: run it on the login node
show     says what is in a file: encoder weights, a released checkpoint, an nnU-Net checkpoint, plans; runs none of it
convert  makes of a checkpoint released by the authors of PVT-GDLA a model folder for nnU-Net, and plans to train from

examples:
  nnunet-gdla weights fetch
  nnunet-gdla weights fetch -e pvt_v2_b0 pvt_v2_b2 --to /shared/weights
  nnunet-gdla weights show pvt_v2_b2.safetensors
  nnunet-gdla weights convert released.pth --out released_model
  nnunet-gdla weights convert released.pth -d 7 --gate sigmoid"""

ENCODERS = ("pvt_v2_b0", "pvt_v2_b1", "pvt_v2_b2", "pvt_v2_b3", "pvt_v2_b4", "pvt_v2_b5")
NORMALIZATIONS = ("auto", "ct-window", "rgb", "minmax", "zscore", "none")
PLANS_NAME = "nnUNetGDLAReleasedPlans"

_FETCH = """\
Puts timm's file into the cache of the Hugging Face hub (or a folder), looks whether all of it fits, and says what to
set on the compute nodes. What is in the cache already is not downloaded again.

examples:
  nnunet-gdla weights fetch
  nnunet-gdla weights fetch -e pvt_v2_b0 pvt_v2_b2
  nnunet-gdla weights fetch --to /shared/weights"""

_SHOW = """\
Says what kind of file it is, its tensors, encoder, channels, classes, decoder, gate and heads as far as they can be
told, values that are not finite, epoch, trainer and plans, and what the file is good for. Reads tensors and plain
values only: a file that would run code is refused. Next to an nnU-Net checkpoint the model folder's plans are looked
at too: weights trained with one gate run with another without any error, and predict wrongly.

examples:
  nnunet-gdla weights show pvt_v2_b2.safetensors
  nnunet-gdla weights show released.pth
  nnunet-gdla weights show fold_0/checkpoint_final.pth fold_1/checkpoint_final.pth"""

_CONVERT = """\
Writes plans.json, dataset.json and fold_0/checkpoint_final.pth. With -d they go to the dataset's place in
nnUNet_results, and the plans also into nnUNet_preprocessed, to train from; with --out they go to that folder.

The tensors tell encoder, decoder, channels, classes and most sizes. They cannot tell the gate (released networks:
sigmoid), nor softmax from linear attention (give --decoder), nor these two's heads (assumed: channels / 32) and rotary
positions (assumed: on for self and diff, off for linear). What is assumed is printed; with other values the network
predicts wrongly without an error, so state --num-heads and --rope where you know them.

Normalisation, where "auto" takes ct-window for channels called CT, rgb for three channels of photographs, otherwise
what nnU-Net does with the channel's name (mostly zscore):
  ct-window  clips to [-125, 275] HU and scales to [0, 1], exactly as for the released Synapse networks
  rgb        divides by 255; the released networks of photographs scaled each image by its own minimum and maximum
  minmax     each channel of each image to [0, 1]
The released networks saw whole images resized to 224 x 224; nnU-Net resizes by spacing and predicts in patches. Let
--spacing be what one of the 224 pixels is wide: for photographs of 450 x 600 pixels 2.009 2.679 (edge / 224), for a CT
slice of 512 pixels of 0.75 mm 1.714 1.714. The released code predicts without mirroring: --disable_tta.

examples:
  nnunet-gdla weights convert synapse.pth --out synapse_model --normalization ct-window --spacing 1.714 1.714
  nnunet-gdla weights convert released.pth -d 7
  nnunet-gdla weights convert released.pth -d Dataset112_BUSI --gate silu --plans-name nnUNetSiluPlans
  nnunet-gdla weights convert selfattn.pth --out model --decoder self --num-heads 2 4 10 --dataset-json dataset.json"""


def weights(parser: argparse.ArgumentParser) -> None:
    """Add the actions and their options; `args.action` names the one that was asked for."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True, title="actions")
    for name, summary, details, add_options in (
        ("fetch", "download the encoders' ImageNet weights", _FETCH, _fetch_options),
        ("show", "say what is in a file", _SHOW, _show_options),
        ("convert", "make an nnU-Net model folder of a released checkpoint", _CONVERT, _convert_options),
    ):
        add_options(
            actions.add_parser(
                name, help=summary, description=details, formatter_class=argparse.RawDescriptionHelpFormatter
            )
        )


def _fetch_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "-e",
        "--encoder",
        nargs="+",
        choices=ENCODERS,
        default=["pvt_v2_b2"],
        metavar="ENCODER",
        help=f"{', '.join(ENCODERS)} (default: pvt_v2_b2)",
    )
    add("--to", metavar="FOLDER", help="copy the files there (default: they stay in the cache of the hub)")


def _show_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", metavar="FILE", help="any file of weights, or a plans or dataset.json file")


def _convert_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("file", metavar="FILE", help="the released checkpoint")
    add("-d", "--dataset", metavar="DATASET", help="number or name of the dataset that the model is for")
    add("--out", metavar="FOLDER", help="model folder to write (default: the dataset's place in nnUNet_results)")
    add("--dataset-json", metavar="FILE", help="labels and channels (default: the dataset's own; without -d made up)")
    add("--decoder", choices=("gdla", "linear", "self", "diff"), help="needed for linear and self")
    add("--gate", choices=("sigmoid", "silu"), help="of decoder gdla (default: sigmoid, as released)")
    add(
        "--num-heads",
        nargs=3,
        type=int,
        metavar=("H4", "H8", "H16"),
        help="heads at strides 4, 8, 16 of linear and self (assumed: channels / 32)",
    )
    add("--rope", choices=("on", "off"), help="rotary positions (assumed: on for self and diff, off for linear)")
    add("--plans-name", default=PLANS_NAME, metavar="NAME", help="default: %(default)s")
    add("--normalization", choices=NORMALIZATIONS, default="auto", help="see above (default: %(default)s)")
    add(
        "--patch-size",
        nargs=2,
        type=int,
        default=(224, 224),
        metavar=("H", "W"),
        help="multiples of 32 (default: 224 224)",
    )
    add("--spacing", nargs=2, type=float, default=(1.0, 1.0), metavar=("Y", "X"), help="see above (default: 1 1)")
    add("--batch-size", type=int, default=8, metavar="N", help="for training from it (default: %(default)s)")
    add("--file-ending", metavar="ENDING", help="of the images, where dataset.json is made up (default: .png, .nii.gz)")
    add("--overwrite", action="store_true", help="replace what an earlier conversion wrote")
