"""The named problems; test_docs.py compares the twelve layers with Table 2 in the glossary."""

import pytest

from convlab.problem import ConvProblem
from convlab.workloads import GPU_DEFAULT, LAYER_NAMES, TEACHING, paper_layer

pytestmark = pytest.mark.same_in_cudasim


def test_the_layers_are_the_tables_twelve_in_its_order():
    assert tuple(f"conv{number}" for number in range(1, 13)) == LAYER_NAMES
    assert all(paper_layer(name).padding == ((0, 0), (0, 0)) for name in LAYER_NAMES)
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
