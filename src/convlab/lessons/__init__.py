"""What the lessons' notebooks import: checks that say what is wrong, and pictures of kernels."""

from convlab.lessons.bars import measured, side_by_side
from convlab.lessons.channels import region_and_field, who_adds, with_field
from convlab.lessons.exercises import On, check, check_kernel, what_is_wrong
from convlab.lessons.feedback import Feedback
from convlab.lessons.im2col import check_im2col, traced_im2col, windows_written_out
from convlab.lessons.implicit import column_of_windows
from convlab.lessons.launching import run, traced, where
from convlab.lessons.maps import block_of_product, one_thread, who_does_what
from convlab.lessons.measurements import measured_memory, measured_parts, measured_sweep
from convlab.lessons.pictures import Picture
from convlab.lessons.requests import one_request
from convlab.lessons.tiling import reads_in_turn, thread_in_tile, tile_of_threads

__all__ = [
    "Feedback", "On", "Picture", "block_of_product", "check", "check_im2col", "check_kernel",
    "column_of_windows", "measured", "measured_memory", "measured_parts", "measured_sweep",
    "one_request", "one_thread", "reads_in_turn", "region_and_field", "run", "side_by_side",
    "thread_in_tile", "tile_of_threads", "traced", "traced_im2col", "what_is_wrong", "where",
    "who_adds", "who_does_what", "windows_written_out", "with_field",
]  # fmt: skip
