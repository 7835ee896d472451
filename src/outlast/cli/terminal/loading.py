"""The user's app, found by its name: MODULE:APP."""

import gc
import importlib
import sys
import sysconfig
import traceback
from pathlib import Path
from types import ModuleType

import typer

from outlast.app import Outlast
from outlast.errors import InvalidDefinition, InvalidInput

OF_OTHERS = (
    str(Path(__file__).parents[2]),
    *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
)
"""Where code is that is not the user's: Outlast, Python, and what is installed."""


def load_app(name: str) -> Outlast:
    """Import an app from the current directory, or from wherever Python finds it."""
    module_name, attribute = parts_of(name)
    module = load_module(module_name)
    found = getattr(module, attribute, None)
    if isinstance(found, Outlast):
        return found
    known = [f"{module_name}:{key}" for key, value in vars(module).items() if is_app(value)]
    instead = f"; there is {', '.join(known)}" if known else "; make one: app = Outlast(…)"
    if found is None:
        raise InvalidInput(f"the module {module_name} has no {attribute}{instead}", app=name)
    kind = type(found).__name__
    raise InvalidInput(f"{name} is of type {kind}, and no Outlast app{instead}", app=name)


def load_named(name: str) -> object:
    """Import something else of the user's: MODULE:NAME."""
    module_name, attribute = parts_of(name)
    found: object = getattr(load_module(module_name), attribute, None)
    if found is None:
        raise InvalidInput(f"the module {module_name} has no {attribute}", name=name)
    return found


def keep_what_is_loaded() -> None:
    """Have no later garbage collection look through what a service has loaded: all that stays.

    A full collection of a server's modules stops its event loop for tens of milliseconds, and all
    its callers with it.
    """
    gc.collect()  # what is garbage by now would be kept, too
    gc.freeze()


def parts_of(name: str) -> tuple[str, str]:
    module_name, _, attribute = name.partition(":")
    if not module_name or not attribute:
        raise typer.BadParameter(f"write MODULE:APP, as in shop:app, instead of {name!r}")
    return module_name, attribute


def is_app(value: object) -> bool:
    return isinstance(value, Outlast)


def load_module(name: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            raise InvalidInput(
                f"there is no module {name} in {here} or on Python's path; go to its directory"
                " or install it",
                module=name,
            ) from error
        raise cannot_import(name, error) from error
    except Exception as error:
        raise cannot_import(name, error) from error


def cannot_import(name: str, error: Exception) -> InvalidDefinition:
    file, line = place_of(error)
    said = error.msg if isinstance(error, SyntaxError) else str(error)
    return InvalidDefinition(
        f"importing {name} failed: {type(error).__name__}: {said} ({file}, line {line})",
        module=name,
    )


def place_of(error: Exception) -> tuple[str, int | None]:
    """Return the last line of the user's own that an error came through."""
    if isinstance(error, SyntaxError) and error.filename:
        return error.filename, error.lineno
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(("<", *OF_OTHERS))]
    last = (own or frames)[-1]
    return last.filename, last.lineno
