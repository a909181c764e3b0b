"""A model for inference: ``convlab.torch.fuse``.

torch.fx traces the model. In its graph a convolution, the batch norm after it, the addition of
another tensor and ReLU become one layer, :class:`~convlab.running.torch_fused.FusedConv2d`.
"""

from __future__ import annotations

import copy
import operator
from typing import NamedTuple

import torch
from torch import nn
from torch.fx import Graph, GraphModule, Node

from convlab.ladder import stage_named
from convlab.running.engines import choose
from convlab.running.torch_fused import FusedConv2d
from convlab.running.torch_layers import Conv2d
from convlab.support.values import shown

_CONVOLUTIONS = (nn.Conv2d, Conv2d)  # their own classes: a derived one may compute something else
_ADDITIONS: tuple[object, ...] = (operator.add, operator.iadd, torch.add)
_RELUS: tuple[object, ...] = (torch.relu, torch.relu_, nn.functional.relu, nn.functional.relu_)
_WRITING: tuple[object, ...] = (
    operator.iadd, operator.isub, operator.imul, operator.itruediv, operator.setitem,
)  # fmt: skip


class _Chain(NamedTuple):
    """The nodes of the graph that become one layer: ``last`` is the one whose value it returns."""

    convolution: Node
    norm: Node | None
    residual: Node | None
    relu: bool
    last: Node


