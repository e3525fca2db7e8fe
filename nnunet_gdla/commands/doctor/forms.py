"""Which forms of the operators are named, and which of PyTorch's matrix libraries is faster on this processor."""

import os
import time
from collections.abc import Iterator

from nnunet_gdla.commands.findings import Finding, failed, passed

__all__ = ["check_forms", "check_products"]

ROUNDS = 9
# Below that share of the time the other library is worth setting a variable.
MUCH_FASTER = 0.75
# Rows, inputs and outputs of layers of the network at 224 pixels.
SIZES = ((6272, 64, 256), (1568, 512, 128), (392, 320, 1280))


def check_forms() -> Iterator[Finding]:
    """Say which forms of the operators may run, or why the variable cannot be read."""
    from nnunet_gdla.errors import UserError
    from nnunet_gdla.ops._dispatch import FORMS, FORMS_VARIABLE, is_named

    try:
        named = [form for form in ("triton", "cpu", "plain") if is_named(form)]
    except UserError as error:
        fix = f"unset what it names, or export {FORMS_VARIABLE} with some of {', '.join(FORMS)}"
        yield failed("forms", str(error), fix)
        return
    hint = "nnunet-gdla doctor --gpu compares and times the kernels on this card" if "triton" in named else ""
    how = f"{FORMS_VARIABLE}={os.environ[FORMS_VARIABLE]}" if os.environ.get(FORMS_VARIABLE) else "by default"
    yield passed("forms", f"operators may run as {', '.join(named)} ({how})", hint)


def check_products(device: str) -> Iterator[Finding]:
    """On a CPU, time torch's own matrix products against oneDNN's and say what to set."""
    from nnunet_gdla.ops._products import PRODUCTS_VARIABLE, has_onednn

    title, wish = "matrix products", os.environ.get(PRODUCTS_VARIABLE) or "0"
    if wish not in ("0", "1"):
        yield failed(title, f"{PRODUCTS_VARIABLE}={wish} must be 1 or 0", f"export {PRODUCTS_VARIABLE}=1, or unset it")
    elif not has_onednn():
        fix = f"{PRODUCTS_VARIABLE}=1 has no effect here" if wish == "1" else ""
        yield passed(title, "torch's own; this PyTorch has no oneDNN to choose", fix)
    elif device == "cpu":
        share = _share_of_onednn()
        now = "oneDNN" if wish == "1" else "torch's own"
        detail = f"{now} ({PRODUCTS_VARIABLE}={wish}); oneDNN takes {share:.2f} of the time of torch's own here"
        hint = f"export {PRODUCTS_VARIABLE}=1" if wish == "0" and share < MUCH_FASTER else ""
        hint = f"unset {PRODUCTS_VARIABLE}" if wish == "1" and share > 1 else hint
        yield passed(title, detail, hint)


def _share_of_onednn() -> float:
    """Processor time of one thread over all `SIZES`, of each the best round: what disturbs can only make one slower."""
    import torch
    from torch.nn import functional as F

    from nnunet_gdla.insight import time_alternating
    from nnunet_gdla.ops._products import onednn_linear

    threads, total = torch.get_num_threads(), {"torch": 0.0, "onednn": 0.0}
    torch.set_num_threads(1)
    try:
        for rows, inputs, outputs in SIZES:
            tensors = torch.full((rows, inputs), 0.5), torch.full((outputs, inputs), 0.5), torch.ones(outputs)
            calls = {"torch": lambda x=tensors: F.linear(*x), "onednn": lambda x=tensors: onednn_linear(*x)}
            for name, seconds in time_alternating(calls, repeats=ROUNDS, clock=time.thread_time).items():
                total[name] += min(seconds)
    finally:
        torch.set_num_threads(threads)
    return total["onednn"] / total["torch"]
