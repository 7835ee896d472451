import inspect
import json
import subprocess
import sys
from importlib.metadata import version
from typing import Any

from msgspec import Struct

import outlast

HEAVY = set(
    "anthropic authlib cryptography fastapi genai_prices google httpx httpx2 openai psycopg "
    "pydantic_ai rich skills_ref starlette strictyaml typer uvicorn".split()
)


# Each of a tool's options stands by itself above a function, and most tools name none or one.
# How an agent plans, what its milestones are and how it resumes are three questions, in no group;
# so are its skills and its context.
MORE = {"Agent": 18, "Tool": 15}


def fresh(expression: str) -> Any:
    """What an expression gives in a new process that has only imported outlast."""
    program = f"import json, sys, outlast; print(json.dumps({expression}))"
    done = subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.PIPE)
    return json.loads(done.stdout)


def test_importing_outlast_loads_no_provider_no_server_and_no_driver() -> None:
    assert HEAVY.isdisjoint(fresh("sorted(sys.modules)"))


def test_the_public_names_are_sorted() -> None:
    names = fresh("outlast.__all__")
    assert names == sorted(names)


def test_every_public_name_can_be_had() -> None:
    assert fresh("[name for name in outlast.__all__ if not hasattr(outlast, name)]") == []


def test_the_version_is_looked_up_when_it_is_asked_for() -> None:
    assert fresh("'__version__' in vars(outlast)") is False
    assert fresh("outlast.__version__") == version("outlast")
    assert fresh("hasattr(outlast, 'no_such_name')") is False


def test_no_public_constructor_has_more_than_a_dozen_parameters_but_one() -> None:
    kinds = [getattr(outlast, name) for name in outlast.__all__]
    counts = {
        kind.__name__: len(inspect.signature(kind).parameters)
        for kind in kinds
        if isinstance(kind, type) and not issubclass(kind, Struct | Exception)
    }
    counts["Tool"] -= 1  # the function itself, which `@tool` stands above

    assert counts["Outlast"] == 12
    assert {name: count for name, count in counts.items() if count > 12} == MORE
