"""Peak memory and time of one training step of the default slide model on a huge bag, on the CPU, in fresh processes.

    python -m benchmarks.bag_memory [--patches 100000] [--correction srp] [--attention nystrom]

Each line is a process of its own: a float16 bag, forward, backward and an AdamW step, with and without activation
checkpointing. The peak is the resident set of the whole process as the operating system counts it, Python and torch
(about 0.3 GB) included.
"""

import argparse
import json
import resource
import subprocess
import sys
import time

import torch

from nnunet_gdla.mil.models.slide_transformer import SlideTransformer


def main() -> None:
    """Measure in this process, or start one process for each line of the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--patches", type=int, default=100_000)
    parser.add_argument("--in-dim", type=int, default=1536)
    parser.add_argument("--attention", default="nystrom")
    parser.add_argument("--correction", default="srp")
    parser.add_argument("--one", choices=["with", "without"], help="measure in this process")
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(arguments)))
        return
    print(f"{arguments.patches} patches x {arguments.in_dim} float16, {arguments.attention}, {arguments.correction}")
    print(f"{'checkpointing':<15}{'peak GB':>9}{'at start GB':>13}{'seconds':>9}")
    for one in ("with", "without"):
        command = [sys.executable, "-m", "benchmarks.bag_memory", *sys.argv[1:], "--one", one]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        print(f"{one:<15}{found['peak']:>9.2f}{found['start']:>13.2f}{found['seconds']:>9.1f}")


def measure(arguments: argparse.Namespace) -> dict[str, float]:
    """Run one step and return the peak of this process and the peak before it, in GB, and the seconds."""
    torch.manual_seed(0)
    model = SlideTransformer(
        arguments.in_dim, 4, attention=arguments.attention, correction=arguments.correction
    ).train()
    model.set_grad_checkpointing(arguments.one == "with")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    side = int(arguments.patches**0.5) + 1
    rows = torch.arange(arguments.patches)
    coords = torch.stack([rows % side, rows // side], dim=-1)[None] * 512
    features = torch.empty(1, arguments.patches, arguments.in_dim, dtype=torch.float16)
    for part in features.split(4096, 1):
        part.normal_()
    start = peak()
    began = time.perf_counter()
    loss = torch.nn.functional.cross_entropy(model(features, coords, 512.0), torch.tensor([1]))
    loss.backward()
    optimizer.step()
    return {"start": start, "peak": peak(), "seconds": time.perf_counter() - began}


def peak() -> float:
    """Return the largest resident set so far, in GB of 10^9 bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


if __name__ == "__main__":
    main()
