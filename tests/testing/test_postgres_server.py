"""The tests' PostgreSQL starts for every user, wherever the project and its packages are."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from postgres_server import Server, is_reachable, packaged_programs, shared_directory


@pytest.fixture
def private_programs(tmp_path: Path) -> Path:
    """PostgreSQL's programs as they are installed by a strict user below a private directory."""
    programs = packaged_programs()
    package = programs.parents[1]
    home = tmp_path / "home"
    shutil.copytree(programs.parent, home / package.name / programs.parent.name, symlinks=True)
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.exists():
        shutil.copytree(libraries, home / libraries.name)
    copied = home / package.name / programs.parent.name / programs.name
    (copied / "postgres").chmod(0o700)
    home.chmod(0o700)
    return copied


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server.in_new_directory("outlast-postgres-")
    yield server
    server.remove()


def test_a_server_runs_from_programs_that_only_their_owner_can_reach(
    private_programs: Path, server: Server
) -> None:
    assert not is_reachable(private_programs / "postgres")

    server.create(private_programs)
    server.start()
    try:
        with psycopg.connect(server.url) as connection:
            assert connection.execute("SELECT 1").fetchone() == (1,)
    finally:
        server.stop()
    server.remove()

    assert not server.place.exists()


def test_a_cluster_is_made_under_a_strict_umask(server: Server) -> None:
    before = os.umask(0o077)
    try:
        server.create()
    finally:
        os.umask(before)

    assert (server.data / "PG_VERSION").exists()


def test_the_server_finds_a_directory_although_the_usual_one_is_private(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tmp_path.chmod(0o700)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    found = shared_directory()

    assert os.access(found, os.W_OK)
    assert is_reachable(found) or os.geteuid() != 0
