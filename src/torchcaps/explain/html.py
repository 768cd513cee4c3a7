"""HTML pages in one file: inline style, embedded pictures, no script, nothing fetched. All text is escaped.

page(title, sections)           the document
section(title, *parts)          a heading, and parts that the functions below return
paragraph(text), code(text)
table(rows, header=(), fold=40) the first column holds row names; with a header, the other columns are numbers; tables
                                with more than `fold` rows are collapsed
picture(figure, alt, caption)
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, StrictUndefined

from torchcaps.explain.style import png_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["code", "page", "paragraph", "picture", "section", "table"]

# The security policy makes browsers refuse to load or run anything from elsewhere.
TEMPLATE = """\
{% macro page(title, sections) -%}
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<link rel="icon" href="data:,">
<title>{{ title }}</title>
<style>
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
</style>
</head>
<body>
<h1>{{ title }}</h1>
{{ sections | join("\n") }}
</body>
</html>
{% endmacro %}

{% macro section(title) -%}
<section>
<h2>{{ title }}</h2>
{{ varargs | join("\n") }}
</section>
{%- endmacro %}

{% macro paragraph(text) %}<p>{{ text }}</p>{% endmacro %}

{% macro code(text) %}<pre>{{ text }}</pre>{% endmacro %}

{% macro image(data, width, alt, caption) -%}
<figure><div class="scroll"><img alt="{{ alt }}" style="max-width: {{ width }}px; min-width: {{ [width, 520] | min }}px"
src="data:image/png;base64,{{ data }}"></div>
{%- if caption %}
<figcaption>{{ caption }}</figcaption>
{%- endif %}</figure>
{%- endmacro %}

{% macro cells(tag, words, number) -%}
{% for word in words %}<{{ tag }}{% if number %} class="number"{% endif %}>{{ word }}</{{ tag }}>{% endfor %}
{%- endmacro %}

{% macro table(rows, header=(), fold=40) -%}
{% if rows | length > fold %}<details><summary>All {{ rows | length }} rows</summary>
{% endif -%}
<div class="scroll"><table>
{%- if header %}
<tr><th>{{ header[0] }}</th>{{ cells("th", header[1:], true) }}</tr>
{%- endif %}
{%- for row in rows %}
<tr><th>{{ row[0] }}</th>{{ cells("td", row[1:], header) }}</tr>
{%- endfor %}
</table></div>
{%- if rows | length > fold %}
</details>
{%- endif %}
{%- endmacro %}
"""
# Autoescape escapes every text, and leaves what the macros themselves return as it is.
_MACROS: Any = Environment(autoescape=True, undefined=StrictUndefined).from_string(TEMPLATE).module
page, section, table = _MACROS.page, _MACROS.section, _MACROS.table
paragraph, code = _MACROS.paragraph, _MACROS.code


def picture(figure: Figure, alt: str, caption: str = "") -> str:
    """Embed a figure; on a small screen it scrolls sideways, so that its labels stay readable."""
    width = round(96 * figure.get_figwidth())
    return _MACROS.image(base64.b64encode(png_bytes(figure)).decode(), width, alt, caption)
