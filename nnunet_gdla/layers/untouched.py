"""Whether a module still is what it was made as, so that its weights alone say what it computes."""

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor

__all__ = ["has_hooks", "is_seen", "is_untouched"]

# Weights that mean what they hold; the last two stand for one of the first while a program is traced.
_PLAIN_WEIGHTS = (Tensor, nn.Parameter, FakeTensor, FunctionalTensor)


def is_untouched(*modules: nn.Module | None) -> bool:
    """Whether these are plain layers that nobody has replaced, wrapped or hooked; None counts as plain.

    Adapters, observers and normalised weights (LoRA, quantisation, spectral norm) change a layer's class, hook into its
    call, or put a subclass of Tensor in the place of a weight, which acts in torch's own functions. Such a layer has to
    be called; a plain one may be computed from its weights.
    """
    return all(module is None or (_is_plain(module) and not has_hooks(module)) for module in modules)


def _is_plain(module: nn.Module) -> bool:
    if "forward" in vars(module):  # put in the place of the class's
        return False
    if isinstance(module, (nn.Conv1d, nn.Conv2d, nn.Conv3d)) and module.padding_mode != "zeros":
        return False
    if type(module) not in (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d):
        return False
    return all(part is None or type(part) in _PLAIN_WEIGHTS for part in (module.weight, module.bias))


def has_hooks(module: nn.Module) -> bool:
    """Whether calling the module does more than its `forward`; hooks on all modules at once are those of profilers."""
    own = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return any(own)


def is_seen(*modules: nn.Module | None) -> bool:
    """Whether somebody else may hold what these were given or returned: through hooks, those on all modules too."""
    return not is_untouched(*modules) or bool(torch.nn.modules.module._has_any_global_hook())
