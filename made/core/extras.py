"""How to install what is missing. The package is on no index yet, so it is installed from a checkout."""


def install(extra: str = "") -> str:
    """The command that installs made, with an extra where one is named, and where to run it.

    >>> print(install("ray"))
    pip install -e ".[ray]" in the checkout of made
    """
    what = f'".[{extra}]"' if extra else "."
    return f"pip install -e {what} in the checkout of made"
