"""How to install what is missing. The package is on no index yet, so it is installed from a checkout."""

import contextlib
from collections.abc import Iterator


class MissingExtra(ModuleNotFoundError, ValueError):
    """An optional dependency is not installed. The message says how to install it."""


@contextlib.contextmanager
def needs(who: str, extra: str, *libraries: str) -> Iterator[None]:
    """Import optional libraries inside this block: where one of them is missing, the error names the extra.

    >>> with needs("A plug-in", "sb3", "no_such_library"):
    ...     import no_such_library
    Traceback (most recent call last):
    made.core.extras.MissingExtra: A plug-in needs no_such_library: pip install -e ".[sb3]" in the checkout of made.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        name = (error.name or "").partition(".")[0]
        if name not in libraries:
            raise
        raise MissingExtra(f"{who} needs {name}: {install(extra)}.", name=name) from None


def install(extra: str = "") -> str:
    """The command that installs made, with an extra where one is named, and where to run it.

    >>> print(install("ray"))
    pip install -e ".[ray]" in the checkout of made
    """
    what = f'".[{extra}]"' if extra else "."
    return f"pip install -e {what} in the checkout of made"
