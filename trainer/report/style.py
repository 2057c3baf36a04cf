"""What the style of a training report adds to that of all pages: colours of runs, line charts, the choice of axis."""

STYLE = """
:root { --run0: #2f6fc4; --run1: #c2571a; --run2: #2a8a55; --run3: #8a4bb8; --run4: #b3203f; --run5: #6b6f1d; }
@media (prefers-color-scheme: dark) {
  :root { --run0: #6aa5f0; --run1: #f0935a; --run2: #66c592; --run3: #c191ea; --run4: #f0758d; --run5: #c5c95e; }
}
.run0 { --run: var(--run0); } .run1 { --run: var(--run1); } .run2 { --run: var(--run2); }
.run3 { --run: var(--run3); } .run4 { --run: var(--run4); } .run5 { --run: var(--run5); }
svg.lines { display: block; width: 100%; height: auto; }
svg.lines text { font-size: 11px; fill: var(--soft); font-variant-numeric: tabular-nums; }
svg.lines line.grid { stroke: var(--rule); stroke-width: 1; }
svg.lines polyline { fill: none; stroke: var(--run); stroke-width: 1.8; stroke-linejoin: round; }
svg.lines polygon { fill: var(--run); opacity: .16; }
svg.lines circle { fill: var(--run); }
svg.lines .dots polyline { stroke-dasharray: 4 3; stroke-width: 1.2; }
svg.lines .dots circle { stroke: var(--card); stroke-width: 1; }
svg.lines .guess polyline { stroke: var(--soft); stroke-width: 1; stroke-dasharray: 2 3; }
svg.lines .border line { stroke: var(--run); stroke-width: 1; opacity: .5; }
svg.lines .border text { fill: var(--run); font-size: 10px; }
section > .grid { grid-template-columns: repeat(auto-fill, minmax(min(440px, 100%), 1fr)); }
svg.lines .hover { fill: transparent; }
svg.lines .hover:hover { fill: var(--soft); opacity: .18; }
.key { white-space: nowrap; }
.key::before {
  content: ""; display: inline-block; width: 14px; height: 4px; border-radius: 2px; background: var(--run);
  margin-right: 7px; vertical-align: middle;
}
.legend {
  position: sticky; top: 0; z-index: 1; background: var(--page); display: flex; flex-wrap: wrap; gap: 4px 20px;
  align-items: baseline; padding: 10px 0; margin: 10px 0 -22px;
}
input[name=x] { position: absolute; opacity: 0; }
input[name=x] + label {
  display: inline-block; margin: 18px 8px 0 0; padding: 3px 14px; border: 1px solid var(--rule); border-radius: 99px;
  font-size: 14px; cursor: pointer; color: var(--soft);
}
input[name=x]:checked + label { background: var(--main); border-color: var(--main); color: var(--page); }
input[name=x]:focus-visible + label { outline: 2px solid var(--main); outline-offset: 2px; }
#by-step:checked ~ section .by-tokens, #by-tokens:checked ~ section .by-step { display: none; }
section > .card { margin-top: 12px; }
td.time { white-space: nowrap; }
table.summary th { white-space: normal; vertical-align: bottom; line-height: 1.25; }
@media print { .legend { position: static; } input[name=x]:not(:checked) + label { display: none; } }
"""
