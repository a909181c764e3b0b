"""Benchmarks in 16 bits and TF32: cases, tensors handed over as bits, and the rule of checking."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from bench_fakes import ENVIRONMENT
from results_tables import precisions_tables

from convlab import ConvProblem
from convlab.ladder import LADDER
from convlab.measuring import harness
from convlab.measuring.bounds import HALVES, Checked, Checker, bounds_for, limit
from convlab.measuring.cases import (
    TORCH_16_BITS,
    TORCH_TF32,
    experiment,
    precision_layers,
    row_of,
)
from convlab.measuring.harness import MeasuringOutcome
from convlab.measuring.results import Results, tensor_bytes
from convlab.measuring.roofline import Machine
from convlab.measuring.systems import system_named
from convlab.problems.number_types import NUMBER_TYPES, as_floats, as_in_kernels
from convlab.problems.oracle import random_tensors
from convlab.problems.workloads import problem_named

pytestmark = pytest.mark.same_in_cudasim

PROBLEM = ConvProblem(2, 8, 9, 7, 5, (3, 2), padding=1, dtype="bfloat16", channels_last=True)
of_halves = pytest.mark.parametrize("dtype", ["bfloat16", "float16"])


def made(dtype):
    problem = replace(PROBLEM, dtype=dtype)
    input, weight, _ = random_tensors(problem, 0, bias=False)
    checker = Checker(problem, input, weight)
    right = checker._oracle.expected.astype(np.float32).astype(problem.number_type.numpy)
    return problem, input, weight, checker, right


def test_every_layer_is_measured_in_each_type_beside_pytorch_in_both_layouts():
    cases = experiment("precisions")
    layers = {case.layer for case in cases}
    kinds = ("bfloat16", "float16", "tf32")
    last = {f"{name} tf32-last" for name in precision_layers()}
    assert layers - last == {f"{name} {kind}" for name in precision_layers() for kind in kinds}
    assert {"conv12 tf32", "stem_3x3 x 32 float16", "odd_53 bfloat16"} <= layers
    # No stage of TF32 takes ViT's patches with the channels last: the copy engine cannot walk them.
    assert last - layers == {"vit_patches tf32-last"}
    for case in cases:
        kind = case.layer.split()[-1]
        assert case.problem.channels_last == (kind != "tf32")
        assert case.problem.dtype == ("float32" if kind.startswith("tf32") else kind)
        assert problem_named(case.layer, case.problem.batch) == case.problem
    of_conv9 = [case.system.name for case in cases if case.layer == "conv9 bfloat16"]
    h08, h09 = "h08_padded_input", "h09_tf32_channels"
    own = [stage.name for stage in LADDER if "bfloat16" in stage.dtypes and stage.name != h08]
    assert of_conv9 == ["auto", *own, *TORCH_16_BITS]
    of_conv9 = [case.system.name for case in cases if case.layer == "conv9 tf32"]
    assert of_conv9 == ["auto in tf32", "t07_tf32", *TORCH_TF32]
    of_conv9 = [case.system.name for case in cases if case.layer == "conv9 tf32-last"]
    assert of_conv9 == ["auto in tf32", "h05_tf32_panels", h09, *TORCH_TF32]
    for layer, own in (
        ("odd_53 bfloat16", ["auto", "h04_stem", h08]),
        ("conv1 tf32-last", [h09]),  # "auto" is t07 there, from copies
        (
            "odd_strided x 32 tf32-last",
            ["auto in tf32", h09],
        ),  # of 72 outputs h05 has no whole panels
        ("vit_patches bfloat16", ["auto", "h04_stem"]),  # a stride that no copy engine walks
    ):
        assert [case.system.name for case in cases if case.layer == layer][:-2] == own
    assert len({case.key for case in cases}) == len(cases)


@of_halves
def test_outputs_of_16_bits_have_a_rule_of_their_own(dtype):
    problem, _, _, checker, right = made(dtype)
    precision = system_named("torch_16_bits").precision_on(problem)
    assert precision == {"bfloat16": "bf16", "float16": "fp16"}[dtype]
    assert bounds_for(precision, "any") == bounds_for(precision, "gemm") == (HALVES,)
    assert checker.check(right, precision).ok
    # A library's numbers may be next to the nearest ones; a stage's may not.
    bits = as_in_kernels(right).copy()
    bits.flat[::7] += 1
    near = bits.view(right.dtype)
    assert checker.check(near, precision, "any").ok
    assert checker.check(near, precision, "gemm").bound == HALVES
    assert not checker.check(near, precision, "gemm").ok
    noise = np.random.default_rng(0).standard_normal(right.shape)
    noise *= 3 * limit(problem, HALVES) * np.std(as_floats(right))
    assert not checker.check((as_floats(right) + noise).astype(right.dtype), precision, "any").ok


@of_halves
def test_16_bits_are_handed_over_as_bits(dtype, tmp_path):
    problem, _, _, checker, right = made(dtype)
    np.save(tmp_path / harness.OUTPUT, np.zeros(right.shape, np.uint16))
    told = SimpleNamespace(
        send=lambda message: None, recv=lambda: {"checked": Checked(HALVES, 0.5)}
    )
    assert harness._check_by_parent(told, tmp_path, right).ok
    shared = np.load(tmp_path / harness.OUTPUT).view(problem.number_type.numpy)
    assert checker.check(shared, "bf16").error_over_bound <= 1
    assert harness.same_bits(right, shared)
    assert not harness.same_bits(right, -shared)
    told.recv = lambda: pytest.fail("it was not asked")
    assert not harness._check_by_parent(told, tmp_path, as_floats(right)).ok


def test_bytes_and_peaks_follow_the_type():
    floats = replace(PROBLEM, dtype="float32", channels_last=False)
    assert 2 * tensor_bytes(PROBLEM) == tensor_bytes(floats)
    machine = Machine("a GPU", fp32_flops=1e12, tf32_flops=6e12)
    peaks = {name: machine.peak_flops(name) for name in ("fp32", "3xtf32", "tf32", "fp16", "bf16")}
    assert peaks == {"fp32": 1e12, "3xtf32": 2e12, "tf32": 6e12, "fp16": 12e12, "bf16": 12e12}


@of_halves
@pytest.mark.parametrize("name", TORCH_16_BITS)
def test_pytorch_takes_and_gives_the_problem_s_layout(name, dtype):
    pytest.importorskip("torch")
    pytest.importorskip("array_api_compat")
    problem, input, weight, checker, _ = made(dtype)
    prepared = system_named(name).prepare(problem, input, weight)
    output = prepared.output()
    assert output.dtype == NUMBER_TYPES[dtype].numpy
    assert checker.check(output, system_named(name).precision_on(problem), "any").ok
    prepared.poison()
    assert np.isnan(prepared.output()).all()
    prepared.close()


def test_a_row_s_problem_has_its_type_and_a_table_shows_the_faster_layout():
    machine = Machine("a GPU", 60e12, 500e12, 4e12)
    results = Results(machine, dict(ENVIRONMENT), "one", commands=["convlab bench"])
    times = {
        "auto": 0.1, "torch_16_bits": 0.3, "torch_16_bits_channels_last": 0.2,
        "auto in tf32": 0.4, "torch_tf32": 0.2, "torch_tf32_channels_last": 0.3,
    }  # fmt: skip
    for case in experiment("precisions"):
        taken = case.layer.startswith(("conv12", "conv9")) or case.layer == "conv7 tf32"
        if taken and case.system.name in times:
            # With the channels last convlab is twice as fast, and PyTorch by three tenths.
            own = case.system.name.startswith("auto")
            faster = (2 if own else 1 / 0.7) if case.layer.endswith("tf32-last") else 1
            time_ms = 10 * times[case.system.name] / faster
            outcome = MeasuringOutcome("measured", None, time_ms, 0.4, 20, HALVES, 0.5)
            row = row_of(case, outcome, machine, "one", 1.0)
            assert row.problem == case.problem
            results.add(row, case.system)
    text, _ = precisions_tables(results)
    assert "| bfloat16 | the twelve layers | 2 of 12 | 2.00 | 2.00 (conv9) |" in text
    assert "| tf32 | the twelve layers | 3 of 12 | 0.63 | 0.50 (conv7) |" in text
    assert "| tf32 | the four with three channels | 1 of 4 | 0.50 | 0.50 (conv7) |" in text
    assert "| conv7 tf32 | channels first | 4 | 2 | 0.50 |" in text
    assert "| conv9 tf32 | channels last | 2 | 1.4 | 0.70 |" in text
    assert sum(line.startswith("| conv7 tf32") for line in text.splitlines()) == 1
