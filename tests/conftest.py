import asyncio
import gc
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from uuid import uuid4

import pytest
import pytest_asyncio
from hypothesis import settings

from outlast.stores.sqlite import SqliteStore
from outlast.testing.clock import ManualClock

# Modules that tests share, and the package `chaos`.
sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent / "support"))

from memory_directory import use_memory_directory
from patient_loop import PatientLoop
from postgres_server import drop_schema, empty_schema, shared_server

# A deadline would time the machine, not the code.
settings.register_profile("outlast", deadline=None)
settings.load_profile("outlast")

# A shell that runs the tests in the background has them ignore Ctrl-C, and processes that
# they start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

use_memory_directory()


def pytest_collection_finish() -> None:
    """Leave what was imported and collected out of every garbage collection of the tests."""
    gc.collect()
    gc.freeze()


def pytest_asyncio_loop_factories() -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"patient": PatientLoop}


@pytest.fixture(scope="session")
def postgres_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a real PostgreSQL, one for all processes of a test run."""
    own = tmp_path_factory.getbasetemp()
    with shared_server(own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) as url:
        yield url


@pytest.fixture(scope="session")
def empty_schemas(postgres_server: str) -> Iterator[list[str]]:
    """Schemas that a test has left as it found them: making one takes longer than a test."""
    schemas: list[str] = []
    yield schemas
    for schema in schemas:
        drop_schema(postgres_server, schema)


@pytest.fixture
def new_url(postgres_server: str) -> Iterator[str]:
    """The URL of a store in a schema that does not exist."""
    schema = f"test_{uuid4().hex}"
    yield f"{postgres_server}?schema={schema}&options=-csearch_path%3D{schema}"
    drop_schema(postgres_server, schema)


@pytest.fixture
def postgres_url(postgres_server: str, empty_schemas: list[str]) -> Iterator[str]:
    """The URL of a store that is the test's own, and so are the tables that its tools make."""
    schema = empty_schemas.pop() if empty_schemas else f"test_{uuid4().hex}"
    yield f"{postgres_server}?schema={schema}&options=-csearch_path%3D{schema}"
    if empty_schema(postgres_server, schema):
        empty_schemas.append(schema)
    else:
        drop_schema(postgres_server, schema)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "outlast.db"


@pytest.fixture
def clock() -> ManualClock:
    """A clock that stands still until the test moves it."""
    return ManualClock()


@pytest_asyncio.fixture
async def store(path: Path, clock: ManualClock) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(path, clock)
    await store.migrate()
    yield store
    await store.close()
