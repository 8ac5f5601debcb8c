# %% [markdown]
# # The ramp of one run: where are its limits?
# Runs as a script (`python -m analysis.knee [RUN]`) and cell by cell in Jupyter or VS Code.

# %%
import sys

from analysis import plots, words
from analysis.frames import load_run
from analysis.report import find_run
from analysis.summary import build

# %% The run: a folder, its name under reports/, or the newest one
name = sys.argv[1] if len(sys.argv) > 1 and not sys.argv[1].startswith("-") else "latest"
try:
    path = find_run(name)
except FileNotFoundError as error:
    print(f"knee: {error}", file=sys.stderr)
    sys.exit(2)
summary = build(load_run(path))
print(words.first_line(summary))

# %% Stages and limits in words
for kind, endpoint in summary["endpoints"].items():
    print(f"\n{kind}: {endpoint['model']}")
    print("\n".join([*words.sentences(endpoint, summary["slo"]), "", *words.table(endpoint)]))

# %% The picture: latency and throughput against concurrency
for picture in plots.draw_all(summary, path):
    print(f"wrote {path / picture}")
