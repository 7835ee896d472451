import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_a_quick_run_prints_a_table_and_writes_json(tmp_path: Path) -> None:
    report = tmp_path / "found.json"
    command = [sys.executable, "-m", "benchmarks", "overhead", "--quick", "--repeats", "2"]

    done = subprocess.run(
        [*command, "--store", "sqlite", "--json", str(report), "--directory", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )

    assert "of the floor's steps per second" in done.stdout
    assert "overhead: repeat 2 of 2" in done.stderr
    found = json.loads(report.read_text())
    assert set(found) == {"machine", "quick", "repeats", "workloads"}
    assert (found["quick"], found["repeats"]) == (True, 2)
    [overhead] = found["workloads"]
    measures = {measure["name"]: measure for measure in overhead["measures"]}
    assert {"ratio", "floor", "step", "decide", "fold", "encode", "SQL"} <= set(measures)
    assert set(measures["ratio"]) == {"name", "unit", "median", "values", "goal", "met"}
    assert measures["ratio"]["goal"] == "≥ 0.5"
    assert overhead["met"] is all(measure["met"] is not False for measure in measures.values())
    assert measures["ratio"]["met"] is (measures["ratio"]["median"] >= 0.5)
    assert all(len(measure["values"]) == 2 for measure in measures.values())


def test_on_postgresql_there_is_a_floor_of_its_own_and_what_a_fleet_costs(
    tmp_path: Path, postgres_server: str
) -> None:
    report = tmp_path / "found.json"
    command = [sys.executable, "-m", "benchmarks", "overhead", "scale", "--quick"]

    subprocess.run(
        [*command, "--store", "postgres", "--repeats", "1", "--json", str(report)],
        cwd=ROOT,
        env=os.environ | {"OUTLAST_TEST_POSTGRES": postgres_server},
        check=True,
    )

    found = json.loads(report.read_text())
    assert "postgres" in found["machine"]
    overhead, scale = found["workloads"]
    assert overhead["name"] == "overhead (PostgreSQL)"
    measures = {measure["name"] for measure in overhead["measures"]}
    assert {"ratio", "floor", "step", "sent", "waiting for the server"} <= measures
    counted = {measure["name"]: measure for measure in scale["measures"]}
    assert {"steps, 4 processes ÷ 1", "claim, 100,000 ÷ 1,000"} <= set(counted)
    assert counted["round trips"]["median"] >= 1  # a step's commit, and what goes with it
    assert counted["round trips"]["goal"] == "≤ 4"
    assert counted["idle queries"]["goal"] == "≤ 2"


def test_a_workload_is_refused_on_a_store_that_it_makes_no_sense_on() -> None:
    command = [sys.executable, "-m", "benchmarks", "scale", "--store", "sqlite"]

    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.returncode == 2
    assert "scale is not measured on sqlite" in done.stderr


def test_an_unknown_workload_is_refused_with_those_that_there_are() -> None:
    command = [sys.executable, "-m", "benchmarks", "speed"]

    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.returncode == 2
    assert "no workload speed" in done.stderr
    assert "overhead, concurrency" in done.stderr


def test_a_short_soak_says_what_grew_and_whether_its_goal_was_kept(tmp_path: Path) -> None:
    report = tmp_path / "found.json"
    command = [sys.executable, "-m", "benchmarks.soak", "--minutes", "0.05", "--interval", "1"]

    done = subprocess.run(
        [*command, "--store", "sqlite", "--json", str(report), "--directory", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )

    assert "p99 of a turn within 3 times its median" in done.stdout
    assert "KEPT" in done.stdout.upper()
    intervals = json.loads(report.read_text())["sqlite"]
    assert {"turns", "memory (MiB)", "descriptors", "WAL (KiB)", "by hand p99 / p50"} <= set(
        intervals[0]
    )
    assert intervals[-1]["turns"] > 0
    assert intervals[-1]["errors"] == 0
