"""The names of what ``convlab bench --cases NAME`` measures beside the twelve layers. Light to
import: the command's help shows them."""

from __future__ import annotations

# Lists of cases: :data:`convlab.measuring.cases.EXPERIMENTS` has what is in each.
LISTS = {
    "sizes": "m15, PyTorch and cuDNN's GEMM class on sizes that no tile was tuned for",
    "unseen": '"auto" and the stages that it chooses from, beside PyTorch, on 21 layers',
    "grouped": "MobileNetV2's depthwise and ResNeXt-50's grouped layers, beside PyTorch",
    "gradients": "both gradients of the twelve layers, and the layers, g01 to g03 beside PyTorch",
    "ablation": "Figure 4 of the im2win paper: m11 whole and without each technique",
    "sweeps": "Figures 1 to 4 of article 001: single images, one size changed at a time",
    "precisions": "16 bits and TF32 on the twelve layers, 21 others and stems, beside PyTorch",
    "unfold_table": "Table 1 of article 002 (:mod:`convlab.measuring.baselines.unfold_table`)",
}
# Whole models, each system in a process of its own.
MODELS = {
    "models": "a whole ResNet-50 beside PyTorch's in float32: first calls, steady times, host time",
    "training": "the losses of 200 steps of a ResNet-50 in float32 beside PyTorch's",
    "inference": "a ResNet-50's inference in bfloat16 as a CUDA graph, beside torch.compile's",
}
NAMES = (*LISTS, *MODELS)
