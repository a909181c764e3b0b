"""Problems with names: the paper's twelve layers and small ones for teaching. Data only."""

from __future__ import annotations

from convlab.problem import ConvProblem

# Seed 000, Table 2: C_i, H_i = W_i, C_o, H_f = W_f, stride. No padding, no dilation. The outputs
# that the table prints all follow from these.
_TABLE_2 = {
    "conv1": (3, 227, 96, 11, 4),
    "conv2": (3, 231, 96, 11, 4),
    "conv3": (3, 227, 64, 7, 2),
    "conv4": (64, 224, 64, 7, 2),
    "conv5": (96, 24, 256, 5, 1),
    "conv6": (256, 12, 512, 3, 1),
    "conv7": (3, 224, 64, 3, 1),
    "conv8": (64, 112, 128, 3, 1),
    "conv9": (64, 56, 64, 3, 1),
    "conv10": (128, 28, 128, 3, 1),
    "conv11": (256, 14, 256, 3, 1),
    "conv12": (512, 7, 512, 3, 1),
}

LAYER_NAMES = tuple(_TABLE_2)
PAPER_BATCH = 128


def paper_layer(name: str, batch: int = PAPER_BATCH) -> ConvProblem:
    """The problem of one of the twelve layers, ``conv1`` to ``conv12`` (im2win paper, Table 2), in
    capitals or not.

    Raises ``ValueError`` for any other name.
    """
    row = _TABLE_2.get(str(name).lower())
    if row is None:
        raise ValueError(f"layer is {name!r}: it must be one of {', '.join(LAYER_NAMES)}")
    channels, size, filters, kernel_size, stride = row
    return ConvProblem(batch, channels, size, size, filters, kernel_size, stride)


# What `convlab ladder` runs when nobody names a problem. In Numba's simulator: small enough for one
# that does some thousand multiply-adds a second, awkward enough to be worth judging: no
# multiple of 4 anywhere, stride, dilation, and padding that windows reach on all four sides.
TEACHING = ConvProblem(
    batch=2,
    in_channels=3,
    height=11,
    width=7,
    out_channels=5,
    kernel_size=3,
    stride=2,
    padding=1,
    dilation=2,
)
# What convlab's own simulator, which is quicker, counts instead: Conv9 in small, so that the counts
# show what happens there.
MODEL = ConvProblem(
    batch=1, in_channels=4, height=16, width=16, out_channels=32, kernel_size=3, padding=1
)
# With a GPU: Conv9, a ResNet-50 block's 3 x 3 layer.
GPU_DEFAULT = paper_layer("conv9")

# Where the channel-parallel stages are looked at, as source 001 does: one image, few channels, and
# one size at a time changed. It gives no sizes but its largest filter, 64 x 64.
SWEEP_BASE = ConvProblem(1, 4, 256, 256, 16, 3)
SWEEPS: dict[str, tuple[int, ...]] = {
    "size": (32, 64, 128, 256, 512, 1024),
    "in_channels": (1, 4, 16, 64, 256),
    "out_channels": (1, 4, 16, 64, 256),
    "kernel_size": (1, 3, 5, 9, 15, 31, 64),
}


def sweep_problem(sweep: str, value: int) -> ConvProblem:
    """The base with one of its sizes changed."""
    changed = {"height": value, "width": value} if sweep == "size" else {sweep: value}
    base = {
        "batch": SWEEP_BASE.batch,
        "in_channels": SWEEP_BASE.in_channels,
        "height": SWEEP_BASE.height,
        "width": SWEEP_BASE.width,
        "out_channels": SWEEP_BASE.out_channels,
        "kernel_size": SWEEP_BASE.kernel_size,
    }
    return ConvProblem(**(base | changed))  # type: ignore[arg-type]
