"""Arguments of `nnunet-gdla efficiency`; standard library only."""

import argparse

__all__ = ["DEFAULT_NETWORKS", "DETAILS", "NETWORKS", "RIVAL", "SUMMARY", "efficiency"]

RIVAL = "nnunet"
_DECODERS, _ENCODERS = ("gdla", "linear", "self", "diff"), ("b0", "b1", "b2", "b3", "b4", "b5")
NETWORKS = (
    *(f"{decoder}-{encoder}" for decoder in _DECODERS for encoder in _ENCODERS),
    RIVAL,
    "nnunet-resenc",
)
DEFAULT_NETWORKS = ("gdla-b0", "gdla-b2", "linear-b2", "self-b2", "diff-b2", RIVAL, "nnunet-resenc")

SUMMARY = "parameters, multiply-adds and time of our networks and nnU-Net's"
DETAILS = f"""\
Prints a Markdown table of parameters, multiply-adds of all products (convolutions, linear layers, linear and softmax
attention) and measured time per image. Times are medians of rounds that alternate between the networks, in one process;
"forward / {RIVAL}" is the median over rounds of the time over that of nnU-Net's default 2D network.

networks:
  gdla-b0 ... gdla-b5        PVT-GDLA with that PVTv2 encoder; b2 is the paper's
  linear-, self-, diff-b2    linear, softmax, softmax differential attention in the decoder; b0 to b5 too
  {RIVAL}                     nnU-Net's default 2D U-Net, with the depth that nnU-Net plans for the size
  nnunet-resenc              nnU-Net's residual encoder U-Net, likewise

examples:
  nnunet-gdla efficiency
  nnunet-gdla efficiency --sizes 224 --networks gdla-b0 gdla-b2 nnunet --training
  nnunet-gdla efficiency --sizes 256 512 --channels 3 --classes 2 --no-time --out table.csv
  nnunet-gdla efficiency --threads 1 --clock cpu
  nnunet-gdla efficiency --device cuda --batch 8 --repeats 50"""


def efficiency(parser: argparse.ArgumentParser) -> None:
    """Add the arguments."""
    add = parser.add_argument
    add(
        "--sizes",
        metavar="PIXELS",
        nargs="+",
        type=int,
        default=[224, 256, 512],
        help="edges of square images (default: 224 256 512)",
    )
    add(
        "--networks",
        metavar="NAME",
        nargs="+",
        choices=NETWORKS,
        default=list(DEFAULT_NETWORKS),
        help=f"default: {' '.join(DEFAULT_NETWORKS)}",
    )
    add("--channels", metavar="N", type=int, default=1, help="channels of the images (default: %(default)s)")
    add("--classes", metavar="N", type=int, default=9, help="classes with background (default: %(default)s)")
    add("--batch", metavar="N", type=int, default=1, help="images timed together (default: %(default)s)")
    add("--device", choices=("cpu", "cuda", "mps"), default="cpu", help="where to time (default: %(default)s)")
    add("--threads", metavar="N", type=int, default=None, help="threads on the CPU (default: torch's choice)")
    add(
        "--clock",
        choices=("wall", "cpu"),
        default="wall",
        help="cpu: processor time of all threads, for a machine that others use too (default: %(default)s)",
    )
    add("--repeats", metavar="N", type=int, default=10, help="rounds of timing (default: %(default)s)")
    add("--training", action="store_true", help="also time forward and backward with deep supervision")
    add("--no-time", action="store_true", help="count only, about 15 seconds for the default sizes and networks")
    add("--out", metavar="FILE.csv", default=None, help="write the table as CSV too, with all numbers in full")
