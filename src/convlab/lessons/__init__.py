"""The names that the lessons' notebooks import: checks of kernels, and pictures of them."""
# ruff: noqa: I001, F401  (the list of public names, in as few lines as they take)

from convlab.lessons.animations import line_by_line, slices_in_buffers, step_through
from convlab.lessons.animations import tile_over_input
from convlab.lessons.charts import as_bars, global_traffic, ladder_speeds, measured
from convlab.lessons.charts import measured_kernels, measured_memory, measured_parts
from convlab.lessons.charts import measured_sweep, memory_levels, side_by_side, workspaces
from convlab.lessons.exercises import part_of, run, traced, where, with_field
from convlab.lessons.feedback import Feedback
from convlab.lessons.function_checks import check_function
from convlab.lessons.hunted import add_products, make_add_up, make_load_slices, make_wait
from convlab.lessons.hunted import numbers_of_a, numbers_of_b, store_sums
from convlab.lessons.kernel_checks import check_kernel, what_is_wrong
from convlab.lessons.launches_tried import On
from convlab.lessons.layouts import column_of_windows, im2col_beside_im2win, im2win_orders
from convlab.lessons.layouts import packed_filter, windows_written_out
from convlab.lessons.listing import algorithm_3
from convlab.lessons.maps import block_of_product, one_thread, region_and_field
from convlab.lessons.maps import tile_of_threads, warps_of_blocks, who_adds, who_does_what
from convlab.lessons.maps import who_uses
from convlab.lessons.parts import solved
from convlab.lessons.paths import status
from convlab.lessons.pictures import Picture, lines
from convlab.lessons.plain_im2win import whole_im2win
from convlab.lessons.pretended_gpu import PretendGPU, gpus, pretended
from convlab.lessons.problem_checks import check_gradient, check_im2col, check_im2win
from convlab.lessons.problem_checks import check_layout, traced_im2col
from convlab.lessons.requests import one_request, reads_in_turn, thread_in_tile
from convlab.lessons.sliders import slider
from convlab.lessons.small_kernels import halo, reduction
from convlab.lessons.stage_checks import check
from convlab.lessons.sum_errors import check_accuracy, errors_by_terms
from convlab.lessons.tensor_cores import bits_of_split, check_one_warp, who_holds_what
from convlab.lessons.timelines import check_prefetch, event_log, pipeline_stages, timeline
from convlab.lessons.timing import time_mine
