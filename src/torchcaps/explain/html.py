"""A page that stands alone: inline style, pictures inside, no script, nothing fetched. All text given is escaped."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

from torchcaps.explain.style import png_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CSS = """
:root { color-scheme: light dark; --ink: #1d1d1f; --quiet: #62626a; --page: #fafafa; --card: #fff; --line: #e0e0e4; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #ececf0; --quiet: #a0a0aa; --page: #161618; --card: #1f1f23; --line: #37373d; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1rem 4rem; max-width: 62rem; color: var(--ink); background: var(--page);
  font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: .5rem 0 1rem; }
h2 { font-size: 1.2rem; margin: 2.5rem 0 .5rem; }
p { margin: .5rem 0; max-width: 42rem; }
.scroll { overflow-x: auto; }
figure { margin: 1rem 0; }
figcaption, .quiet { color: var(--quiet); font-size: .9rem; }
img { display: block; width: 100%; height: auto;
  border-radius: .4rem; border: 1px solid var(--line); background: #fff; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; background: var(--card); }
th, td { padding: .3rem .9rem .3rem .6rem;
  text-align: left; vertical-align: top; border-bottom: 1px solid var(--line); }
th { font-weight: 600; }
td.number, th.number { text-align: right; }
pre { overflow-x: auto; padding: .8rem; background: var(--card); border: 1px solid var(--line); border-radius: .4rem;
  font-size: .85rem; overflow-wrap: normal; }
summary { cursor: pointer; margin: .5rem 0; }
""".strip()

# The policy makes a browser refuse what the page must not do anyway: load or run anything from elsewhere.
_HEAD = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>
{css}
</style>
</head>
<body>
<h1>{title}</h1>
"""


def page(title: str, sections: Iterable[str]) -> str:
    """The whole document, from sections that `section` made."""
    return _HEAD.format(title=escape(title), css=CSS) + "\n".join(sections) + "\n</body>\n</html>\n"


def section(title: str, *parts: str) -> str:
    """A heading and what follows it; the parts are HTML already."""
    return "\n".join(["<section>", f"<h2>{escape(title)}</h2>", *parts, "</section>"])


def paragraph(text: str) -> str:
    return f"<p>{escape(text)}</p>"


def code(text: str) -> str:
    return f"<pre>{escape(text)}</pre>"


def picture(figure: Figure, alt: str, caption: str = "") -> str:
    """A figure as an image: on a phone it scrolls sideways rather than shrink until its labels cannot be read."""
    width = round(96 * figure.get_figwidth())
    data = base64.b64encode(png_bytes(figure)).decode()
    words = f"\n<figcaption>{escape(caption)}</figcaption>" if caption else ""
    return (
        f'<figure><div class="scroll"><img alt="{escape(alt)}" style="max-width: {width}px; '
        f'min-width: {min(width, 520)}px" src="data:image/png;base64,{data}"></div>{words}</figure>'
    )


def table(rows: Sequence[Sequence[str]], header: Sequence[str] = (), fold: int = 40) -> str:
    """The first column names, the others are numbers when there is a header; more than `fold` rows are folded away."""
    cell = ' class="number"' if header else ""
    lines = [_row("th", header, cell)] if header else []
    lines += [f"<tr><th>{escape(first)}</th>{_cells('td', rest, cell)}</tr>" for first, *rest in rows]
    whole = '<div class="scroll"><table>\n' + "\n".join(lines) + "\n</table></div>"
    if len(rows) <= fold:
        return whole
    return f"<details><summary>All {len(rows)} rows</summary>\n{whole}\n</details>"


def _row(tag: str, words: Sequence[str], cell: str) -> str:
    return f"<tr><{tag}>{escape(words[0])}</{tag}>{_cells(tag, words[1:], cell)}</tr>"


def _cells(tag: str, words: Sequence[str], cell: str) -> str:
    return "".join(f"<{tag}{cell}>{escape(word)}</{tag}>" for word in words)
