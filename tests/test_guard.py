"""A guard's verdict out of whatever it writes."""

import json

import pytest

from tokenswarm.users.guard import ItemGuardReader, judge


@pytest.mark.parametrize(
    ("text", "verdict", "categories"),
    [
        ("Safety: Unsafe\nCategories: Violent", "unsafe", ["Violent"]),
        ("Safety: Safe\nCategories: None\nRefusal: No", "safe", []),
        ("safety: controversial\nCategories: Unethical Acts, Politically Sensitive Topics", "controversial",
         ["Unethical Acts", "Politically Sensitive Topics"]),
        ("\n\nunsafe\nS1,S10", "unsafe", ["S1", "S10"]),
        ("safe", "safe", []),
        ("Safe and sound advice: do not mix them.", "safe", []),
        ("I cannot judge that.", "unparsed", []),
        ("", "unparsed", []),
    ],
)  # fmt: skip
def test_text(text: str, verdict: str, categories: list[str]) -> None:
    assert judge(text) == (verdict, categories)


@pytest.mark.parametrize(
    ("body", "verdict", "labels"),
    [
        ({"results": [{"flagged": True, "categories": {"violence": True, "hate": False}}]}, "unsafe", "violence"),
        ({"results": [{"flagged": False, "categories": {"violence": False}}]}, "safe", ""),
        ({"data": [{"label": "LABEL_1"}]}, "unsafe", "LABEL_1"),
        ({"data": [{"label": "harmless"}]}, "safe", "harmless"),
        ({"data": [{"label": "non-toxic"}]}, "safe", "non-toxic"),
        ({"data": [{"label": "not_toxic"}]}, "safe", "not_toxic"),
        ({"data": [{"label": "toxic"}]}, "unsafe", "toxic"),
        ({"data": [{"label": "not safe"}]}, "unsafe", "not safe"),
        ({"data": [{"label": "non-harmful"}]}, "safe", "non-harmful"),
        ({"data": [{"label": "Controversial"}]}, "controversial", "Controversial"),
        ({"data": [{"label": "Default"}]}, "unparsed", "Default"),
        ({"data": [{"score": 0.93}]}, "unsafe", ""),
        ({"data": [{"score": 0.07}]}, "safe", ""),
    ],
)
def test_flags_labels_and_scores(body: dict[str, object], verdict: str, labels: str) -> None:
    reader = ItemGuardReader(1)
    reader.body(json.dumps(body).encode())
    assert (reader.verdict(), reader.outcome(), reader.labels()) == ("", verdict, labels)


def test_an_item_with_nothing_in_it_is_no_success() -> None:
    for body in ({"data": [{}]}, {"data": [{"embedding": []}]}, {"data": [{"embedding": None}]}, {"data": []}):
        reader = ItemGuardReader(1)
        reader.body(json.dumps(body).encode())
        assert reader.verdict() == "empty", body
