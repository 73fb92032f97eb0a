"""A hook of mkdocs: what a page links to outside docs/ comes along with the site.

On a code host `../examples/own_bonus.py` leads to the file. In the site, which knows docs/ alone, such a link would be
dead: here the file is copied to files/examples/own_bonus.py and the link leads there. A link to a folder leads to its
files in a list. Nothing is fetched.
"""

import re
from pathlib import Path

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"(!?\[[^\]]*\]\()([^)\s#]+)(#[^)]*)?\)")
FENCE = re.compile(r"^```.*?^```", re.M | re.S)


def outside(page: str, target: str) -> Path | None:
    """The file or folder of the repository, outside docs/, that a link of this page leads to, if it leads there."""
    if "://" in target or target.startswith(("/", "mailto:")):
        return None
    path = (ROOT / "docs" / page).parent.joinpath(target).resolve()
    if path.is_relative_to(ROOT / "docs") or not path.is_relative_to(ROOT):
        return None
    return path


def links(text: str) -> list[re.Match]:
    """The links of a page, but for those in blocks of code."""
    blank = FENCE.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), text)
    return list(LINK.finditer(blank))


def place(path: Path) -> str:
    """Where a file or folder of the repository lies in the site."""
    inside = path.relative_to(ROOT).as_posix()
    return f"files/{inside}/index.html" if path.is_dir() else f"files/{inside}"


def listed(folder: Path) -> str:
    """The files of a folder as a page."""
    files = (file.name for file in sorted(folder.iterdir()) if file.is_file())
    rows = (f'<li><a href="{_plain(name)}">{name}</a></li>' for name in files)
    return f"<!doctype html><meta charset='utf-8'><title>{folder.name}</title><ul>{''.join(rows)}</ul>"


def on_files(files: Files, config) -> Files:
    """Add what the pages link to."""
    wanted: set[Path] = set()
    for file in files.documentation_pages():
        found = (outside(file.src_uri, link[2]) for link in links(file.content_string))
        wanted |= {path for path in found if path is not None}
    for path in sorted(wanted):
        if not path.exists():
            raise PluginError(f"A page links to {path.relative_to(ROOT)}, which is not there.")
        if path.is_dir():
            files.append(File.generated(config, place(path), content=listed(path)))
        for file in sorted(path.iterdir()) if path.is_dir() else [path]:
            if file.is_file() and files.get_file_from_path(_plain(place(file))) is None:
                files.append(File.generated(config, _plain(place(file)), abs_src_path=str(file)))
    return files


def on_page_markdown(markdown: str, page, config, files) -> str:
    """Point those links to where the files lie in the site."""
    up = "../" * page.file.src_uri.count("/")
    for link in reversed(links(markdown)):
        if path := outside(page.file.src_uri, link[2]):
            markdown = markdown[: link.start(2)] + up + _plain(place(path)) + markdown[link.end(2) :]
    return markdown


def _plain(name: str) -> str:
    """A Markdown file outside docs/ is shown as text: as a page it would need a place in the menu."""
    return f"{name}.txt" if name.endswith((".md", ".py", ".cff")) else name
