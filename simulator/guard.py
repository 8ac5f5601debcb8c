"""A guard model's verdict from plain words, in Qwen3Guard's lines."""

UNSAFE = {
    "Violent": ("weapon", "bomb", "kill", "poison", "explosive", "shoot", "武器", "炸弹", "毒", "杀", "枪"),
    "Non-violent Illegal Acts": ("hack", "steal", "scam", "phishing", "counterfeit", "黑客", "诈骗", "偷", "假币"),
    "Suicide & Self-Harm": ("suicide", "self-harm", "自杀", "自残"),
    "Sexual Content or Sexual Acts": ("porn", "色情"),
    "PII": ("passport number", "credit card number", "身份证号", "信用卡号"),
    "Jailbreak": ("ignore all previous instructions", "忽略之前的所有指令"),
}
CONTROVERSIAL = {
    "Unethical Acts": ("gamble", "drunk", "insult", "cheat", "赌", "醉", "侮辱", "作弊"),
    "Politically Sensitive Topics": ("riot", "暴动"),
}
REFUSALS = ("sorry", "can't", "cannot", "won't", "抱歉", "不能", "无法")
CATEGORIES = [*UNSAFE, *CONTROVERSIAL]


def judge(text: str) -> tuple[str, list[str]]:
    """(Safe, Controversial or Unsafe; categories)."""
    lower = text.lower()
    for verdict, words in (("Unsafe", UNSAFE), ("Controversial", CONTROVERSIAL)):
        found = [name for name, markers in words.items() if any(marker in lower for marker in markers)]
        if found:
            return verdict, found
    return "Safe", []


def answer(text: str, response: str | None) -> str:
    """Qwen3Guard's output; with a response to judge there is a third line."""
    verdict, categories = judge(text if response is None else response)
    lines = [f"Safety: {verdict}", f"Categories: {', '.join(categories) or 'None'}"]
    if response is not None:
        refused = any(word in response.lower() for word in REFUSALS)
        lines.append(f"Refusal: {'Yes' if refused else 'No'}")
    return "\n".join(lines)
