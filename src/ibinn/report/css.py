"""The look of a run's page: light and dark, desktop, phone and paper."""

CSS = """
:root{--ink:#1b1f24;--soft:#5b6570;--line:#e1e5e9;--page:#fff;--box:#f5f7f9;--accent:#0072b2;--tint:#e8f2f9;
color-scheme:light dark}
@media (prefers-color-scheme:dark){:root{--ink:#e8eaed;--soft:#a3abb4;--line:#343b43;--page:#14171a;
--box:#1e2227;--accent:#5cb8ee;--tint:#172c3a}}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%;text-size-adjust:100%}
body{margin:0;background:var(--page);color:var(--ink);overflow-wrap:break-word;
font:1rem/1.6 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
header,main,footer{max-width:60rem;margin:0 auto;padding:0 1.25rem}
header{padding-top:clamp(2rem,6vw,4.5rem)}
.eyebrow{margin:0;color:var(--accent);font-weight:600;font-size:.875rem}
h1{margin:.25rem 0 0;font-size:clamp(1.75rem,5vw,2.5rem);line-height:1.15;letter-spacing:-.02em;
text-wrap:balance;overflow-wrap:anywhere}
h2{margin:0 0 .75rem;font-size:1.5rem;line-height:1.25;letter-spacing:-.01em}
h3{margin:0;font-size:1.0625rem;line-height:1.35}
p{margin:.5rem 0;max-width:44rem;text-wrap:pretty}
section{margin-top:clamp(3rem,7vw,4.5rem)}
section>h3,details>h3{margin-top:2.25rem}
.facts{color:var(--soft)}
.facts.fine{font-size:.875rem}
.lead{margin:2rem 0;font-size:clamp(1.2rem,3.2vw,1.5rem);line-height:1.45}
.lead strong{color:var(--accent);white-space:nowrap}
dl,dd{margin:0}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(9.5rem,1fr));gap:.75rem}
.cards div{background:var(--box);border-radius:.75rem;padding:1rem 1.125rem}
.cards dt{color:var(--soft);font-size:.875rem}
.cards .value{font-size:1.625rem;font-weight:650;line-height:1.3;letter-spacing:-.02em;white-space:nowrap}
.cards .under{color:var(--soft);font-size:.8125rem;line-height:1.4}
.findings{display:grid;grid-template-columns:minmax(0,14rem) minmax(0,1fr);gap:1.25rem 2rem;margin-top:3rem}
.findings dt{font-weight:650;text-wrap:balance}
.findings dd{max-width:42rem;text-wrap:pretty}
.cautions{margin-top:3rem;background:var(--tint);border-left:.3rem solid var(--accent);
border-radius:.25rem .75rem .75rem .25rem;padding:1.25rem 1.5rem}
.cautions h2{font-size:1.125rem;margin:0 0 .5rem}
.cautions ul{margin:0;padding:0;list-style:none}
.cautions li{max-width:48rem;text-wrap:pretty}
.cautions li+li{margin-top:.625rem}
.scroll{overflow-x:auto;margin:.625rem 0 .75rem;border:1px solid var(--line);border-radius:.75rem}
.scroll:focus-visible,summary:focus-visible{outline:2px solid var(--accent);outline-offset:2px}
table{border-collapse:collapse;width:100%;font-size:.9375rem;line-height:1.4;
font-variant-numeric:tabular-nums}
th,td{padding:.625rem .75rem;text-align:right;vertical-align:top;border-top:1px solid var(--line)}
thead th{border-top:0;color:var(--soft);font-weight:500;font-size:.8125rem;vertical-align:bottom;
min-width:5rem}
tbody th{font-weight:500;min-width:9.5rem;overflow-wrap:anywhere}
th:first-child{text-align:left;padding-left:1rem}
th:last-child,td:last-child{padding-right:1rem}
small{display:block;color:var(--soft);font-size:.8125rem;font-weight:400}
td small{white-space:nowrap}
.main,.main th{background:var(--tint);font-weight:650}
.notes td:last-child,.notes th:last-child{text-align:left;color:var(--soft);font-size:.875rem;min-width:13rem}
.notes td{white-space:nowrap}
.notes td:last-child{white-space:normal}
.bar{min-width:6.5rem}
.bar span{display:block;height:.375rem;margin-top:.3rem;border-radius:1rem;background:var(--line);
overflow:hidden}
.bar i{display:block;height:100%;background:var(--accent)}
.own i{background:var(--soft)}
figure{margin:0 0 3rem}
.paper{background:#fff;border:1px solid var(--line);border-radius:.75rem;padding:.75rem;margin:.625rem 0}
img{display:block;max-width:100%;height:auto;margin:0 auto}
figcaption{color:var(--soft);font-size:.9375rem;max-width:44rem;text-wrap:pretty}
.run{display:grid;grid-template-columns:max-content minmax(0,1fr);gap:.375rem 1.5rem}
.run dt{color:var(--soft)}
.run dd{overflow-wrap:anywhere}
details{margin:1.5rem 0}
summary{cursor:pointer;color:var(--accent);font-weight:600;margin-bottom:.75rem}
pre{overflow-x:auto;margin:0;background:var(--box);border-radius:.75rem;padding:1rem;
font:.8125rem/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
footer{margin-top:3rem;padding-bottom:3rem;color:var(--soft);font-size:.875rem}
@media (min-width:52rem){.narrow{display:grid;grid-template-columns:minmax(0,max-content) minmax(16rem,1fr);
grid-template-rows:auto 1fr;column-gap:2rem}
.narrow .paper{grid-row:1/3;margin:0}.narrow h3{grid-column:2;padding-top:.75rem}
.narrow figcaption{grid-column:2;margin-top:.5rem}}
@media (max-width:44rem){.findings{display:block}.findings dd{margin:.25rem 0 1.25rem}
.cards{grid-template-columns:1fr 1fr}.cards div:last-child:nth-child(odd){grid-column:1/-1}
.cards .value{font-size:1.375rem}.paper{padding:.375rem}}
@media print{:root{--ink:#000;--soft:#444;--line:#ccc;--page:#fff;--box:#f5f7f9;--accent:#0072b2;--tint:#e8f2f9}
@page{margin:16mm 14mm}
*{print-color-adjust:exact;-webkit-print-color-adjust:exact}
html{font-size:9.5pt}header{padding-top:0}header,main,footer{max-width:none;padding-left:0;padding-right:0}
section{margin-top:2.5rem}.scroll{overflow:visible}details{display:none}
figure,tr,.cards div,.cautions li{break-inside:avoid}h2,h3,thead{break-after:avoid}
figure{margin-bottom:2rem}img{max-height:92mm;object-fit:contain}}
"""
