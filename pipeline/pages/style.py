"""The style sheet of the report page: light and dark by the reader's preference, one column on a telephone, print."""

STYLE = """
:root {
  color-scheme: light dark;
  --page: #f6f6f4; --card: #ffffff; --ink: #16181d; --soft: #5c6370; --rule: #e3e3df; --track: #ececea;
  --main: #2f6fc4; --second: #b9571f; --good: #1d7a46; --warn: #a85b00;
  --mask: #d9e7fb; --mask-ink: #123f7c; --kept: #dcf1e1; --kept-ink: #17572f; --random: #fde5d3; --random-ink: #7d3608;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #15171a; --card: #1d2024; --ink: #e8e9eb; --soft: #a0a6b0; --rule: #32363c; --track: #2b2f35;
    --main: #6aa5f0; --second: #eb9a62; --good: #6cc992; --warn: #f0b357;
    --mask: #1c3a63; --mask-ink: #cfe2ff; --kept: #1c4630; --kept-ink: #c6f0d5;
    --random: #5a3018; --random-ink: #ffdcc4;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--page); color: var(--ink); overflow-wrap: break-word;
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", sans-serif;
}
main { max-width: 1200px; margin: 0 auto; padding: 28px 24px 48px; }
h1 { font-size: 27px; line-height: 1.2; margin: 0 0 4px; letter-spacing: -.01em; }
h2 { font-size: 20px; margin: 40px 0 12px; padding-top: 14px; border-top: 1px solid var(--rule); }
h3 { font-size: 15px; margin: 0 0 8px; }
p { margin: 0 0 8px; }
code { font: 13px/1.5 ui-monospace, "SF Mono", Menlo, "Liberation Mono", monospace; overflow-wrap: anywhere; }
a { color: var(--main); }
.soft { color: var(--soft); }
.small { font-size: 13px; }
.card > .small { margin: 8px 0 0; }
.card h3 ~ h3 { margin-top: 22px; }
nav { margin: 14px 0 0; font-size: 14px; }
nav a { margin-right: 16px; text-decoration: none; white-space: nowrap; }
.tiles { display: grid; gap: 12px; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); margin: 20px 0 12px; }
.card { background: var(--card); border: 1px solid var(--rule); border-radius: 8px; padding: 14px 16px; min-width: 0; }
.tile b { display: block; font-size: 22px; line-height: 1.25; font-weight: 650; }
.tile span { color: var(--soft); font-size: 13px; }
.grid { display: grid; gap: 12px; grid-template-columns: repeat(auto-fit, minmax(min(440px, 100%), 1fr)); }
section .grid + .grid, section .grid + .card, section .card + .grid { margin-top: 12px; }
.checks { list-style: none; margin: 0; padding: 0; display: grid; gap: 6px; }
.checks li { display: grid; grid-template-columns: 22px 1fr; }
.checks b { font-weight: 600; }
.good { color: var(--good); } .warn { color: var(--warn); } .mark { font-weight: 700; }
svg.chart { display: block; width: 100%; height: auto; max-width: 560px; }
svg.chart text { font-size: 10.5px; fill: var(--soft); font-variant-numeric: tabular-nums; }
svg.chart line.grid { stroke: var(--rule); stroke-width: 1; }
svg.chart .column { fill: var(--main); }
svg.chart .column:hover { opacity: .75; }
svg.chart .expected { stroke: var(--second); stroke-width: 2; stroke-dasharray: 5 3; }
.bars { display: grid; grid-template-columns: auto 1fr auto; gap: 5px 10px; align-items: center; font-size: 14px; }
.bars .label { overflow-wrap: anywhere; }
.bars .number { text-align: right; color: var(--soft); font-variant-numeric: tabular-nums; white-space: nowrap; }
.track { background: var(--track); border-radius: 3px; height: 10px; }
.bar { background: var(--main); border-radius: 3px; height: 10px; }
.bars.pieces { font-size: 13px; gap: 1px 10px; }
.bars.pieces .track, .bars.pieces .bar { height: 8px; }
.bars.pieces .label { font-family: ui-monospace, Menlo, "Liberation Mono", monospace; }
.columns { columns: 3 260px; column-gap: 36px; }
.columns .bars { break-inside: avoid; margin-bottom: 4px; grid-template-columns: 84px 1fr 48px; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th, td { text-align: left; padding: 5px 12px 5px 0; border-bottom: 1px solid var(--rule); vertical-align: top; }
th { font-weight: 600; color: var(--soft); }
tr:last-child td { border-bottom: 0; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
table.pairs td:first-child { color: var(--soft); width: 1%; white-space: nowrap; }
table.pairs td { padding-right: 16px; overflow-wrap: anywhere; }
.instance { line-height: 1.75; }
.instance header { display: flex; flex-wrap: wrap; gap: 4px 14px; align-items: baseline; font-size: 13px; }
.badge { border-radius: 99px; padding: 0 10px; font-weight: 600; border: 1px solid currentColor; }
.badge.next { color: var(--good); } .badge.random { color: var(--second); }
.segment { margin: 8px 0 0; padding: 2px 0 2px 12px; border-left: 4px solid var(--main); }
.segment.b { border-color: var(--second); }
.segment > b { color: var(--main); margin-right: 4px; } .segment.b > b { color: var(--second); }
.special { color: var(--soft); font-size: 12px; }
mark { border-radius: 4px; padding: 1px 4px; cursor: help; }
mark.mask { background: var(--mask); color: var(--mask-ink); }
mark.kept { background: var(--kept); color: var(--kept-ink); border-bottom: 2px dotted currentColor; }
mark.random { background: var(--random); color: var(--random-ink); }
mark.random s { opacity: .8; }
footer { margin-top: 40px; color: var(--soft); font-size: 13px; }
@media (max-width: 560px) {
  main { padding: 18px 14px 32px; }
  .card { padding: 12px; }
  .tiles { grid-template-columns: 1fr 1fr; gap: 8px; }
  h2 { margin-top: 28px; }
  table.stacked th { display: none; }
  table.pairs td, table.stacked td { display: block; border: 0; padding: 0; }
  table.pairs tr, table.stacked tr { display: block; padding: 5px 0; border-bottom: 1px solid var(--rule); }
}
@media print {
  :root {
    --page: #fff; --card: #fff; --ink: #000; --soft: #444; --rule: #ccc; --track: #eee;
    --main: #2f6fc4; --second: #b9571f; --good: #1d7a46; --warn: #a85b00; --mask: #d9e7fb; --mask-ink: #123f7c;
    --kept: #dcf1e1; --kept-ink: #17572f; --random: #fde5d3; --random-ink: #7d3608;
  }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  body { font-size: 11px; }
  main { max-width: none; padding: 0; }
  nav { display: none; }
  h2 { break-after: avoid; margin-top: 20px; }
  .card, .instance, tr { break-inside: avoid; }
}
"""
