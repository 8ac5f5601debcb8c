"""python -m analysis.page FILE.md: the same as one HTML page with its plots inside, to be mailed or archived."""

from __future__ import annotations

import base64
import html
import re
import sys
from pathlib import Path

from markdown_it import MarkdownIt

from tokenswarm import runs

STYLE = """
:root { color-scheme: light dark; --line: #d5dadd; --head: #f1f4f5; --soft: #59636b; --link: #1f6fb4 }
@media (prefers-color-scheme: dark) { :root { --line: #3a4147; --head: #23282c; --soft: #9aa5ad; --link: #7ab8f0 } }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 76em; margin: 2em auto; padding: 0 1.2em }
body { overflow-wrap: anywhere }
h1 { margin-bottom: .2em } h1 + p { font-weight: 600 } h2 { margin-top: 1.8em; border-bottom: 1px solid var(--line) }
a { color: var(--link) } img { max-width: 100%; background: white; border-radius: 4px }
.wide { overflow-x: auto } table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums }
th, td { padding: .3em .5em; border-bottom: 1px solid var(--line); white-space: nowrap } th { background: var(--head) }
ul { padding-left: 1.3em } code { font-size: .92em }
"""


def page(text: str, folder: Path) -> str:
    """Markdown as an HTML page; pictures named in it are read from `folder`, links to report.md go to report.html."""
    body = MarkdownIt("commonmark", {"html": False}).enable("table").render(text)
    body = re.sub(r'<img src="([^"]+)"', lambda found: f'<img src="{_inline(folder / found[1])}"', body)
    body = body.replace('report.md">', 'report.html">')
    body = body.replace("<table>", '<div class="wide"><table>').replace("</table>", "</table></div>")
    title = html.escape(text.partition("\n")[0].lstrip("# "))
    head = '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
    return f"{head}<title>{title}</title><style>{STYLE}</style>\n{body}</html>\n"


def _inline(picture: Path) -> str:
    """A PNG as a data URI; its name where it is gone."""
    try:
        return "data:image/png;base64," + base64.b64encode(picture.read_bytes()).decode()
    except OSError:
        return picture.name


def write(source: Path) -> Path:
    """Write FILE.html beside FILE.md and return it."""
    out = source.with_suffix(".html")
    runs.write_whole(out, page(source.read_text(encoding="utf-8"), source.parent))
    return out


def main(words: list[str]) -> int:
    """Exit code 0; 2 when the file cannot be read or written."""
    if len(words) != 1 or not words[0].endswith(".md"):
        print("page: give one .md file", file=sys.stderr)
        return 2
    try:
        print(write(Path(words[0])))
    except (OSError, UnicodeDecodeError) as error:
        print(f"page: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
