"""The template of report.html. A module, because a copy of an app keeps no file that is not one of a few kinds."""

PAGE = r"""{% macro show(table, label="") %}
<div class="scroll" tabindex="0" role="region" aria-label="{{ label or table.caption }}">
<table>
<caption>{{ table.caption }}</caption>
<thead>
<tr>
{% for column in table.columns %}
<th scope="col">{{ column }}</th>
{% endfor %}
</tr>
</thead>
<tbody>
{% for row in table.rows %}
<tr>
{% for cell in row %}
<td{% if cell.numeric %} class="number"{% endif %}{% if cell.key %} data-key="{{ cell.key }}"{% endif %}>{{ cell.text }}</td>
{% endfor %}
</tr>
{% endfor %}
</tbody>
</table>
</div>
{% endmacro %}
{% macro keys(values, label) %}
<div class="scroll" tabindex="0" role="region" aria-label="{{ label }}">
<table class="plain">
<thead>
<tr><th scope="col">key</th><th scope="col">value</th></tr>
</thead>
<tbody>
{% for key, value in values.items() %}
<tr><th scope="row">{{ key }}</th><td>{{ value }}</td></tr>
{% endfor %}
</tbody>
</table>
</div>
{% endmacro %}
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'">
<meta name="color-scheme" content="light dark">
<title>{{ experiment.title }} ({{ experiment.paper }}, {{ experiment.figure }})</title>
<style>
:root {
  color-scheme: light dark;
  --ground: #ffffff; --ink: #1b1f24; --soft: #59636e; --line: #d1d9e0; --band: #f6f8fa; --link: #0a58ca;
{% for colour in cycle %}
  --curve-{{ loop.index0 }}: {{ colour }};
{% endfor %}
}
@media screen and (prefers-color-scheme: dark) {
  :root {
    --ground: #14181d; --ink: #e4e8ec; --soft: #a3adb8; --line: #3a424b; --band: #1d232a; --link: #7ab4ff;
    --curve-0: #5aa9e6; --curve-1: #ff9f4a; --curve-2: #5fc95f; --curve-3: #ff6b6b; --curve-4: #b99be0;
    --curve-5: #c08a7f; --curve-6: #f09ad8; --curve-7: #a9a9a9; --curve-8: #d6d748; --curve-9: #4fdbe8;
  }
}
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1rem 3rem; max-width: 72rem; background: var(--ground); color: var(--ink);
  font: 1rem/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 0.3rem; }
h2 { font-size: 1.2rem; margin: 2.2rem 0 0.6rem; }
h3 { font-size: 1rem; margin: 1.4rem 0 0.4rem; }
p { margin: 0.4rem 0; }
.soft, caption { color: var(--soft); }
.scroll { overflow-x: auto; margin: 0.6rem 0; border: 1px solid var(--line); border-radius: 6px; }
.scroll:focus-visible, button:focus-visible, summary:focus-visible { outline: 2px solid var(--link); outline-offset: 1px; }
table { border-collapse: collapse; min-width: 100%; font-size: 0.92rem; overflow-wrap: normal; }
caption { text-align: left; padding: 0.4rem 0.7rem; }
th, td { padding: 0.3rem 0.7rem; text-align: left; vertical-align: baseline; white-space: nowrap;
  border-top: 1px solid var(--line); }
thead th { background: var(--band); font-weight: 600; }
tbody th { font-weight: 400; }
.plain td, .plain th, .prose { white-space: normal; }
.number { text-align: right; font-variant-numeric: tabular-nums; }
th button { font: inherit; color: inherit; background: none; border: 0; padding: 0; cursor: pointer; text-align: inherit; }
th button::after { content: "\2195"; color: var(--soft); padding-left: 0.35em; }
th[aria-sort="ascending"] button::after { content: "\2191"; color: inherit; }
th[aria-sort="descending"] button::after { content: "\2193"; color: inherit; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 0.15rem 1rem; margin: 0.8rem 0; }
dt { color: var(--soft); }
dd { margin: 0; }
details { margin: 0.5rem 0; }
summary { cursor: pointer; padding: 0.2rem 0; }
figure { margin: 0; }
.curves svg { display: block; width: 100%; height: auto; margin: 0 auto; fill: currentColor; }
.curves svg * { stroke-linejoin: round; stroke-linecap: butt; }
.warning { border-left: 4px solid #c9510c; padding-left: 0.7rem; }
@media print {
  body { max-width: none; padding: 0; font-size: 10pt; }
  .scroll { overflow: visible; border: 0; }
  table { font-size: 8pt; }
  th, td { white-space: normal; padding: 0.15rem 0.4rem; }
  th button::after { content: none; }
  .curves svg { min-width: 0 !important; }
  tr, figure { break-inside: avoid; }
  h2, h3, caption { break-after: avoid; }
}
</style>
</head>
<body>
<header>
<h1>{{ experiment.title }}</h1>
<p>{{ experiment.paper }}, {{ experiment.figure }}</p>
<dl>
<dt>experiment</dt><dd>{{ experiment.name }}</dd>
<dt>data</dt><dd>{{ datasets }}</dd>
<dt>profile</dt><dd>{{ profile }} (meant to take some {{ minutes }} minutes on two cores)</dd>
<dt>seeds</dt><dd>{{ seeds }}, from 0</dd>
<dt>runs</dt><dd>{{ runs }}</dd>
</dl>
{% if missing %}
<p class="warning">Interrupted: {{ missing }} not made yet.</p>
{% endif %}
</header>
<main>
{% if failed %}
<section aria-labelledby="failed">
<h2 id="failed">Failed runs</h2>
<ul class="warning">
{% for title, reason in failed.items() %}
<li>{{ title }}: {{ reason }}</li>
{% endfor %}
</ul>
</section>
{% endif %}
{% if claims %}
<section aria-labelledby="claims">
<h2 id="claims">What the paper claims</h2>
<p class="soft">{{ claims_legend }}</p>
{% for sentence, table in claims %}
<h3>{{ sentence }}</h3>
{% if table.rows %}
{{ show(table, sentence) }}
{% endif %}
{% endfor %}
</section>
{% endif %}
<section aria-labelledby="results">
<h2 id="results">Results</h2>
<p class="soft">{{ legend }}{% if full_paper %} The paper's numbers are those of its full experiment, not of profile {{ profile }}.{% endif %}</p>
{% for table in tables %}
{{ show(table) }}
{% endfor %}
</section>
{% if curves %}
<section aria-labelledby="curves">
<h2 id="curves">Curves</h2>
<figure>
<div class="scroll curves" tabindex="0" role="region" aria-label="{{ drawn }}">
{{ curves }}
</div>
<figcaption class="soft">{{ drawn }}: means over the seeds, sample standard deviations shaded{% if experiment.scale == 'linear' and experiment.x != 'clients' %}; the untrained model may lie outside{% endif %}.</figcaption>
</figure>
</section>
{% endif %}
{% if tuned %}
<section aria-labelledby="tuned">
<h2 id="tuned">Chosen values</h2>
<p>{{ tuned[0] }}</p>
{{ show(tuned[1]) }}
</section>
{% endif %}
{% if differs %}
<section aria-labelledby="differs">
<h2 id="differs">What differs from the paper</h2>
<ul>
{% for sentence in differs %}
<li>{{ sentence }}</li>
{% endfor %}
</ul>
</section>
{% endif %}
<section aria-labelledby="configuration">
<h2 id="configuration">Configuration</h2>
<details>
<summary>All runs: what the experiment sets</summary>
{{ keys(shared, "what the experiment sets") }}
</details>
<details>
<summary>All runs: defaults</summary>
{{ keys(defaults, "defaults") }}
</details>
{% for method, table in methods.items() if table.rows %}
<details>
<summary>{{ method }}: what other runs have otherwise</summary>
{{ show(table) }}
</details>
{% endfor %}
</section>
{% if versions %}
<section aria-labelledby="versions">
<h2 id="versions">Versions</h2>
<dl>
{% for package, version in versions.items() %}
<dt>{{ package }}</dt><dd>{{ version }}</dd>
{% endfor %}
</dl>
</section>
{% endif %}
</main>
<script>
"use strict";
// A click on a column's head sorts the table: by numbers where cells have any, and what has none comes last.
for (const table of document.querySelectorAll("table:not(.plain)")) {
  const body = table.tBodies[0];
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const numeric = [...body.rows].some((row) => row.cells[column].dataset.key);
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    head.setAttribute("aria-sort", "none");
    if (numeric) head.classList.add("number");
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      heads.forEach((other) => other.setAttribute("aria-sort", "none"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const key = (row) => numeric ? row.cells[column].dataset.key : row.cells[column].textContent;
      const rows = [...body.rows].sort((one, other) => {
        const [a, b] = [key(one), key(other)];
        if (numeric && (!a || !b)) return !a - !b;
        return (down ? -1 : 1) * (numeric ? a - b : a.localeCompare(b, "en", { numeric: true }));
      });
      body.append(...rows);
    });
  });
}
// Paper has no triangle to click.
let opened = [];
addEventListener("beforeprint", () => {
  opened = [...document.querySelectorAll("details:not([open])")];
  opened.forEach((details) => { details.open = true; });
});
addEventListener("afterprint", () => opened.forEach((details) => { details.open = false; }));
</script>
</body>
</html>
"""  # noqa: E501
