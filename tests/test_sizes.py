"""s12 on sizes that nobody tuned for: the benchmark on a pretended GPU, and the page of it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from bench_fakes import InThread

from convlab.bench import cases, pool, size_tables, sizes
from convlab.bench.size_tables import OURS, SYSTEMS, TORCH, kernel
from convlab.engines import EngineUnavailable
from convlab.engines.simulator import Simulator
from convlab.problem import ConvProblem
from convlab.workloads import LAYER_NAMES, UNSEEN, UNTUNED, paper_layer

pytestmark = pytest.mark.same_in_cudasim

ROOT = Path(__file__).parents[1]
SMALL = {"small": ConvProblem(1, 2, 6, 6, 3, 3), "odd": ConvProblem(2, 3, 5, 7, 2, 1)}
GEMM = "sm80_xmma_fprop_implicit_gemm_f32f32_f32f32_f32_nchwkcrs_nchw_tilesize256x64x8_stage3_w"
FFT = "sm80_xmma_gemm_cf32cf32_f32f32_cf32_tn_n_tilesize64x64x8_stage3; void fft2d_r2c_32x32<float>"


class PretendedGpu(Simulator):
    name, is_gpu, device = "gpu", True, "pretended GPU"


@pytest.fixture
def gpu(monkeypatch):
    """A GPU, two small problems, and a laboratory that knows every name, in threads."""
    monkeypatch.setattr(sizes, "choose", lambda name: PretendedGpu(strict=False))
    monkeypatch.setattr(pool, "Worker", InThread)
    monkeypatch.setattr(sizes, "BACKEND", "seed_fakes:Named")
    for module in (sizes, size_tables):
        monkeypatch.setattr(module, "PROBLEMS", SMALL)
    monkeypatch.setattr(size_tables, "UNSEEN", SMALL)


def of(document):
    return [(row["layer"], row["system"]) for row in document["rows"]]


def test_every_system_on_every_problem(gpu, tmp_path, capsys):
    file = tmp_path / "new" / "sizes.json"
    assert sizes.main(["--json", str(file)]) == 0
    document = json.loads(file.read_text())
    assert of(document) == [(name, system) for name in SMALL for system in SYSTEMS]
    assert document["device"] == "pretended GPU"
    assert document["environment"]["command"] == f"python -m convlab.bench.sizes --json {file}"
    out, err = capsys.readouterr()
    assert out == size_tables.show(document) + "\n"
    assert "10 of 10" in err
    assert [path.name for path in file.parent.iterdir()] == ["sizes.json"]


def test_one_problem_is_added_to_what_is_there(gpu, tmp_path, capsys):
    file = tmp_path / "sizes.json"
    assert sizes.main(["--json", str(file), "--problem", "odd"]) == 0
    first = json.loads(file.read_text())
    assert {layer for layer, _ in of(first)} == {"odd"}
    assert sizes.main(["--json", str(file)]) == 0
    document = json.loads(file.read_text())
    assert document["rows"][:5] == first["rows"]
    assert {layer for layer, _ in of(document)[5:]} == {"small"}
    assert "5 of 5" in capsys.readouterr().err


def test_an_interrupted_run_goes_on_where_it_was(gpu, tmp_path, monkeypatch, capsys):
    file, whole = tmp_path / "sizes.json", cases.run

    def interrupted(*arguments):
        for number, row in enumerate(whole(*arguments)):
            if number == 3:
                raise KeyboardInterrupt
            yield row

    monkeypatch.setattr(cases, "run", interrupted)
    assert sizes.main(["--json", str(file)]) == 130
    assert capsys.readouterr().err.endswith("convlab: interrupted, the same command goes on\n")
    kept = json.loads(file.read_text())["rows"]
    assert len(kept) == 3
    monkeypatch.setattr(cases, "run", whole)
    assert sizes.main(["--json", str(file)]) == 0
    document = json.loads(file.read_text())
    assert document["rows"][:3] == kept
    assert sorted(of(document)) == sorted((name, system) for name in SMALL for system in SYSTEMS)


def test_rows_of_other_code_or_of_an_accident_are_measured_again(gpu, tmp_path):
    file = tmp_path / "sizes.json"
    assert sizes.main(["--json", str(file), "--problem", "odd"]) == 0
    document = json.loads(file.read_text())
    document["rows"][0]["identity"] = "other code"
    document["rows"][1] |= {"state": "busy", "reason": "others", "time_ms": None}
    document["rows"][2]["problem"] = "what odd was once"
    file.write_text(json.dumps(document))
    assert sizes.main(["--json", str(file), "--problem", "odd"]) == 0
    again = json.loads(file.read_text())
    assert {row["state"] for row in again["rows"]} == {"measured"}
    now = [row for row in again["rows"] if row["problem"] == str(SMALL["odd"])]
    assert sorted(row["system"] for row in now) == sorted(SYSTEMS)


def test_a_wrong_result_exits_1_and_has_no_ratio(gpu, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(__import__("seed_fakes").HOW, OURS, "wrong")
    assert sizes.main([]) == 1
    said = capsys.readouterr().out
    assert "### Without a number" in said
    assert f"| `{OURS}` | small | wrong |" in said


@pytest.mark.parametrize(
    ("arguments", "content", "said"),
    [
        (["--problem", "conv9"], None, "problem is 'conv9': it must be one of small, odd"),
        ([], "{", "no file of this benchmark"),
        ([], "[]", "no file of this benchmark"),
        ([], '{"rows": [{"layer": "odd"}]}', "no file of this benchmark"),
    ],
)
def test_what_will_not_do_is_said_in_one_line(gpu, tmp_path, capsys, arguments, content, said):
    file = tmp_path / "sizes.json"
    if content is not None:
        file.write_text(content)
    assert sizes.main([*arguments, "--json", str(file)]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1
    assert not file.exists() or file.read_text() == content


def test_it_needs_a_gpu(monkeypatch, capsys):
    def choose(name):
        raise EngineUnavailable("there is none")

    monkeypatch.setattr(sizes, "choose", choose)
    assert sizes.main([]) == 2
    assert "there is none: its times mean nothing without one" in capsys.readouterr().err


def test_the_problems_are_others_than_the_paper_s():
    assert not {*UNTUNED} & {*UNSEEN}
    problems = [*map(str, [*UNTUNED.values(), *UNSEEN.values()])]
    assert len(set(problems)) == len(problems)
    assert not {*problems} & {str(paper_layer(name)) for name in LAYER_NAMES}


# The page.


def row(name, system, time_ms, algorithm=None):
    problem = size_tables.PROBLEMS[name]
    return {
        "problem": str(problem), "layer": name, "batch": problem.batch, "system": system,
        "state": "measured", "time_ms": time_ms, "time_spread": 1.0, "repeats": 20,
        "tflops": problem.flops / time_ms / 1e9, "algorithm": algorithm,
    }  # fmt: skip


def document(chosen, torch_ms, name="resnet50_1", ours_ms=2.0):
    rows = [
        row(name, OURS, ours_ms, "64x128x16/8x8"),
        row(name, TORCH, torch_ms, chosen),
        row(name, "cudnn_gemm", 4.0, "GEMM"),
        row(name, "cudnn_implicit_gemm", 3.0, "IMPLICIT_GEMM"),
    ]
    return {"device": "a GPU", "machine": {"multiprocessors": 132}, "rows": rows}


@pytest.mark.parametrize(
    ("chosen", "torch_ms", "whose", "ratio"),
    [
        (GEMM, 1.0, TORCH, 0.5),
        (GEMM, 3.5, "cudnn_implicit_gemm", 1.5),
        (FFT, 1.0, "cudnn_implicit_gemm", 1.5),
        (None, 1.0, "cudnn_implicit_gemm", 1.5),
    ],
)
def test_pytorch_s_choice_counts_where_it_is_a_gemm(chosen, torch_ms, whose, ratio):
    (size,) = size_tables.sizes(document(chosen, torch_ms))
    assert size.gemm_class.system == whose
    assert size.ratio == ratio
    assert size.over_torch == torch_ms / 2.0


def test_the_table_has_times_kernels_and_ratios():
    shown = size_tables.show(document(GEMM, 1.0))
    problem = UNTUNED["resnet50_1"]
    assert f"| {problem} | 0.50 | 0.50 | yes | 2 | {problem.flops / 2e9:.1f} | 1 | 1 |" in shown
    kernels = "torch_fp32 | `sm80_xmma_fprop_implicit_gemm 256x64x8`"
    assert f"| 1 | 1 | 64x128x16/8x8 | - | {kernels} |" in shown
    fitted = "as the GEMM class, fitted to"
    assert f"| {fitted} | 1 | 0.50 | 0.50 | 0.50 | 1 | 1 |" in shown


def test_a_row_says_whether_the_model_had_seen_it():
    (name, *_) = size_tables.UNSEEN
    shown = size_tables.show(document(GEMM, 1.0, name))
    assert f"| {size_tables.UNSEEN[name]} | 0.50 | 0.50 | no | 2 |" in shown


@pytest.mark.parametrize(
    ("name", "tile", "parts"),
    [
        ("one_image_6", "64x64x16/8x4", "16"),
        ("vgg16_2", "64x128x16/8x8", "1"),
        ("vgg16_2", "64x64x16/8x4", "-"),  # not what the model takes now
        ("vgg16_2", None, "-"),
    ],
)
def test_into_how_many_parts_sums_are_split_is_said(name, tile, parts):
    assert size_tables.parts(UNTUNED[name], tile, 132) == parts


def test_what_did_not_settle_is_marked_and_so_is_every_ratio_of_it():
    rough = document(GEMM, 1.0)
    problem = UNTUNED["resnet50_1"]
    rate = f"{problem.flops / 2e9:.1f}"
    rough["rows"][1]["settled"] = False  # PyTorch's
    assert f"| {problem} | ~0.50 | ~0.50 | yes | 2 | {rate} | ~1 | ~1 |" in size_tables.show(rough)
    assert f"| {problem} | 2 | ~1 | ~0.50 |" in size_tables.slow(rough)
    rough["rows"][0]["settled"], rough["rows"][1]["settled"] = False, True
    assert f"| {problem} | ~0.50 | ~0.50 | yes | ~2 | ~{rate} | 1 | 1 |" in size_tables.show(rough)


def test_what_is_slower_is_listed_with_where_it_is_explained():
    slow = size_tables.slow(document(GEMM, 1.0, "one_image_2"))
    assert slow.startswith("On 1 of 1 problems, on 1 below 0.7.\n")
    assert (
        f"| {UNTUNED['one_image_2']} | 2 | 1 | 0.50 | [a single image](#a-single-image) |" in slow
    )
    assert size_tables.slow(document(GEMM, 1.6)).startswith("On 1 of 1 problems, on 0 below 0.7.")
    assert size_tables.slow(document(GEMM, 3.0)) == "On 0 of 1 problems, on 0 below 0.7.\n"


def test_the_slowest_comes_first():
    rows = [
        one
        for name, time in (("vgg16_2", 1.8), ("resnet50_3", 1.2), ("few_filters", 1.5))
        for one in document(GEMM, time, name)["rows"]
    ]
    found = size_tables.slower({"rows": rows})
    assert [size.name for size in found] == ["resnet50_3", "few_filters", "vgg16_2"]
    assert [size.kind for size in found] == ["others", "channels that 8 does not divide", "others"]


@pytest.mark.parametrize(
    ("algorithm", "shown"),
    [
        (GEMM, "`sm80_xmma_fprop_implicit_gemm 256x64x8`"),
        (FFT, "`sm80_xmma_gemm_complex 64x64x8`"),
        ("void implicit_convolve_sgemm<float, float, 1024>(int); b", "`implicit_convolve_sgemm`"),
        ("void cudnn::winograd_nonfused::winogradForward4x4<float>(int)", "`winogradForward4x4`"),
    ],
)
def test_kernels_are_told_by_short_names(algorithm, shown):
    assert kernel(algorithm) == shown


def test_the_page_is_what_the_results_give(capsys):
    assert size_tables.main(["--root", str(ROOT), "--check"]) == 0, capsys.readouterr().err


def test_whatever_is_slower_is_explained():
    page = (ROOT / size_tables.PAGE).read_text()
    sections = re.split("^### ", page.partition("slow:end")[2], flags=re.MULTILINE)[1:]
    told = {heading.lower(): text for heading, _, text in (one.partition("\n") for one in sections)}
    assert told.keys() <= {*size_tables.KINDS, "others"}
    file = ROOT / size_tables.FILE
    if not file.exists():  # nothing is claimed then
        assert "Not measured yet" in page
        return
    for size in size_tables.slower(json.loads(file.read_text())):
        assert len(told.get(size.kind, "")) > 80, size.problem


@pytest.mark.parametrize("content", ["{", "{}", '{"rows": [{}]}'])
def test_what_is_no_result_is_named_in_one_line(content, tmp_path, capsys):
    (tmp_path / "docs/results").mkdir(parents=True)
    marked = "".join(f"<!-- {name}:begin -->\n<!-- {name}:end -->\n" for name in ("sizes", "slow"))
    (tmp_path / size_tables.PAGE).write_text(marked)
    (tmp_path / size_tables.FILE).write_text(content)
    assert size_tables.main(["--root", str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert "is no result of python -m convlab.bench.sizes" in err
    assert err.count("\n") == 1
