"""What a guard said, and how often that was what the profile expects; what an image weighs."""

from __future__ import annotations

from typing import Any

from analysis.frames import Run
from analysis.proportions import clopper_pearson


def guard(run: Run, endpoint: str) -> dict[str, Any]:
    """Shares of the verdicts of all successes, agreement with the profile's `expect` (95 % Clopper-Pearson), and the
    prompts that were judged otherwise most often."""
    rows = run.requests[(run.requests["endpoint"] == endpoint) & run.requests["ok"]]
    profiles = (run.info.get("profiles") or {}).values()
    expected = {prompt: verdict for profile in profiles for prompt, verdict in (profile.get("expect") or {}).items()}
    wanted = rows["prompt_id"].map(expected)
    known = rows[wanted.notna()]
    agree = known["outcome"] == wanted[wanted.notna()]
    low, high = clopper_pearson(int(agree.sum()), len(known)) if len(known) else (None, None)
    against = known[~agree].groupby(["prompt_id", "outcome"]).size().sort_values(ascending=False)
    return {
        "judged": len(rows),
        "shares": {str(k) or "none": float(v) for k, v in rows["outcome"].value_counts(normalize=True).items()},
        "expected": len(known),
        "agree": int(agree.sum()),
        "agreement": float(agree.mean()) if len(known) else None,
        "agreement_ci": [low, high],
        "otherwise": [
            {"prompt": prompt, "said": said, "expected": expected[prompt], "times": int(n)}
            for (prompt, said), n in against.head(5).items()
        ],
    }


def guard_sentences(verdicts: dict[str, Any]) -> list[str]:
    """Verdict shares and agreement in plain words."""
    if not verdicts["judged"]:
        return []
    shares = ", ".join(f"{name} {share:.0%}" for name, share in verdicts["shares"].items())
    out = [f"Verdicts of {verdicts['judged']:,} answers: {shares}"]
    if verdicts["expected"]:
        low, high = verdicts["agreement_ci"]
        out.append(
            f"{verdicts['agree']:,} of {verdicts['expected']:,} agree with what the profile expects "
            f"({verdicts['agreement']:.1%}, 95 % interval {low:.1%} to {high:.1%})"
        )
    if verdicts["otherwise"]:
        words = (f"{o['prompt']} {o['times']} x {o['said']} for {o['expected']}" for o in verdicts["otherwise"])
        out.append(f"Judged otherwise most often: {'; '.join(words)}")
    return out


def image_sentence(target: dict[str, Any]) -> list[str]:
    """Input tokens of an image, as preflight found them by sending the same prompt without it."""
    each = target.get("image_tokens")
    return [f"An image is about {each:,.0f} input tokens by the server's own count"] if each else []