def fuse(model: nn.Module, stage: str = "auto", engine: str = "auto") -> GraphModule:
    """Return a copy of ``model`` for inference, in evaluation mode, whose convolutions do more in
    one kernel: the batch norm after a ``torch.nn.Conv2d`` is folded into its weight and bias, and
    the addition of another tensor and ReLU after that become part of the layer,
    ``relu(conv2d(x, weight) + bias + other)``.

    The layers are convlab's, of that stage and engine; they have no derivatives. Fuse a model in
    float32, in which norms are folded, then move it: ``fuse(model).to("cuda", torch.bfloat16,
    memory_format=torch.channels_last)``. In 16 bits a stage adds the residual and applies ReLU. In
    float32 PyTorch adds the residual, and applies ReLU to such sums. Convolutions with groups, with
    a ``padding_mode`` other than zeros, of derived classes and with hooks stay as they are, and so
    does all else.

    The model is traced by torch.fx, whose limits apply: raises ``ValueError`` with torch.fx's
    reason for a model whose control flow depends on its tensors, and for one that cannot be copied.
    Raises ``TypeError`` for a model
    that is not a ``torch.nn.Module``, ``ValueError`` for an unknown stage or engine.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model is {shown(model)}: it must be a torch.nn.Module")
    if stage != "auto":
        stage_named(stage)
    choose(engine)
    try:
        copied = copy.deepcopy(model).eval()
    except Exception as error:  # a model may raise anything
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise ValueError(f"the model cannot be fused, because it cannot be copied: {reason}") from (
            error
        )
    try:
        traced = torch.fx.symbolic_trace(copied)
    except Exception as error:  # a model may raise anything
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise ValueError(f"the model cannot be fused, because torch.fx: {reason}") from error
    modules = dict(traced.named_modules())  # as they were
    named: set[str] = set()
    for node in _convolutions(traced.graph, modules):
        chain = _chain_from(node, modules)
        layer = FusedConv2d(_folded(chain, modules), chain.relu, stage, engine).eval()
        name = _free_name(str(node.target), named, modules)
        named.add(name)
        traced.add_submodule(name, layer)
        _replace(traced.graph, chain, name)
    traced.graph.lint()
    traced.delete_all_unused_submodules()
    traced.recompile()
    return traced


def _convolutions(graph: Graph, modules: dict[str, nn.Module]) -> list[Node]:
    """Return the nodes to fuse, in order: calls of convolutions whose parameters and calls are all
    such ones."""
    found = [node for node in graph.nodes if _is_convolution(node, modules)]
    others = {str(node.target) for node in graph.nodes if node not in found}
    names = {one.rpartition(".")[0] for one in others} | others
    return [node for node in found if str(node.target) not in names]


def _is_convolution(node: Node, modules: dict[str, nn.Module]) -> bool:
    layer = _module(node, modules)
    return (
        isinstance(layer, nn.Conv2d)
        and type(layer) in _CONVOLUTIONS
        and not _has_hooks(layer)
        and layer.groups == 1
        and layer.padding_mode == "zeros"
        and len(node.args) == 1
        and not node.kwargs
    )


def _module(node: Node, modules: dict[str, nn.Module]) -> nn.Module | None:
    """Return the module that a node calls; None for any other node."""
    return modules.get(str(node.target)) if node.op == "call_module" else None


def _chain_from(node: Node, modules: dict[str, nn.Module]) -> _Chain:
    """Return what can be fused after a convolution: each next node must be its only user."""
    norm, residual, relu, last = None, None, False, node
    user = _only_user(last)
    if user is not None and _is_norm(_module(user, modules)):
        norm = last = user
        user = _only_user(last)
    if user is not None and (other := _added_to(last, user)) is not None:
        # The layer computes where the sum was computed, later than the convolution: until then
        # nothing may change the convolution's input.
        if not any(_may_write(one, modules) for one in _between(node, user)):
            residual, last = other, user
            user = _only_user(last)
    if user is not None and _is_relu(user, modules):
        relu, last = True, user
    return _Chain(node, norm, residual, relu, last)


def _only_user(node: Node) -> Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None


def _is_norm(module: nn.Module | None) -> bool:
    if not isinstance(module, nn.BatchNorm2d) or type(module) is not nn.BatchNorm2d:
        return False  # a derived class may compute something else
    if _has_hooks(module):
        return False
    return module.running_mean is not None


def _is_relu(node: Node, modules: dict[str, nn.Module]) -> bool:
    if node.op == "call_method":
        return node.target in ("relu", "relu_")
    if node.op == "call_function":
        return node.target in _RELUS
    module = _module(node, modules)
    return type(module) is nn.ReLU and not _has_hooks(module)


def _has_hooks(module: nn.Module) -> bool:
    """Return whether a call of the module does more than its class: PyTorch's pruning and older
    norms of weights are such hooks, too."""
    return bool(module._forward_hooks or module._forward_pre_hooks)


def _added_to(node: Node, user: Node) -> Node | None:
    """Return the tensor that ``user`` adds to ``node``; None if it does something else."""
    function = user.op == "call_function" and user.target in _ADDITIONS
    method = user.op == "call_method" and user.target in ("add", "add_")
    if not (function or method) or len(user.args) != 2 or user.kwargs:
        return None
    first, second = user.args
    if first is second or not (isinstance(first, Node) and isinstance(second, Node)):
        return None
    in_place = user.target in (operator.iadd, "add_")
    if second is node and in_place:
        return None  # it changes the other tensor
    return second if first is node else first


def _between(first: Node, last: Node) -> list[Node]:
    """Return the nodes of the graph after ``first`` and before ``last``."""
    nodes, one = [], first.next
    while one is not last:
        nodes.append(one)
        one = one.next
    return nodes


def _may_write(node: Node, modules: dict[str, nn.Module]) -> bool:
    """Return whether a node may change a tensor that it is given."""
    if node.op == "call_module":
        module = _module(node, modules)
        return any(getattr(one, "inplace", False) for one in module.modules()) if module else True
    if node.op == "call_function":
        name = getattr(node.target, "__name__", "")
        by_name = name.endswith("_") and not name.endswith("__")
        by_name |= node.kwargs.get("out") is not None
        return by_name or node.target in _WRITING or bool(node.kwargs.get("inplace"))
    return node.op == "call_method" and str(node.target).endswith("_")


def _folded(chain: _Chain, modules: dict[str, nn.Module]) -> nn.Module:
    """Return the chain's convolution, its norm folded in."""
    layer = modules[str(chain.convolution.target)]
    if chain.norm is None:
        return layer
    return nn.utils.fuse_conv_bn_eval(layer, modules[str(chain.norm.target)])


def _free_name(name: str, named: set[str], modules: dict[str, nn.Module]) -> str:
    """Return the name of a convolution's layer; another one if the convolution is called again."""
    free, number = name, 1
    while free in named or (free != name and free in modules):
        free, number = f"{name}_{number}", number + 1
    return free


def _replace(graph: Graph, chain: _Chain, name: str) -> None:
    """Put a call of the layer of that name where the chain was."""
    node = chain.convolution
    arguments = (node.args[0],) if chain.residual is None else (node.args[0], chain.residual)
    # With a residual at the chain's end: the residual may be computed after the convolution.
    with graph.inserting_before(node if chain.residual is None else chain.last):
        made = graph.call_module(name, arguments)
    chain.last.replace_all_uses_with(made)
    for one in (chain.last, *_inner(chain)):
        graph.erase_node(one)


def _inner(chain: _Chain) -> list[Node]:
    """Return the chain's nodes before its last one, the latest first."""
    nodes, node = [], chain.last
    while node is not chain.convolution:
        (node,) = (one for one in node.all_input_nodes if one is not chain.residual)
        nodes.append(node)
    return nodes
