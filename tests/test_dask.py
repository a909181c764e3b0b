"""Work is handed to the workers of a Dask scheduler, here of a local cluster with simulators."""

from __future__ import annotations

import sys

import pytest
from stage_mutants import results
from stage_mutants.generated import modules, mutants_of

from convlab.support.dask_workers import dask_workers


def test_without_distributed_it_says_what_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(ValueError, match=r"reached by distributed: run .*dask"):
        dask_workers("tcp://127.0.0.1:1").__enter__()


def test_an_address_where_no_scheduler_answers_is_refused(monkeypatch):
    pytest.importorskip("distributed", reason="needs distributed, which is optional")
    monkeypatch.setattr("convlab.support.dask_workers.ANSWER_SECONDS", 1)
    for address in ("tcp://127.0.0.1:1", "nowhere"):
        with pytest.raises(ValueError, match=f"no Dask scheduler answers at '{address}': "):
            dask_workers(address).__enter__()


def test_a_cluster_s_results_are_those_of_this_machine():
    distributed = pytest.importorskip("distributed", reason="needs distributed, which is optional")
    name = next(name for name in modules() if name.endswith("m01_direct"))
    chosen = [*mutants_of(name)][:4]
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, dashboard_address=None, host="127.0.0.1"
    ) as cluster:
        found = dict(results.run(chosen, 1, cluster.scheduler_address))
    assert found == {one: results.result_of(one) for one in chosen}


def test_a_scheduler_without_workers_and_workers_of_several_threads_are_refused(monkeypatch):
    distributed = pytest.importorskip("distributed", reason="needs distributed, which is optional")
    monkeypatch.setattr("convlab.support.dask_workers.ANSWER_SECONDS", 1)
    with distributed.LocalCluster(
        n_workers=0, threads_per_worker=2, processes=False, dashboard_address=None
    ) as cluster:
        address = cluster.scheduler_address
        with pytest.raises(ValueError, match=f"^the Dask scheduler at '{address}' has no workers$"):
            dask_workers(address).__enter__()
        cluster.scale(1)
        monkeypatch.setattr("convlab.support.dask_workers.ANSWER_SECONDS", 20)
        with dask_workers(address) as workers:
            assert workers.executor.submit(abs, -3).result() == 3
            assert workers.count == 1
        with pytest.raises(ValueError, match=r"^worker .* has 2 threads: start it with --nthreads"):
            dask_workers(address, one_thread=True).__enter__()
