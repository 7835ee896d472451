import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_a_quick_run_prints_a_table_and_writes_json(tmp_path: Path) -> None:
    report = tmp_path / "found.json"
    command = [sys.executable, "-m", "benchmarks", "overhead", "--quick", "--repeats", "2"]

    done = subprocess.run(
        [*command, "--json", str(report), "--directory", str(tmp_path)],
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
    assert measures["ratio"]["met"] is overhead["met"] is not None
    assert all(len(measure["values"]) == 2 for measure in measures.values())


def test_an_unknown_workload_is_refused_with_those_that_there_are() -> None:
    command = [sys.executable, "-m", "benchmarks", "speed"]

    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.returncode == 2
    assert "no workload speed" in done.stderr
    assert "overhead, concurrency" in done.stderr
