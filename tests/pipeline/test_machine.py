"""Workers and threads: never more than there is work, cores or memory for."""

import sys

import pytest

import pipeline.shards.verify  # noqa: F401
from pipeline import machine
from pipeline.jobs import run_beam
from pipeline.jobs.run_beam import pipeline_options
from pipeline.machine import Machine, num_cores, this_machine
from pipeline.settings import BuildSettings
from tests.pipeline.programs import run

GB = 2**30
LARGE = 100 * GB


def write(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


@pytest.fixture
def cores(monkeypatch):
    """cores(n): as many may be run on."""
    return lambda number: monkeypatch.setattr(
        "os.sched_getaffinity", lambda _: set(range(number)), raising=False
    )


@pytest.mark.parametrize(
    ("wanted", "tasks", "cores", "free", "said"),
    [
        (1000, 3, 8, LARGE, "3 instead of 1,000, as there are 3 task(s)"),
        (1000, 5000, 8, LARGE, "32 instead of 1,000, as 4 a core are the most, of 8 core(s)"),
        (
            24,
            100,
            8,
            2 * GB,
            "2 instead of 24, as 2.1 GB of memory are free, and each may take 0.7 GB",
        ),
        (8, 0, 8, LARGE, "1 instead of 8, as there are 0 task(s)"),
        (16, 16, 4, LARGE, ""),
        (3, 100, 8, None, ""),
    ],
)
def test_workers_are_limited_by_work_cores_and_memory(wanted, tasks, cores, free, said):
    chosen, why = Machine(cores, free).limit(wanted, tasks)
    assert why == said
    assert chosen == (int(said.split()[0]) if said else wanted)


MEMINFO = "MemTotal:       99999999 kB\nMemAvailable:   10485760 kB"


def test_a_machine_without_groups(tmp_path, cores):
    cores(6)
    assert this_machine(tmp_path) == Machine(6, None)
    assert this_machine(write(tmp_path, {"proc/meminfo": MEMINFO})) == Machine(6, 10 * GB)


@pytest.mark.parametrize(
    ("quota", "found"), [("250000 100000", 3), ("max 100000", 6), ("50000 100000", 1), ("x", 6)]
)
def test_groups_of_version_2_limit_cores_also_from_above(tmp_path, cores, quota, found):
    cores(6)
    write(tmp_path, {"proc/self/cgroup": "0::/slice/job", "sys/fs/cgroup/slice/cpu.max": quota})
    write(tmp_path, {"sys/fs/cgroup/slice/job/cpu.max": "max 100000"})
    assert num_cores(tmp_path) == found


def test_groups_of_version_2_limit_memory_and_files_in_it_are_free(tmp_path, cores):
    cores(2)
    group = "sys/fs/cgroup/job/memory"
    files = {f"{group}.max": str(4 * GB), f"{group}.current": str(3 * GB), "proc/meminfo": MEMINFO}
    write(tmp_path, files | {"proc/self/cgroup": "0::/job"})
    assert this_machine(tmp_path) == Machine(2, 1 * GB)
    stat = f"anon 5\ninactive_file {GB}\nactive_file {GB // 2}\nfile {2 * GB}"
    write(tmp_path, {f"{group}.stat": stat})
    assert this_machine(tmp_path) == Machine(2, 5 * GB // 2)
    write(tmp_path, {f"{group}.max": "max"})
    assert this_machine(tmp_path) == Machine(2, 10 * GB)


def test_this_machine_has_some():
    found = this_machine()
    assert found.cores >= 1
    assert found.free_bytes is None or found.free_bytes > 0
    assert BuildSettings(output="x").workers == found.cores


@pytest.fixture
def eight_cores(monkeypatch):
    monkeypatch.setattr(run_beam, "this_machine", lambda: Machine(8, LARGE))
    monkeypatch.setattr(run_beam, "num_cores", lambda: 8)
    run_beam._say_once.cache_clear()
    yield
    run_beam._say_once.cache_clear()


@pytest.mark.parametrize(
    ("workers", "tasks", "started", "said"),
    [
        (1000, 5, 5, "workers: 5 instead of 1,000, as there are 5 task(s)\n"),
        (16, 90, 16, ""),
        (8, 5, 5, ""),  # the default
        (8, 1, 1, ""),
    ],
)
def test_a_graph_gets_no_more_workers_than_that(eight_cores, capsys, workers, tasks, started, said):
    for _ in range(2):  # said once
        options = pipeline_options(workers, [], tasks).get_all_options()
    assert options["direct_num_workers"] == started
    assert capsys.readouterr().err == said


def test_a_runner_of_the_users_own_is_left_alone(eight_cores, capsys):
    given = ["--runner=FnApiRunner", "--direct_num_workers=50"]
    assert pipeline_options(1000, given, 2).get_all_options()["direct_num_workers"] == 50
    assert capsys.readouterr().err == ""


@pytest.mark.processes
def test_verify_holds_no_more_shards_at_once_than_there_are_or_than_fit(
    make_dataset, tmp_path, monkeypatch
):
    used, verify = [], sys.modules["pipeline.shards.verify"].verify_dataset
    monkeypatch.setattr(
        "pipeline.shards.verify.verify_dataset",
        lambda d, n, *rest: (used.append(n), verify(d, n, *rest))[1],
    )
    folder = make_dataset(tmp_path / "data", ((20, 9),))
    for free_bytes in (LARGE, 1):
        monkeypatch.setattr(machine, "this_machine", lambda free=free_bytes: Machine(8, free))
        assert run("verify", folder) == 0
    assert used == [2, 1]
