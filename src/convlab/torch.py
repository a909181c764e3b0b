"""``Conv1d``, ``Conv2d``, ``Conv3d``: PyTorch's layers, with any stage of the ladder as their
convolution and its gradients; ``replace`` puts them into a model, and ``prepare`` compiles a
model's kernels before its first call. ``fuse`` makes a model for inference, of ``FusedConv2d``.

``running/torch_layers.py`` has the layers, ``running/torch_operators.py`` the operators that they
call.
"""

from convlab.running.torch_fuse import fuse
from convlab.running.torch_fused import FusedConv2d
from convlab.running.torch_layers import Conv1d, Conv2d, Conv3d, Replaced, replace
from convlab.running.torch_operators import conv2d, input_gradient, weight_gradient
from convlab.running.torch_prepare import prepare

__all__ = [
    "Conv1d", "Conv2d", "Conv3d", "FusedConv2d", "Replaced", "conv2d", "fuse", "input_gradient",
    "prepare", "replace", "weight_gradient",
]  # fmt: skip
