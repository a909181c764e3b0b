"""g02: gradients by a stage of the ladder. Each gradient is a convolution with exchanged roles.

Source: ours; dL/dinput of a strided convolution is the sub-pixel convolution of Shi et al. (2016).

    dL/dinput    dL/doutput   convolved with  the filters, flipped   channels exchanged
    dL/dweight   the input    convolved with  dL/doutput             batch and channels exchanged,
                                                                     stride and dilation too

A stride leaves holes between the outputs, and zeros in the holes would waste multiplications. So
one convolution computes each phase (pixels that see the same filter taps) as channels, and the last
launch interleaves them. A filter tap sums over all outputs of all images: the forward stage may
split this sum (split-K); with groups each image has a part, and the last launch adds the parts.
"""

from dataclasses import replace
from functools import cache

from numba import cuda, float32, int64, uint32

from convlab.device import BoxMap, WindowMap
from convlab.ladder.main.m15_split_k import STAGE as FUSED
from convlab.ladder.stage import (
    Argument,
    Buffer,
    Flat,
    Images,
    Kernel,
    Launch,
    Program,
    Stage,
    Step,
    Tile,
    blocks_for,
)
from convlab.ladder.tile_heuristic import allowances, production_tile, splits_for
from convlab.ladder.variants.grouped import GROUPED
from convlab.problems.gradient import Gradient
from convlab.problems.problem import ConvProblem

THREADS = 256
PIXELS = 4  # of a thread that interleaves


