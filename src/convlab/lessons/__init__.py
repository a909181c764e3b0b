"""What the lessons' notebooks import: checks that say what is wrong, and pictures of kernels."""

from convlab.lessons.bars import measured, side_by_side
from convlab.lessons.exercises import On, check, check_kernel, what_is_wrong
from convlab.lessons.feedback import Feedback
from convlab.lessons.functions import PretendGPU, check_function, gpus, pretended
from convlab.lessons.launching import part_of, run, traced, where
from convlab.lessons.layouts import im2col_beside_im2win, im2win_orders
from convlab.lessons.maps import block_of_product, one_thread, who_does_what
from convlab.lessons.measurements import (
    as_bars,
    global_traffic,
    ladder_speeds,
    measured_parts,
    workspaces,
)
from convlab.lessons.pictures import Picture
from convlab.lessons.requests import one_request
from convlab.lessons.timelines import check_prefetch, diary, ring_of_slices, timeline

__all__ = [
    "Feedback", "On", "Picture", "PretendGPU", "as_bars", "block_of_product", "check",
    "check_function", "check_kernel", "check_prefetch", "diary", "global_traffic", "gpus",
    "im2col_beside_im2win", "im2win_orders", "ladder_speeds", "measured", "measured_parts",
    "one_request", "one_thread", "part_of", "pretended", "ring_of_slices", "run",
    "side_by_side", "timeline", "traced", "what_is_wrong", "where", "who_does_what",
    "workspaces",
]  # fmt: skip
