"""What the lessons' notebooks import: checks that say what is wrong, and pictures of kernels."""

from convlab.lessons.bars import measured, side_by_side
from convlab.lessons.exercises import On, check, check_kernel, what_is_wrong
from convlab.lessons.feedback import Feedback
from convlab.lessons.launching import run, traced, where
from convlab.lessons.maps import block_of_product, one_thread, who_does_what
from convlab.lessons.pictures import Picture
from convlab.lessons.requests import one_request
from convlab.lessons.tiling import reads_in_turn, thread_in_tile, tile_of_threads

__all__ = [
    "Feedback", "On", "Picture", "block_of_product", "check", "check_kernel", "measured",
    "one_request", "one_thread", "reads_in_turn", "run", "side_by_side", "thread_in_tile",
    "tile_of_threads", "traced", "what_is_wrong", "where", "who_does_what",
]  # fmt: skip