def make_flip(gradient: Gradient) -> Kernel:
    """Makes dL/dinput's filters, [C_i * phases, C_o / groups, *taps], from [C_o, C_i / groups, H_f,
    W_f]: flipped, each phase with the taps that it sees, and zeros where a phase sees no tap."""
    p, made = gradient.problem, gradient.as_convolution
    C_g, M_g, H_f, W_f = p.C_i // p.groups, p.C_o // p.groups, p.H_f, p.W_f
    s_h, s_w, d_h, d_w = p.s_h, p.s_w, p.d_h, p.d_w
    step_h, step_w = gradient.tap_step(0), gradient.tap_step(1)
    F_h, F_w = gradient.phases(0), gradient.phases(1)
    FILTERS, T_h, T_w = made.C_o, made.H_f, made.W_f

    @cuda.jit
    def flip_filters(weight, flipped):
        e = uint32(cuda.blockIdx.x) * THREADS + uint32(cuda.threadIdx.x)
        t_w = e % T_w
        t_h = e // T_w % T_h
        k = e // (T_w * T_h) % M_g
        filter = e // (T_w * T_h * M_g)
        if filter >= FILTERS:
            return
        r = filter // (F_h * F_w)  # the channel of the input
        # The distance from the window's start to the pixel, by phase and tap, in input pixels.
        far_h = (T_h - 1 - t_h) * (step_h * s_h) + filter // F_w % F_h
        far_w = (T_w - 1 - t_w) * (step_w * s_w) + filter % F_w
        tap = float32(0)
        if far_h % d_h == 0 and far_w % d_w == 0 and far_h < H_f * d_h and far_w < W_f * d_w:
            tap = weight[r // C_g * M_g + k, r % C_g, far_h // d_h, far_w // d_w]
        flipped[filter, k, t_h, t_w] = tap

    return flip_filters


def make_interleave(gradient: Gradient) -> Kernel:
    """Interleaves the phases of the convolution's output, which gives dL/dinput. A thread has up to
    ``PIXELS`` pixels of a row, ``ACROSS`` columns apart, so it computes what a row needs once."""
    p, made = gradient.problem, gradient.as_convolution
    H_i, W_i = p.H_i, p.W_i
    s_h, s_w, p_h, p_w = p.s_h, p.s_w, p.p_h, p.p_w
    first_h, first_w = gradient.first_row(0), gradient.first_row(1)
    F_h, F_w = gradient.phases(0), gradient.phases(1)
    ROWS, ACROSS = p.N_i * p.C_i * H_i, blocks_for(W_i, PIXELS)
    MAP, W_m = made.H_o * made.W_o, made.W_o

    @cuda.jit
    def interleave_phases(maps, of_input):
        # Maps and pixels are 1-D arrays: a phase of a channel is a map.
        e = uint32(cuda.blockIdx.x) * THREADS + uint32(cuda.threadIdx.x)
        row, i_w = e // ACROSS, e % ACROSS
        if row >= ROWS:
            return
        channel, i_h = row // H_i, row % H_i  # of all images
        f_h, m_h = (i_h + p_h) % s_h, (i_h + p_h) // s_h - first_h
        at = int64((channel * F_h + f_h) * F_w) * MAP + m_h * W_m
        R = cuda.local.array(PIXELS, float32)  # so that no load waits for a store
        for q in range(PIXELS):
            w = i_w + q * ACROSS
            f_w, m_w = (w + p_w) % s_w, (w + p_w) // s_w - first_w
            R[q] = float32(0)  # stays zero if the phase sees no tap
            if w < W_i and f_h < F_h and f_w < F_w:
                R[q] = maps[at + f_w * MAP + m_w]
        for q in range(PIXELS):
            w = i_w + q * ACROSS
            if w < W_i:
                of_input[int64(row) * W_i + w] = R[q]

    return interleave_phases


def make_exchange(
    shape: tuple[int, int, int, int, int],
    strides: tuple[int, int, int, int],
    image: tuple[int, int],
    before: tuple[int, int] = (0, 0),
    parts: int = 1,
) -> Kernel:
    """Copies ``source`` to a target with other axes. ``shape`` is the target's, rows and columns
    last. ``strides`` are distances in the source, in elements, between neighbours along the
    target's first three axes, and between the ``parts``, which the kernel adds. Zeros surround each
    source ``image``, ``before`` of them above and on the left."""
    A, B, C, ROWS, COLUMNS = shape
    by_a, by_b, by_c, by_part = strides
    H, W = image
    above, left = before

    @cuda.jit
    def exchange_axes(source, target):
        # Source and target are 1-D arrays, because they have different axes.
        e = uint32(cuda.blockIdx.x) * THREADS + uint32(cuda.threadIdx.x)
        w = e % COLUMNS - left
        h = e // COLUMNS % ROWS - above
        c = e // (COLUMNS * ROWS) % C
        b = e // (COLUMNS * ROWS * C) % B
        a = e // (COLUMNS * ROWS * C * B)
        if a >= A:
            return
        total = float32(0)
        if 0 <= h < H and 0 <= w < W:
            for part in range(parts):
                total += source[a * by_a + b * by_b + c * by_c + h * W + w + part * by_part]
        target[e] = total

    return exchange_axes


@cache  # equal stages share what was compiled for them
def through(stage: Stage) -> Stage:
    """g02 with that stage as its convolution, or with ``grouped`` if a problem has groups that the
    stage cannot compute."""

    def forward_of(gradient: Gradient) -> tuple[Stage, ConvProblem]:
        problem = gradient.as_convolution
        return stage if problem.groups == 1 or stage.grouped else GROUPED, problem

    def prepare(
        gradient: Gradient, tile: Tile | None = None, sm_count: int | None = None
    ) -> Program:
        chosen, problem = forward_of(gradient)
        tile = tile if chosen.tiles else None
        forward = chosen.prepare(problem, tile, **splits_for(chosen, problem, tile, sm_count))
        return (_of_input if gradient.of == "input" else _of_weight)(gradient, forward)

    def tile_of(gradient: Gradient, sm_count: int | None = None) -> Tile:
        return production_tile(stage, gradient.as_convolution, sm_count) or Tile(1, 1, 1)

    def additions(gradient: Gradient) -> int:
        chosen, problem = forward_of(gradient)
        return int(allowances(chosen, problem)["atomic_additions"])

    return replace(
        stage,
        module=__name__,
        title=f"Gradients: {stage.name} with the tensors' roles exchanged",
        source="im2win paper (000); Shi et al. 2016, sub-pixel convolution",
        builds_on=("g01_direct_gradients", stage.name),
        prepare=prepare,
        tiles=stage.tiles and replace(stage.tiles, heuristic=None, production=tile_of),
        vectorized=False,  # no 128-bit accesses: the last launch copies scalars
        atomic_additions=additions,
        grouped=True,
    )


def _of_input(gradient: Gradient, forward: Program) -> Program:
    problem = gradient.as_convolution
    before = _launch(make_flip(gradient), problem.weight_shape, "weight", "flipped")
    buffers = [Buffer("flipped", problem.weight_shape)]
    names, after = {"weight": "flipped"}, []
    if gradient.problem.stride != (1, 1) or problem.output_shape != gradient.output_shape:
        buffers.append(Buffer("maps", problem.output_shape))
        names["output"] = "maps"
        N_i, C_i, H_i, W_i = gradient.output_shape
        maps, output = Flat("maps"), Flat("output")
        threads = N_i, C_i, H_i, blocks_for(W_i, PIXELS)
        after = [_launch(make_interleave(gradient), threads, maps, output)]
    return _around(forward, buffers, [before], names, after)


def _of_weight(gradient: Gradient, forward: Program) -> Program:
    p, problem = gradient.problem, gradient.as_convolution
    G, N_i, C_g, M_g = p.groups, p.N_i, p.C_i // p.groups, p.C_o // p.groups
    IMAGE, PIXELS, TAPS = p.H_i * p.W_i, p.H_o * p.W_o, p.H_f * p.W_f
    _, _, rows, columns = problem.input_shape
    by_channel = IMAGE, C_g * IMAGE, p.C_i * IMAGE, 0
    above_and_left = p.p_h, p.p_w
    images = make_exchange((C_g, G, N_i, rows, columns), by_channel, (p.H_i, p.W_i), above_and_left)
    if G == 1:
        shape, by = (1, p.C_o, N_i, *p.output_size), (0, PIXELS, p.C_o * PIXELS, 0)
    else:
        shape, by = (G, N_i, M_g, *p.output_size), (M_g * PIXELS, p.C_o * PIXELS, PIXELS, 0)
    filters = make_exchange(shape, by, p.output_size)
    of_parts = gradient.parts * M_g * TAPS, TAPS, p.C_o * gradient.parts * TAPS, M_g * TAPS
    taps = make_exchange((G, M_g, C_g, p.H_f, p.W_f), of_parts, p.kernel_size, parts=gradient.parts)
    names = {"input": "images", "weight": "filters", "output": "maps"}
    shapes = problem.input_shape, problem.weight_shape, problem.output_shape
    buffers = [Buffer(name, shape) for name, shape in zip(names.values(), shapes, strict=True)]
    before = [
        _launch(images, problem.input_shape, Flat("input"), Flat("images")),
        _launch(filters, problem.weight_shape, Flat("weight"), Flat("filters")),
    ]
    after = [_launch(taps, gradient.output_shape, Flat("maps"), Flat("output"))]
    return _around(forward, buffers, before, names, after)


def _launch(kernel: Kernel, shape: tuple[int, int, int, int], *arguments: Argument) -> Launch:
    """A launch with one thread for each element of an array of that shape."""
    A, B, C, D = shape
    return Launch(kernel, (blocks_for(A * B * C * D, THREADS),), (THREADS,), arguments)


def _around(
    forward: Program,
    buffers: list[Buffer],
    before: list[Launch],
    names: dict[str, str],
    after: list[Launch],
) -> Program:
    """The forward program, with its tensors renamed, between the launches before and after it."""

    def renamed(argument: Argument) -> Argument:
        if isinstance(argument, Flat):
            of = renamed(argument.of)
            return Flat(of) if isinstance(of, str | Images) else of
        if isinstance(argument, Images):
            return replace(argument, name=names.get(argument.name, argument.name))
        if isinstance(argument, BoxMap | WindowMap):
            return replace(argument, of=names.get(argument.of, argument.of))
        return names.get(argument, argument)

    steps: list[Step] = [
        replace(step, arguments=tuple(map(renamed, step.arguments))) for step in forward.launches
    ]
    return Program((*buffers, *forward.buffers), (*before, *steps, *after), forward.tile)


STAGE = through(FUSED)
