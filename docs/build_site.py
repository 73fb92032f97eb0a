"""MkDocs hook: MathML, doctests as code, tables of settings, and the repository files that pages link to.

A link such as `../examples/own_bonus.py` works on a code host. For the site, the file is copied to
files/examples/own_bonus.py and the link is changed. A link to a folder leads to a list of its files.
"""

import html
import re
import textwrap
from pathlib import Path

import griffe
from latex2mathml.converter import convert
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

KIND = griffe.ParameterKind.positional_or_keyword
ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"(!?\[[^\]]*\]\()([^)\s#]+)(#[^)]*)?\)")
FENCE = re.compile(r"^( *)```.*?^\1```", re.M | re.S)
MATH = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.S)
DOCTEST = re.compile(r"^( *)>>> .*?(?=\n\s*\n|\Z)", re.M | re.S)
COMMENT = re.compile(r"  # (?!type:|noqa|pyright)(.*)$")
DEFAULT = re.compile(r"eqx\.field\(.*?default=(.*)\)$|eqx\.field\((?!.*default).*\)$", re.S)


# Links to files of the repository


def repository_path(page: str, target: str) -> Path | None:
    """The file or folder outside docs/ that a link of this page leads to, or None."""
    if "://" in target or target.startswith(("/", "mailto:")):
        return None
    path = (ROOT / "docs" / page).parent.joinpath(target).resolve()
    if path.is_relative_to(ROOT / "docs") or not path.is_relative_to(ROOT):
        return None
    return path


def links(text: str) -> list[re.Match]:
    """The links of a page outside code blocks."""
    blank = FENCE.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), text)
    return list(LINK.finditer(blank))


def site_path(path: Path) -> str:
    inside = path.relative_to(ROOT).as_posix()
    return f"files/{inside}/index.html" if path.is_dir() else _plain(f"files/{inside}")


def folder_page(folder: Path) -> str:
    names = (file.name for file in sorted(folder.iterdir()) if file.is_file())
    rows = (f'<li><a href="{_plain(name)}">{name}</a></li>' for name in names)
    return f"<!doctype html><meta charset='utf-8'><title>{folder.name}</title><ul>{''.join(rows)}</ul>"


def on_files(files: Files, config) -> Files:
    """Add the repository files that pages link to."""
    paths: set[Path] = set()
    for file in files.documentation_pages():
        found = (repository_path(file.src_uri, link[2]) for link in links(file.content_string))
        paths |= {path for path in found if path is not None}
    for path in sorted(paths):
        if not path.exists():
            raise PluginError(f"A page links to {path.relative_to(ROOT)}, which does not exist.")
        if path.is_dir():
            files.append(File.generated(config, site_path(path), content=folder_page(path)))
        for file in sorted(path.iterdir()) if path.is_dir() else [path]:
            if file.is_file() and files.get_file_from_path(site_path(file)) is None:
                files.append(File.generated(config, site_path(file), abs_src_path=str(file)))
    return files


def on_page_markdown(markdown: str, page, config, files) -> str:
    """Change links to repository files to their copies in the site."""
    up = "../" * page.file.src_uri.count("/")
    for link in reversed(links(markdown)):
        if path := repository_path(page.file.src_uri, link[2]):
            markdown = markdown[: link.start(2)] + up + site_path(path) + markdown[link.end(2) :]
    return markdown


def _plain(name: str) -> str:
    """Markdown outside docs/ is served as text: a page would need an entry in the navigation."""
    return f"{name}.txt" if name.endswith((".md", ".py", ".cff")) else name


# Formulas


def on_page_content(text: str, page, config, files) -> str:
    """Render formulas as MathML, which browsers show without a script."""
    return MATH.sub(lambda m: convert(html.unescape(m[2]), display="block" if m[1] == "div" else "inline"), text)


# Docstrings


class Docstrings(griffe.Extension):
    """Doctests become code blocks; the fields of a class become its parameters, described by their comments."""

    def on_object(self, *, obj: griffe.Object, **kwargs) -> None:
        if obj.docstring:
            obj.docstring.value = DOCTEST.sub(_code_block, obj.docstring.value)
        if isinstance(obj, griffe.Class) and "__init__" not in obj.members:
            add_parameters(obj)


def _code_block(doctest: re.Match) -> str:
    return textwrap.indent(f"```pycon\n{textwrap.dedent(doctest[0])}\n```", doctest[1])


def add_parameters(obj: griffe.Class) -> None:
    """An `__init__` with the fields of a frozen class, and an Args section with their comments."""
    own = [member for name, member in obj.members.items() if not name.startswith("_") and not member.is_alias]
    fields = [one for one in own if isinstance(one, griffe.Attribute) and _is_field(one)]
    if not fields:
        return
    parameters, rows = [], {}
    for field in fields:
        parameter = griffe.Parameter(field.name, annotation=field.annotation, kind=KIND, default=_default(field))
        parameters.append(parameter)
        comment = COMMENT.search(field.source.split("\n")[-1])
        rows[field.name] = comment[1] if comment else ""
    obj.set_member("__init__", griffe.Function("__init__", parameters=griffe.Parameters(*parameters), parent=obj))
    if obj.docstring and not re.search(r"^(Args|Attributes):", obj.docstring.value, re.M) and any(rows.values()):
        obj.docstring.value += "\n\nArgs:\n" + "\n".join(f"    {name}: {text}" for name, text in rows.items())


def _is_field(field: griffe.Attribute) -> bool:
    return "instance-attribute" in field.labels and not str(field.annotation).startswith(("None", "AbstractVar"))


def _default(field: griffe.Attribute) -> str | None:
    value = None if field.value is None else str(field.value)
    match = DEFAULT.match(value or "")
    return match[1] if match else value
