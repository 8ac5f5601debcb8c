# %% [markdown]
# # Two sets of runs: did the change of the server help?
# Runs as a script, `python -m analysis.compare "RUN RUN RUN" "RUN RUN RUN" [--fail-if-worse]` (`make compare A= B=`),
# and cell by cell in Jupyter or VS Code. Runs are folders, names under reports/ or patterns. Exit codes: 0; 1 with
# --fail-if-worse when B is surely worse in any figure; 2 when the runs are not there or may not be compared.

# %%
import sys

from analysis import arms, comparison_plot, comparison_report, page
from analysis.frames import dumps
from tokenswarm import runs

words = [word for word in sys.argv[1:] if word != "--fail-if-worse"]
if len(words) != 2 or not all(word.strip() for word in words):
    print('compare: give A="RUN ..." (before) and B="RUN ..." (after the change)', file=sys.stderr)
    sys.exit(2)

# %% The runs, and whether they may be compared
try:
    a, b = map(arms.load, words)
    warnings = arms.check(a, b)
except (OSError, arms.NotComparable) as error:
    print("\n".join(f"compare: {line}" for line in str(error).splitlines()), file=sys.stderr)
    sys.exit(2)

# %% The verdicts in words
found = comparison_report.build(a, b, warnings)
print(*found["headlines"], *(f"  ! {line}" for line in warnings), sep="\n")

# %% Kept in a folder of its own
folder = runs.new_run("compare")
(folder / "workers").rmdir()
pictures = comparison_plot.draw(found, folder)
runs.write_whole(folder / "compare.json", dumps(found))
runs.write_whole(folder / "compare.md", comparison_report.markdown(found, pictures))
print(f"\nWritten: {page.write(folder / 'compare.md')}, compare.md, compare.json, {', '.join(pictures)}")
sys.exit(1 if found["worse"] and "--fail-if-worse" in sys.argv else 0)
