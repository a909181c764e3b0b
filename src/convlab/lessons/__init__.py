"""What the lessons' notebooks import: checks that say what is wrong, and pictures of kernels."""

from convlab.lessons.accuracy import bits_of_split, check_accuracy, errors_by_terms
from convlab.lessons.bars import measured, side_by_side
from convlab.lessons.channels import region_and_field, who_adds, with_field
from convlab.lessons.exercises import On, check, check_kernel, what_is_wrong
from convlab.lessons.feedback import Feedback
from convlab.lessons.functions import PretendGPU, check_function, gpus, pretended
from convlab.lessons.im2col import check_im2col, traced_im2col, windows_written_out
from convlab.lessons.implicit import column_of_windows
from convlab.lessons.launching import part_of, run, traced, where
from convlab.lessons.layouts import im2col_beside_im2win, im2win_orders
from convlab.lessons.maps import block_of_product, one_thread, who_does_what
from convlab.lessons.measurements import measured_kernels, measured_memory, measured_sweep
from convlab.lessons.pictures import Picture
from convlab.lessons.requests import one_request
from convlab.lessons.stage_parts import (
    as_bars,
    global_traffic,
    ladder_speeds,
    measured_parts,
    workspaces,
)
from convlab.lessons.tiling import reads_in_turn, thread_in_tile, tile_of_threads
from convlab.lessons.timelines import check_prefetch, diary, ring_of_slices, timeline
from convlab.lessons.warps import check_one_warp, who_holds_what

__all__ = [
    "Feedback", "On", "Picture", "PretendGPU", "as_bars", "bits_of_split", "block_of_product",
    "check", "check_accuracy", "check_function", "check_im2col", "check_kernel",
    "check_one_warp", "check_prefetch", "column_of_windows", "diary", "errors_by_terms",
    "global_traffic", "gpus", "im2col_beside_im2win", "im2win_orders", "ladder_speeds",
    "measured", "measured_kernels", "measured_memory", "measured_parts", "measured_sweep",
    "one_request", "one_thread", "part_of", "pretended", "reads_in_turn", "region_and_field",
    "ring_of_slices", "run", "side_by_side", "thread_in_tile", "tile_of_threads", "timeline",
    "traced", "traced_im2col", "what_is_wrong", "where", "who_adds", "who_does_what",
    "who_holds_what", "windows_written_out", "with_field", "workspaces",
]  # fmt: skip
