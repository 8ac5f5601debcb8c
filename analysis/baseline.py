# %% [markdown]
# # The baseline of one run: fast enough alone? If not, where does the time go?
# Runs as a script (`python -m analysis.baseline [RUN]`) and cell by cell in Jupyter or VS Code.

# %%
import sys

from analysis import phases, words
from analysis.frames import load_run
from analysis.report import find_run
from analysis.summary import build

# %% The run: a folder, its name under reports/, or the newest one
path = find_run(sys.argv[1] if len(sys.argv) > 1 and not sys.argv[1].startswith("-") else "latest")
summary = build(load_run(path))
print(words.first_line(summary))
if summary["phase"] != "baseline":
    sys.exit(f"{path.name} is a {summary['phase']} run, not a baseline run: name one")

# %% Verdicts in words
print("\n".join(phases.sentences(summary)))

# %% Figures by stage
for name, endpoint in summary["endpoints"].items():
    print(f"\n{name}: {endpoint['model']}")
    print("\n".join(words.table(endpoint)))
