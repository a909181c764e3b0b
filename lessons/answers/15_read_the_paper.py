"""Answers to the exercises of lesson 15."""

from check_answers import given, right, wrong

TENSOR = "tensor = problem.N_i * problem.C_i * problem.H_o * problem.W_i * problem.H_f"
MATRIX = "matrix = problem.N * problem.K"
COLUMN = "f_w = k % (H_f * W_f) // H_f"
ROW = "f_h = k % H_f"
PIXEL = "windows[i_n, i_c, o_h, (o_w * s_w + f_w * d_w) * H_f + f_h]"
PLAIN = ((COLUMN, "f_w = k % W_f"), (ROW, "f_h = k % (H_f * W_f) // W_f"))

ANSWERS = {
    "sizes": [
        wrong("a third, as in the paper", "answer", ("1 - tensor / matrix", "matrix / tensor - 1")),
        wrong("the output's width for the input's", "answer", (TENSOR, TENSOR.replace("W_i", "W_o"))),
        wrong("the input's height for the output's", "answer", (TENSOR, TENSOR.replace("H_o", "H_i"))),
        wrong("the filter's width for its height", "answer", (TENSOR, TENSOR.replace("H_f", "W_f"))),
        wrong("one image", "answer", (TENSOR, TENSOR.replace("problem.N_i * ", ""))),
        wrong("the filter's matrix", "answer", (MATRIX, "matrix = problem.M * problem.K")),
        wrong("what is left, not what is less", "answer", ("1 - tensor / matrix", "tensor / matrix")),
        wrong("a name that does not exist", "broken", (MATRIX, "matrix = problem.n * problem.K")),
        wrong("one channel", "answer", (TENSOR, TENSOR.replace("problem.C_i * ", ""))),
        wrong("in percent", "answer", ("1 - tensor / matrix", "100 * (1 - tensor / matrix)")),
        wrong("divided into whole numbers", "answer", ("1 - tensor / matrix", "1 - tensor // matrix")),
        wrong("results in another order", "answer", ("return matrix, tensor, less", "return tensor, matrix, less")),
        right("written out", (MATRIX, "matrix = problem.N_i * problem.H_o * problem.W_o * problem.C_i * problem.H_f * problem.W_f")),
        right("the difference divided", ("1 - tensor / matrix", "(matrix - tensor) / matrix")),
        right("rows of windows first", (TENSOR, "rows = problem.N_i * problem.C_i * problem.H_o\n    tensor = rows * problem.H_f * problem.W_i")),
    ],
    "printed": [
        given("out of bounds"),
        wrong("the row corrected, the place not", "answer", *PLAIN, (PIXEL, "windows[i_n, i_c, o_h, o_w * s_w + f_w]")),
        wrong("the place corrected, the row not", "out of bounds", *PLAIN, (PIXEL, PIXEL.replace("o_h,", "o_h * s_w + f_h,"))),
        wrong("row and column exchanged in the place", "answer", *PLAIN, (PIXEL, PIXEL.replace("(o_w * s_w + f_w * d_w) * H_f + f_h", "o_w * s_w * H_f + f_h * W_f + f_w"))),
        wrong("dilation forgotten", "answer", *PLAIN, (PIXEL, PIXEL.replace("f_w * d_w", "f_w"))),
        wrong("pixels by columns, weights by rows", "answer", (PIXEL, PIXEL.replace("(o_w * s_w + f_w * d_w) * H_f + f_h", "o_w * s_w * H_f + k % (H_f * W_f)")), (COLUMN, "f_w = k % W_f"), (ROW, "f_h = k % (H_f * W_f) // W_f")),
        wrong("stride forgotten", "answer", ("o_w * s_w", "o_w")),
        wrong("the column not times its height", "answer", ("(o_w * s_w + f_w * d_w) * H_f + f_h", "o_w * s_w + f_w * d_w + f_h")),
        wrong("rows and columns of the filter exchanged", "out of bounds", ("weight[m, i_c, f_h, f_w]", "weight[m, i_c, f_w, f_h]")),
        wrong("one channel\'s terms in all", "out of bounds", (COLUMN, "f_w = k // H_f")),
        wrong("always the first image", "answer", ("windows[i_n", "windows[0")),
        wrong("no guard for the channels", "out of bounds", ("if m >= M or n >= N:", "if n >= N:")),
        right("the printed order, found in the tensor", *PLAIN),
        right("the printed order, by subtraction", (COLUMN, "f_w = k - k // W_f * W_f"), (ROW, "f_h = k // W_f % H_f")),
        right("with divmod", (COLUMN, "f_w, f_h = divmod(k % (H_f * W_f), H_f)"), (f"            {ROW}\n", "")),
    ],
}
