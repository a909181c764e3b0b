"""Problems with names: the paper's twelve layers, other networks', small ones for teaching."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import cast

from convlab.problems.gradient import Gradient
from convlab.problems.problem import ConvProblem
from convlab.support.values import shown

# im2win paper (000), Table 2: C_i, H_i = W_i, C_o, H_f = W_f, stride. The outputs
# that the table prints follow from these, without padding and dilation.
_TABLE_2 = {
    "conv1": (3, 227, 96, 11, 4), "conv2": (3, 231, 96, 11, 4),
    "conv3": (3, 227, 64, 7, 2), "conv4": (64, 224, 64, 7, 2),
    "conv5": (96, 24, 256, 5, 1), "conv6": (256, 12, 512, 3, 1),
    "conv7": (3, 224, 64, 3, 1), "conv8": (64, 112, 128, 3, 1),
    "conv9": (64, 56, 64, 3, 1), "conv10": (128, 28, 128, 3, 1),
    "conv11": (256, 14, 256, 3, 1), "conv12": (512, 7, 512, 3, 1),
}  # fmt: skip

LAYER_NAMES = tuple(_TABLE_2)
PAPER_BATCH = 128


def paper_layer(name: str, batch: int = PAPER_BATCH) -> ConvProblem:
    """The problem of one of the twelve layers, ``conv1`` to ``conv12`` (im2win paper, Table 2), in
    capitals or not. Raises ``ValueError`` for any other name."""
    row = _TABLE_2.get(str(name).lower())
    if row is None:
        raise ValueError(f"layer is {shown(name)}: it must be one of {', '.join(LAYER_NAMES)}")
    channels, size, filters, kernel_size, stride = row
    return ConvProblem(batch, channels, size, size, filters, kernel_size, stride)


# What `convlab ladder` runs by default. On Numba's simulator, which does some thousand products
# each second: no multiple of 4, but stride, dilation and padding that windows reach on all sides.
TEACHING = ConvProblem(2, 3, 11, 7, 5, kernel_size=3, stride=2, padding=1, dilation=2)
# In convlab's own simulator, which is quicker: Conv9 in small, so that the counts are like its own.
MODEL = ConvProblem(1, 4, 16, 16, 32, kernel_size=3, padding=1)
# With a GPU: Conv9, a ResNet-50 block's 3 x 3 layer.
GPU_DEFAULT = paper_layer("conv9")
DEFAULTS = {"gpu": GPU_DEFAULT, "simulator": MODEL, "cudasim": TEACHING}  # by the engine's name


def workload(layer: str | None, batch: int | None, engine: str) -> ConvProblem:
    """Return the layer of the paper with that name, or the default problem of that engine, with
    that many images. Raises ``ValueError`` for an unknown layer."""
    problem = DEFAULTS[engine] if layer is None else paper_layer(layer)
    return problem if batch is None else replace(problem, batch=batch)


# Layers of other networks, and shapes that nothing divides: sizes that nobody tuned a kernel for.
# ResNet-50 (He et al., Deep Residual Learning, Table 1; the stride in the 3 x 3 layers, as PyTorch
# has it) and VGG-16 (Simonyan and Zisserman, Table 1, D), every layer once: C_i, H_i = W_i, C_o,
# H_f, stride. Padded so that stride 1 keeps the size.
_RESNET_50 = (
    (3, 224, 64, 7, 2),
    (64, 56, 64, 1, 1), (64, 56, 64, 3, 1), (64, 56, 256, 1, 1), (256, 56, 64, 1, 1),
    (256, 56, 128, 1, 1), (128, 56, 128, 3, 2), (128, 28, 512, 1, 1), (256, 56, 512, 1, 2),
    (512, 28, 128, 1, 1), (128, 28, 128, 3, 1),
    (512, 28, 256, 1, 1), (256, 28, 256, 3, 2), (256, 14, 1024, 1, 1), (512, 28, 1024, 1, 2),
    (1024, 14, 256, 1, 1), (256, 14, 256, 3, 1),
    (1024, 14, 512, 1, 1), (512, 14, 512, 3, 2), (512, 7, 2048, 1, 1), (1024, 14, 2048, 1, 2),
    (2048, 7, 512, 1, 1), (512, 7, 512, 3, 1),
)  # fmt: skip
_VGG_16 = (
    (3, 224, 64, 3, 1), (64, 224, 64, 3, 1), (64, 112, 128, 3, 1), (128, 112, 128, 3, 1),
    (128, 56, 256, 3, 1), (256, 56, 256, 3, 1), (256, 28, 512, 3, 1), (512, 28, 512, 3, 1),
    (512, 14, 512, 3, 1),
)  # fmt: skip
# MobileNet's layers of 1 x 1 filters: Howard et al., Table 1. The last are ResNet-50's late ones.
_MOBILENET = (
    (32, 112, 64, 1, 1), (64, 56, 128, 1, 1), (128, 28, 256, 1, 1), (256, 28, 256, 1, 1),
    (512, 14, 512, 1, 1), (1024, 7, 1024, 1, 1),
)  # fmt: skip
_ONE_IMAGE = (
    (3, 224, 64, 7, 2), (64, 224, 64, 3, 1), (64, 56, 64, 3, 1), (256, 14, 1024, 1, 1),
    (256, 14, 256, 3, 1), (512, 7, 512, 3, 1),
)  # fmt: skip
_LATE_LAYERS = (
    (512, 14, 512, 3, 2), (512, 7, 2048, 1, 1), (1024, 14, 2048, 1, 2), (2048, 7, 512, 1, 1),
)  # fmt: skip
NETWORK_BATCH = 32


def _padded(network: str, batch: int, rows: tuple[tuple[int, ...], ...]) -> dict[str, ConvProblem]:
    """Numbered from 1: ``resnet50_1``."""
    return {
        f"{network}_{number}": ConvProblem(batch, c, size, size, m, taps, s, padding=taps // 2)
        for number, (c, size, m, taps, s) in enumerate(rows, start=1)
    }


M11_FITTED: dict[str, ConvProblem] = {  # what the constants of m11's model are fitted to
    **_padded("resnet50", NETWORK_BATCH, _RESNET_50),
    **_padded("vgg16", NETWORK_BATCH, _VGG_16),
    **_padded("one_image", 1, _ONE_IMAGE),
    "odd_wide_filter": ConvProblem(7, 37, 61, 53, 101, (3, 5), padding=(1, 2)),
    "odd_stride": ConvProblem(17, 13, 97, 101, 30, 5, stride=2),
    "odd_dilation": ConvProblem(5, 48, 65, 67, 72, 3, padding=3, dilation=3),
    "one_channel": ConvProblem(64, 1, 28, 28, 10, 5),
    "few_filters": ConvProblem(8, 20, 120, 90, 6, (1, 7), stride=(1, 2), padding=(0, 3)),
}
UNTUNED: dict[str, ConvProblem] = {  # what those of m15's are, beside others
    **M11_FITTED,
    **_padded("mobilenet", NETWORK_BATCH, _MOBILENET),
    **_padded("one_image_late", 1, _LATE_LAYERS),
    "four_images": ConvProblem(4, 256, 14, 14, 256, 3, padding=1),
    "inception_row": ConvProblem(32, 128, 17, 17, 128, (1, 7), padding=(0, 3)),
    "inception_column": ConvProblem(32, 128, 17, 17, 192, (7, 1), padding=(3, 0)),
    "unet": ConvProblem(2, 64, 256, 256, 64, 3, padding=1),
    "deeplab": ConvProblem(4, 256, 33, 33, 256, 3, padding=6, dilation=6),
    "prime_stride": ConvProblem(3, 17, 41, 43, 31, 7, stride=3, padding=2),
    "prime_padded": ConvProblem(11, 29, 53, 47, 59, 3, padding=1),
    "prime_1x1": ConvProblem(13, 127, 31, 37, 131, 1),
}

# No model was fitted to these: other networks' layers, filters along one axis, prime sizes.
UNSEEN: dict[str, ConvProblem] = {
    "resnet18": ConvProblem(8, 128, 28, 28, 128, 3, padding=1),
    "squeezenet": ConvProblem(16, 32, 27, 27, 128, 3, padding=1),
    "densenet": ConvProblem(8, 512, 28, 28, 256, 1),
    "inception_tall": ConvProblem(32, 160, 17, 17, 160, (7, 1), padding=(3, 0)),
    "mnasnet": ConvProblem(32, 72, 28, 28, 24, 1),
    "hrnet": ConvProblem(4, 48, 64, 48, 48, 3, padding=1),
    "convnext": ConvProblem(8, 384, 14, 14, 768, 2, stride=2),
    "patches": ConvProblem(4, 3, 384, 384, 1024, 16, stride=16),
    "stylegan": ConvProblem(4, 512, 32, 32, 512, 3, padding=1),
    "vgg_late": ConvProblem(1, 512, 28, 28, 512, 3, padding=1),
    "vgg_early": ConvProblem(1, 128, 112, 112, 128, 3, padding=1),
    "srcnn": ConvProblem(1, 1, 256, 256, 64, 9, padding=4),
    "edsr": ConvProblem(1, 256, 96, 96, 256, 3, padding=1),
    "yolo": ConvProblem(1, 1024, 13, 13, 425, 1),
    "wavenet": ConvProblem(8, 64, 1, 8192, 64, (1, 2), dilation=(1, 8)),
    "speech": ConvProblem(16, 1, 161, 400, 32, (41, 11), stride=2, padding=(20, 5)),
    "prime_square": ConvProblem(13, 31, 37, 41, 43, 3, padding=1),
    "prime_tenfold": ConvProblem(19, 100, 23, 29, 50, 3),
    "thousand": ConvProblem(1, 999, 10, 10, 500, 1),
    "five_channels": ConvProblem(7, 5, 211, 199, 12, 3, stride=2, padding=1),
}

# 21 layers at one image, of networks and of none: ResNet-50, VGG-16, first layers of networks with
# three channels, and odd sizes. Each is measured with one image and with many.
UNSEEN_LAYERS: dict[str, ConvProblem] = {
    **_padded("resnet", 1, (
        (3, 224, 64, 7, 2), (64, 56, 64, 1, 1), (64, 56, 64, 3, 1), (64, 56, 256, 1, 1),
        (256, 56, 128, 1, 1), (128, 28, 128, 3, 1), (512, 28, 128, 1, 1), (256, 14, 256, 3, 1),
        (1024, 14, 256, 1, 1), (512, 7, 512, 3, 1), (512, 7, 2048, 1, 1), (2048, 7, 512, 1, 1),
    )),
    **_padded("vgg", 1, (
        (64, 224, 64, 3, 1), (256, 56, 256, 3, 1), (512, 28, 512, 3, 1), (512, 14, 512, 3, 1),
    )),
    "stem_3x3": ConvProblem(1, 3, 299, 299, 32, 3, stride=2),
    "stem_patches": ConvProblem(1, 3, 224, 224, 96, 4, stride=4),
    "odd_wide": ConvProblem(1, 37, 61, 53, 101, (3, 5), padding=(1, 2)),
    "odd_strided": ConvProblem(1, 48, 65, 67, 72, 5, stride=2, padding=2),
    "odd_dilated": ConvProblem(1, 31, 37, 41, 43, 3, padding=2, dilation=2),
}  # fmt: skip
# First layers of networks, and layers whose numbers of channels nothing divides.
STEMS: dict[str, ConvProblem] = {
    "resnet_stem": ConvProblem(NETWORK_BATCH, 3, 224, 224, 64, 7, stride=2, padding=3),
    "vit_patches": ConvProblem(NETWORK_BATCH, 3, 224, 224, 768, 16, stride=16),
    "convnext_patches": ConvProblem(NETWORK_BATCH, 3, 224, 224, 96, 4, stride=4),
    "odd_255": ConvProblem(NETWORK_BATCH, 256, 40, 40, 255, 1),
    "odd_53": ConvProblem(NETWORK_BATCH, 53, 56, 56, 53, 3, padding=1),
}
UNSEEN_BATCHES = (1, NETWORK_BATCH)


def unseen_layers(batches: Iterable[int] = UNSEEN_BATCHES) -> dict[str, ConvProblem]:
    """Return the 21 layers at each of these batches: ``resnet_3 x 32``."""
    return {
        f"{name} x {batch}": replace(problem, batch=batch)
        for batch in batches
        for name, problem in UNSEEN_LAYERS.items()
    }


# The depthwise layers of MobileNetV2 (Sandler et al., Table 2) and the grouped ones of ResNeXt-50
# 32x4d (Xie et al., Table 1), every one once: channels in and out, H_i = W_i, stride.
_DEPTHWISE = (
    (32, 112, 1), (96, 112, 2), (144, 56, 1), (144, 56, 2), (192, 28, 1), (192, 28, 2),
    (384, 14, 1), (576, 14, 1), (576, 14, 2), (960, 7, 1),
)  # fmt: skip
_RESNEXT_50 = (
    (128, 56, 1), (256, 56, 2), (256, 28, 1), (512, 28, 2), (512, 14, 1), (1024, 14, 2),
    (1024, 7, 1),
)  # fmt: skip
GROUPED: dict[str, ConvProblem] = {
    f"{network}_{number}": ConvProblem(NETWORK_BATCH, c, size, size, c, 3, s, 1, 1, groups or c)
    for network, rows, groups in (("mobilenetv2", _DEPTHWISE, 0), ("resnext50", _RESNEXT_50, 32))
    for number, (c, size, s) in enumerate(rows, start=1)
}

# All layers with a name of their own beside the paper's.
_NAMED = UNTUNED | UNSEEN | GROUPED | STEMS | unseen_layers()

EXAMPLE = "'32x64x56x56 * 64x64x3x3, padding 1'"
FOUR = r"(\d+)x(\d+)x(\d+)x(\d+)"
SHAPES = re.compile(rf"\s*{FOUR}\s*[*,]\s*{FOUR}\s*(.*)", re.DOTALL)
OPTION = re.compile(r",\s*(s|stride|p|padding|d|dilation)\s*(\d+|\([\d\s,()]+\))\s*")
NAMES = {"s": "stride", "p": "padding", "d": "dilation"}


def problem_of(text: str) -> ConvProblem:
    """The problem that is written as its ``str``: input, filters, and what is not usual of stride,
    padding and dilation, which may be their first letters: ``32x64x56x56,64x64x3x3,s2,p1``. Raises
    ``ValueError`` or ``TypeError`` naming what is wrong with it."""
    shapes = SHAPES.fullmatch(text)
    if shapes is None:
        raise ValueError(f"--problem is {shown(text)}: it must be input and filters, as {EXAMPLE}")
    rest, options = shapes[9], {}
    try:
        n, c, h, w, m, channels, *taps = map(int, shapes.groups()[:8])
        while option := OPTION.match(rest):
            options[NAMES.get(option[1], option[1])] = ast.literal_eval(option[2])
            rest = rest[option.end() :]
    except (SyntaxError, ValueError, MemoryError, RecursionError):  # "(((", or thousands of digits
        raise ValueError(f"--problem is {shown(text)}: its numbers cannot be read") from None
    if rest:
        may = "it may be ', stride 2', padding or dilation"
        raise ValueError(f"--problem ends in {shown(rest)}: {may}")
    if channels != c:
        raise ValueError(f"--problem has filters of {channels} channels: the input has {c}")
    return ConvProblem(n, c, h, w, m, tuple(taps), **options)


def gradients(problems: Mapping[str, ConvProblem]) -> dict[str, ConvProblem]:
    """Return both gradients of each problem: ``conv9 dinput`` and ``conv9 dweight`` for ``conv9``.

    A :class:`Gradient` has what a benchmark reads of a :class:`ConvProblem`.
    """
    both = {
        f"{name} d{of}": Gradient(problem, of)
        for name, problem in problems.items()
        for of in ("input", "weight")
    }
    return cast(dict[str, ConvProblem], both)


@lru_cache(maxsize=4096, typed=True)  # each row of a file of results asks for its layer
def problem_named(name: str, batch: int) -> ConvProblem:
    """A layer of the paper, a size of ``UNTUNED``, ``UNSEEN``, ``GROUPED`` or ``STEMS``, one of
    :func:`unseen_layers`, what :func:`problem_of` reads, or one of the :func:`gradients` of these;
    with this batch. A type may follow, as in ``conv9 bfloat16`` (channels last), ``conv9 tf32`` and
    ``conv9 tf32-last``, the latter with channels last. Raises ``ValueError`` for any other name."""
    plain, _, kind = name.rpartition(" ")
    if kind in ("float16", "bfloat16"):
        return replace(problem_named(plain, batch), dtype=kind, channels_last=True)
    if kind in ("tf32", "tf32-last"):
        return replace(problem_named(plain, batch), channels_last=kind == "tf32-last")
    forward, gradient, _ = name.rpartition(" d")
    if gradient and name in (both := gradients({forward: problem_named(forward, batch)})):
        return both[name]
    if SHAPES.fullmatch(name):
        return replace(problem_of(name), batch=batch)
    other = _NAMED.get(name)
    return paper_layer(name, batch) if other is None else replace(other, batch=batch)
