"""The named problems, against the paper's Table 2 as it is printed."""

import pytest

from convlab.problem import ConvProblem
from convlab.workloads import GPU_DEFAULT, LAYER_NAMES, TEACHING, paper_layer

pytestmark = pytest.mark.same_in_cudasim

# im2win paper (000), Table 2: input C_i x H_i x W_i; filter C_o x H_f x W_f, stride;
# output C_o x H_o x W_o.
TABLE_2 = {
    "conv1": ((3, 227, 227), (96, 11, 11), 4, (96, 55, 55)),
    "conv2": ((3, 231, 231), (96, 11, 11), 4, (96, 56, 56)),
    "conv3": ((3, 227, 227), (64, 7, 7), 2, (64, 111, 111)),
    "conv4": ((64, 224, 224), (64, 7, 7), 2, (64, 109, 109)),
    "conv5": ((96, 24, 24), (256, 5, 5), 1, (256, 20, 20)),
    "conv6": ((256, 12, 12), (512, 3, 3), 1, (512, 10, 10)),
    "conv7": ((3, 224, 224), (64, 3, 3), 1, (64, 222, 222)),
    "conv8": ((64, 112, 112), (128, 3, 3), 1, (128, 110, 110)),
    "conv9": ((64, 56, 56), (64, 3, 3), 1, (64, 54, 54)),
    "conv10": ((128, 28, 28), (128, 3, 3), 1, (128, 26, 26)),
    "conv11": ((256, 14, 14), (256, 3, 3), 1, (256, 12, 12)),
    "conv12": ((512, 7, 7), (512, 3, 3), 1, (512, 5, 5)),
}


@pytest.mark.parametrize("name", TABLE_2)
def test_a_layer_is_its_row_of_table_2(name):
    input, (C_o, H_f, W_f), stride, output = TABLE_2[name]
    layer = paper_layer(name)
    assert layer.input_shape == (128, *input)
    assert layer.weight_shape == (C_o, input[0], H_f, W_f)
    assert layer.stride == (stride, stride)
    assert layer.padding == ((0, 0), (0, 0))
    assert layer.dilation == (1, 1)
    assert layer.output_shape == (128, *output)


def test_the_layers_are_the_tables_twelve_in_its_order():
    assert tuple(TABLE_2) == LAYER_NAMES
    assert paper_layer("Conv9", batch=4).batch == 4
    assert paper_layer("Conv9") == paper_layer("conv9") == GPU_DEFAULT
    with pytest.raises(ValueError, match="batch is 0"):
        paper_layer("conv9", batch=0)


@pytest.mark.parametrize("name", ["conv13", "conv0", "", "resnet", 9, None])
def test_another_name_is_refused_with_those_there_are(name):
    with pytest.raises(ValueError, match=f"layer is {name!r}: it must be one of conv1, .*, conv12"):
        paper_layer(name)


def test_the_teaching_problem_is_small_and_awkward():
    assert isinstance(TEACHING, ConvProblem)
    assert TEACHING.M * TEACHING.N * TEACHING.K < 10_000
    for size in (TEACHING.M, TEACHING.N, TEACHING.K, TEACHING.H_o * TEACHING.W_o):
        assert size % 4
    assert TEACHING.stride != (1, 1)
    assert TEACHING.dilation != (1, 1)
    p = TEACHING
    for size, outputs, stride, window, (before, _) in zip(
        (p.H_i, p.W_i), (p.H_o, p.W_o), p.stride, p.window_shape, p.padding, strict=True
    ):
        assert before > 0  # the first window begins there
        assert (outputs - 1) * stride + window > before + size  # the last one ends beyond the image
