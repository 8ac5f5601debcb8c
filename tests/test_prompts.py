"""Profiles, draws, image variants, conversion and synthetic prompts."""

import base64
import collections
import hashlib
import io
import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from tokenswarm.convert import conversations, describe, main, plain_prompts
from tokenswarm.images import image_data_uri, pixels_vary
from tokenswarm.profiles import texts
from tokenswarm.prompts import (
    Draws,
    Profile,
    ProfileError,
    Prompt,
    calibrate,
    image_parts,
    inline_images,
    load,
    summary,
    synthetic,
    synthetic_text,
)

ROOT = Path(__file__).resolve().parent.parent
SHIPPED = {"chat": 40, "rag": 12, "code": 15, "guard": 30, "vlm": 12, "embedding": 20, "rerank": 12}
GOOD = {"id": "a", "weight": 1, "body": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 8}}


def profile(*bodies: dict, weights: list[float] | None = None) -> Profile:
    pairs = zip(bodies, weights or [1] * len(bodies), strict=True)
    return Profile("test", None, "", tuple(Prompt(f"p{i}", w, body) for i, (body, w) in enumerate(pairs)))


def chat(content: object, **more: object) -> dict:
    return {"messages": [{"role": "user", "content": content}], **more}


def stream(n: int, *args: object, of: Profile | None = None, **more: object) -> list[dict]:
    draws = Draws(of or load("chat"), *args, **more)
    return [draws.next().body for _ in range(n)]


# --- shipped profiles


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_profile_loads(name: str) -> None:
    found = load(name)
    assert len(found.prompts) >= SHIPPED[name]
    assert found.name == name and len(found.sha256) == 64
    bodies = [json.dumps(prompt.body) for prompt in found.prompts]
    assert len(set(bodies)) == len(bodies), "two prompts of one profile are the same"


def test_the_readme_shows_the_real_summary() -> None:
    readme = (ROOT / "profiles" / "README.md").read_text("utf-8")
    assert "\n".join("    " + line for line in describe("chat").splitlines()) in readme


def test_chat_mixes_languages_and_lengths() -> None:
    facts = summary(load("chat"))
    assert 15 <= facts["chinese"] <= facts["prompts"] - 15
    assert facts["chars"]["min"] < 30 and facts["chars"]["max"] > 1500
    assert facts["max_tokens"]["min"] >= 64 and facts["max_tokens"]["max"] <= 512
    assert facts["max_tokens"]["median"] == 256


def test_rag_prompts_share_long_heads() -> None:
    heads = collections.Counter(p.body["messages"][0]["content"] for p in load("rag").prompts)
    assert all(count >= 4 for count in heads.values()) and all(len(head) > 1000 for head in heads)


def test_guard_covers_all_verdicts_for_prompts_and_answers() -> None:
    seen = {(p.expect, p.body["messages"][-1]["role"]) for p in load("guard").prompts}
    assert seen == {(v, r) for v in ("safe", "controversial", "unsafe") for r in ("user", "assistant")}


def test_embedding_and_rerank_sizes() -> None:
    batches = {len(p.body["input"]) for p in load("embedding").prompts if isinstance(p.body["input"], list)}
    assert {4, 8, 16, 32} <= batches
    assert {5, 20} <= {len(p.body["documents"]) for p in load("rerank").prompts}


def test_images_are_small_and_come_from_their_script() -> None:
    folder = ROOT / "profiles" / "images"
    drawn = runpy.run_path(str(ROOT / "profiles" / "make_images.py"))["draw_all"]()
    assert {path.name for path in folder.iterdir()} == set(drawn)
    assert sum(path.stat().st_size for path in folder.iterdir()) < 600_000
    for name, canvas in drawn.items():
        with Image.open(folder / name) as image:
            assert image.tobytes() == bytes(canvas.pixels), name
    used = {part["url"] for p in load("vlm").prompts for part in image_parts(p.body)}
    assert used == {f"images/{name}" for name in drawn}
    assert {len(image_parts(p.body)) for p in load("vlm").prompts} == {1, 2, 3}


# --- reading


def write(tmp_path: Path, *lines: object) -> Path:
    path = tmp_path / "mine.jsonl"
    path.write_text("\n".join(x if isinstance(x, str) else json.dumps(x) for x in lines) + "\n", "utf-8")
    return path


def vlm(url: str) -> dict:
    return {"id": "v", "body": chat([{"type": "image_url", "image_url": {"url": url}}])}


BAD = {
    "json": ('{"id": "b", ', "not JSON"),
    "list": ("[1]", "not a JSON object"),
    "no id": ({"body": GOOD["body"]}, "id is missing"),
    "number id": ({"id": 7, "body": GOOD["body"]}, "id must be a text"),
    "no body": ({"id": "b"}, "body is missing"),
    "body text": ({"id": "b", "body": "hi"}, "body must be an object"),
    "twice": (GOOD, "id 'a' was used in line 1"),
    "weight 0": ({**GOOD, "id": "b", "weight": 0}, "weight must be a number above 0"),
    "weight text": ({**GOOD, "id": "b", "weight": "3"}, "weight must be a number above 0"),
    "weight true": ({**GOOD, "id": "b", "weight": True}, "weight must be a number above 0"),
    "weight nan": ('{"id": "b", "weight": NaN, "body": {"input": "x"}}', "weight must be a number above 0"),
    "key": ({**GOOD, "id": "b", "wieght": 2}, "unknown key 'wieght'; known: id, weight, body, expect"),
    "expect": ({**GOOD, "id": "b", "expect": "fine"}, "expect must be one of safe, controversial, unsafe"),
    "no prompt": ({"id": "b", "body": {"max_tokens": 4}}, "body has no prompt"),
    "max_tokens": ({"id": "b", "body": chat("x", max_tokens=0)}, "max_tokens must be a whole number above 0"),
    "messages": ({"id": "b", "body": {"messages": []}}, "messages must be a list"),
    "content": ({"id": "b", "body": chat(None)}, "the first message has no content"),
    "input": ({"id": "b", "body": {"input": ["a", ""]}}, "input must be a text or a list of texts"),
    "documents": ({"id": "b", "body": {"query": "a", "documents": []}}, "documents must be a list of texts"),
    "image": (vlm("images/none.png"), "image file 'images/none.png' not found"),
    "image sort": (vlm("mine.jsonl"), "image file 'mine.jsonl' is neither PNG nor JPEG"),
    "image url": (vlm("https://127.0.0.1/a.png"), "image 'https://127.0.0.1/a.png' must be a file"),
    "surrogate": ('{"id": "b", "body": {"input": "\\ud83d"}}', "half of a surrogate pair"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_line_is_named(tmp_path: Path, kind: str) -> None:
    line, message = BAD[kind]
    path = write(tmp_path, GOOD, "", line)
    with pytest.raises(ProfileError) as caught:
        load(path)
    assert str(caught.value).startswith(f"{path}:3: {message}"), caught.value
    assert "\n" not in str(caught.value)


def test_files_that_hold_no_profile(tmp_path: Path) -> None:
    for data, message in ((b"", "no prompts"), (b"\n \n", "no prompts"), (b"{}\n\xff", ":2: not UTF-8")):
        path = tmp_path / "x.jsonl"
        path.write_bytes(data)
        with pytest.raises(ProfileError, match=message):
            load(path)
    with pytest.raises(ProfileError, match=r"no profile 'chta'.*chat, code"):
        load("chta")
    with pytest.raises(ProfileError, match="no profile"):
        load(tmp_path)


def test_line_separator_characters_inside_a_prompt_do_not_end_the_line(tmp_path: Path) -> None:
    body = chat("one\u2028two\x0bthree\u0085four")
    path = write(tmp_path, json.dumps({"id": "a", "body": body}, ensure_ascii=False))
    assert load(path).prompts == (Prompt("a", 1, body),)


def test_names_paths_and_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert load("chat").path == ROOT / "profiles" / "chat.jsonl"
    assert load("chat").sha256 == hashlib.sha256((ROOT / "profiles" / "chat.jsonl").read_bytes()).hexdigest()
    (tmp_path / "profiles").mkdir()
    write(tmp_path / "profiles", GOOD)
    assert load("mine") == load("profiles/mine.jsonl")


def test_the_hash_covers_the_images(tmp_path: Path) -> None:
    picture = tmp_path / "a.png"
    hashes = set()
    for color in ("red", "blue"):
        Image.new("RGB", (8, 8), color).save(picture)
        hashes.add(load(write(tmp_path, vlm("a.png"))).sha256)
    assert len(hashes) == 2


# --- drawing


def test_equal_seeds_give_equal_bodies_and_others_do_not() -> None:
    first = stream(50, 1, "0", 3)
    assert first == stream(50, 1, "0", 3)
    for other in ((2, "0", 3), (1, "1", 3), (1, "0", 4)):
        assert stream(50, *other) != first
    # Not the nonce alone: the order of the prompts differs as well.
    plain = [json.dumps(stream(50, 1, str(worker), 0, nonce=False)) for worker in range(4)]
    assert len(set(plain)) == 4


def test_no_two_requests_of_a_run_share_a_head() -> None:
    nonces, heads = [], []
    for name in ("chat", "rag"):
        for worker in range(4):
            for user in range(8):
                draws = Draws(load(name), 7, str(worker), user)
                for _ in range(100):
                    draw = draws.next()
                    nonces.append(draw.nonce)
                    heads.append(draw.body["messages"][0]["content"][:15])
    assert len(set(nonces)) == len(set(heads)) == 2 * 4 * 8 * 100


def test_weights_are_respected() -> None:
    weights = [1, 2, 3, 4, 10]
    draws = Draws(profile(*[chat(str(i)) for i in range(5)], weights=weights), 1, "0", 0)
    counts = collections.Counter(draws.next().prompt.weight for _ in range(5000))
    chi2 = sum((counts[w] - 250 * w) ** 2 / (250 * w) for w in weights)
    assert chi2 < 18.5  # 4 degrees of freedom, p = 0.001; equal weights would give about 2,800


def test_a_body_is_fresh_every_time() -> None:
    one = profile(chat("x", stop=["a"]))
    draws = Draws(one, 1, "0", 0)
    body = draws.next().body
    body["messages"][0]["content"] = "spoilt"
    body["stop"].append("b")
    assert draws.next().body["stop"] == ["a"] == one.prompts[0].body["stop"]
    assert one.prompts[0].body["messages"][0]["content"] == "x"


@pytest.mark.parametrize(
    ("body", "read"),
    [
        (chat("x"), lambda b: [b["messages"][0]["content"]]),
        (chat([{"type": "text", "text": "x"}]), lambda b: [b["messages"][0]["content"][0]["text"]]),
        (chat([{"type": "image_url", "image_url": {}}]), lambda b: [b["messages"][0]["content"][0]["text"]]),
        ({"prompt": "x"}, lambda b: [b["prompt"]]),
        ({"input": "x"}, lambda b: [b["input"]]),
        ({"input": ["x", "y"]}, lambda b: b["input"]),
        ({"query": "x", "documents": ["d"]}, lambda b: [b["query"]]),
    ],
)
def test_the_nonce_is_the_first_text(body: dict, read: object) -> None:
    draw = Draws(profile(body), 1, "0", 0).next()
    assert all(text.startswith(f"[{draw.nonce}] ") for text in read(draw.body))
    plain = Draws(profile(body), 1, "0", 0, nonce=False).next()
    assert plain.nonce is None and plain.body == body


def test_a_system_message_gets_the_nonce_because_it_comes_first() -> None:
    draw = Draws(load("rag"), 1, "0", 0).next()
    assert draw.body["messages"][0]["content"].startswith(f"[{draw.nonce}] ")
    assert draw.body["messages"][1:] == draw.prompt.body["messages"][1:]


def test_fixed_output_lengths_are_jittered_and_no_others() -> None:
    one = profile(chat("x", max_tokens=50, ignore_eos=True))
    fixed = [body["max_tokens"] for body in stream(2000, 1, "0", 0, of=one)]
    assert (min(fixed), max(fixed)) == (45, 55) and len(set(fixed)) == 11
    assert abs(sum(fixed) / len(fixed) - 50) < 0.5
    for body in (chat("x", max_tokens=50), chat("x", max_tokens=50, ignore_eos=False)):
        assert {b["max_tokens"] for b in stream(200, 1, "0", 0, of=profile(body))} == {50}
    one = profile(chat("x", max_tokens=1, ignore_eos=True))
    assert {b["max_tokens"] for b in stream(50, 1, "0", 0, of=one)} == {1}
    off = profile(chat("x", max_tokens=50, ignore_eos=True))
    assert {b["max_tokens"] for b in stream(50, 1, "0", 0, of=off, jitter=0)} == {50}
    least = profile(chat("x", max_tokens=50, min_tokens=50, ignore_eos=True))
    assert all(b["min_tokens"] <= b["max_tokens"] for b in stream(200, 1, "0", 0, of=least))


# --- images


def decode(uri: str) -> Image.Image:
    head, data = uri.split(",", 1)
    image = Image.open(io.BytesIO(base64.b64decode(data, validate=True)))
    assert head == f"data:image/{image.format.lower()};base64"
    image.load()
    return image


def changed(one: Image.Image, two: Image.Image) -> int:
    step = len(one.getbands())
    a, b = one.tobytes(), two.tobytes()
    return sum(a[i : i + step] != b[i : i + step] for i in range(0, len(a), step))


@pytest.mark.parametrize("path", sorted((ROOT / "profiles" / "images").glob("*.png")), ids=lambda p: p.stem)
def test_variants_of_shipped_images_differ_in_few_pixels(path: Path) -> None:
    whole = image_data_uri(path, None)
    assert base64.b64decode(whole.split(",")[1]) == path.read_bytes()
    original, seen = decode(whole), set()
    for variant in (0, 1, 2, 2**56):
        image = decode(image_data_uri(path, variant))
        assert image.size == original.size and image.mode == original.mode
        assert 1 <= changed(original, image) <= 11
        seen.add(image.tobytes())
    assert len(seen) == 4
    assert image_data_uri(path, 5) == image_data_uri(path, 5)


def test_foreign_files_vary_in_pixels_where_they_can(tmp_path: Path) -> None:
    photo = Image.linear_gradient("L").resize((120, 90))
    for name, image, varies in (
        ("rgb.png", photo.convert("RGB"), True),
        ("rgba.png", photo.convert("RGBA"), True),
        ("grey.png", photo, True),
        ("palette.png", photo.convert("P"), False),
        ("bits.png", photo.convert("1"), False),
        ("photo.jpg", photo.convert("RGB"), False),
    ):
        path = tmp_path / name
        image.save(path)
        uris = [image_data_uri(path, variant) for variant in (1, 2)]
        first, second = map(decode, uris)
        assert first.size == second.size == (120, 90) and uris[0] != uris[1], name
        assert pixels_vary(path) is varies, name
        assert (first.tobytes() != second.tobytes()) is varies, name


def test_a_damaged_png_still_gets_other_bytes(tmp_path: Path) -> None:
    path = tmp_path / "cut.png"
    path.write_bytes((ROOT / "profiles" / "images" / "grain.png").read_bytes()[:500])
    assert not pixels_vary(path)
    assert image_data_uri(path, 1) != image_data_uri(path, 2)


def test_inlined_images_are_fresh_per_request_unless_the_nonce_is_off() -> None:
    vision = load("vlm")
    draws, seen = Draws(vision, 1, "0", 0), collections.Counter()
    for _ in range(30):
        draw = draws.next()
        assert inline_images(draw, vision.path.parent) == len(image_parts(draw.prompt.body))
        seen.update(part["url"] for part in image_parts(draw.body))
    assert max(seen.values()) == 1 and all(url.startswith("data:image/png;base64,") for url in seen)
    plain = Draws(vision, 1, "0", 0, nonce=False)
    again = collections.Counter()
    for _ in range(30):
        draw = plain.next()
        inline_images(draw, vision.path.parent)
        again.update(part["url"] for part in image_parts(draw.body))
    assert max(again.values()) > 1


# --- synthetic prompts


def test_calibrate_and_synthetic_hit_the_wanted_length() -> None:
    def count(words: int) -> int:  # a server that sees 1.25 tokens a word and adds 20 of its own
        return round(1.25 * words + 20)

    per_word, overhead = calibrate(100, count(100), 500, count(500))
    assert (per_word, overhead) == (1.25, 20)
    made = synthetic(512, 256, 10, 1, per_word, overhead)
    sizes = [len(p.body["messages"][0]["content"].split()) for p in made.prompts]
    assert all(abs(count(size) - 512) <= 1 for size in sizes)
    assert len({json.dumps(p.body) for p in made.prompts}) == 10
    assert all(p.body["ignore_eos"] is True and p.body["max_tokens"] == 256 for p in made.prompts)
    assert made == synthetic(512, 256, 10, 1, per_word, overhead)
    assert made.sha256 != synthetic(512, 256, 10, 2, per_word, overhead).sha256
    assert len(synthetic_text(37, 1).split()) == 37


def test_lengths_that_cannot_be_made_are_refused() -> None:
    with pytest.raises(ProfileError, match="use 22 or more"):
        synthetic(10, 5, 1, 1, 1.25, 20)
    with pytest.raises(ProfileError, match="above 0"):
        synthetic(100, 0, 1, 1, 1.25)
    with pytest.raises(ProfileError, match="twice"):
        calibrate(10, 30, 10, 30)
    with pytest.raises(ProfileError, match="do not grow"):
        calibrate(10, 30, 20, 30)


# --- convert and show

SHAREGPT = [
    {"id": "x", "conversations": [
        {"from": "system", "value": "Be brief."}, {"from": "human", "value": "Hello\u2028 there"},
        {"from": "gpt", "value": "Hi."}, {"from": "human", "value": "Und jetzt?"},
        {"from": "gpt", "value": "No."},
    ]},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "你好"}]}]},
    {"conversations": [{"from": "gpt", "value": "I come first."}, {"from": "human", "value": "Oh."}]},
    {"conversations": []},
    {"conversations": [{"from": "function", "value": "{}"}]},
]  # fmt: skip


@pytest.mark.parametrize("form", ["json", "jsonl"])
def test_sharegpt_round_trip(tmp_path: Path, capsys: pytest.CaptureFixture, form: str) -> None:
    source, out = tmp_path / f"share.{form}", tmp_path / "new" / "mine.jsonl"
    rows = [json.dumps(row, ensure_ascii=False) for row in SHAREGPT]
    dumped = json.dumps(SHAREGPT) if form == "json" else "\n".join(rows)
    source.write_text(dumped, "utf-8")
    assert main(["convert", str(source), "--out", str(out), "--max-tokens", "99"]) == 0
    made = load(out)
    assert [p.id for p in made.prompts] == ["mine-0001", "mine-0002"]
    assert made.prompts[0].body == {"max_tokens": 99, "messages": [
        {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello\u2028 there"},
        {"role": "assistant", "content": "Hi."}, {"role": "user", "content": "Und jetzt?"},
    ]}  # fmt: skip
    assert texts(made.prompts[1].body) == ["你好"]
    said = capsys.readouterr().out
    for line in ("skipped 1: starts with an answer", "skipped 1: no user turn", "skipped 1: role 'function'"):
        assert line in said
    assert "mine: 2 prompts" in said and "characters" in said


def test_plain_text_becomes_lines_or_paragraphs(tmp_path: Path) -> None:
    assert plain_prompts("one\ntwo\r\nthree\n") == ["one", "two", "three"]
    assert plain_prompts("one\nstill one\r\n\r\ntwo\n \n\n three \n") == ["one\nstill one", "two", "three"]
    source, out = tmp_path / "p.txt", tmp_path / "mine.jsonl"
    source.write_text("[not json]\nsecond\nthird\n")
    assert main(["convert", str(source), "--out", str(out), "--limit", "2"]) == 0
    assert [texts(p.body) for p in load(out).prompts] == [["[not json]"], ["second"]]
    assert len(conversations(source)) == 3


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.json", b"[{]", "not JSON"),
        ("a.jsonl", b'{"messages": []}\n{oops\n', "a.jsonl:2: not JSON"),
        ("a.json", b'[{"text": "x"}]', 'entry 1: needs a list under "conversations" or "messages"'),
        ("a.json", b'[{"messages": []}]', "no usable prompt: no user turn (1)"),
        ("a.txt", b" \n", "the file is empty"),
        ("a.txt", b"caf\xe9", "not UTF-8"),
        ("missing.txt", None, "cannot be read: No such file"),
    ],
)
def test_bad_input_to_convert_is_one_line_and_exit_2(
    tmp_path: Path, capsys: pytest.CaptureFixture, name: str, data: bytes | None, message: str
) -> None:
    if data is not None:
        (tmp_path / name).write_bytes(data)
    with pytest.raises(SystemExit) as caught:
        main(["convert", str(tmp_path / name), "--out", str(tmp_path / "out.jsonl")])
    error = capsys.readouterr().err
    assert caught.value.code == 2 and message in error and error.count("\n") == 1
    assert not (tmp_path / "out.jsonl").exists()


def test_convert_does_not_overwrite(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    source, out = tmp_path / "p.txt", tmp_path / "mine.jsonl"
    source.write_text("hello\n")
    out.write_text("precious")
    with pytest.raises(SystemExit):
        main(["convert", str(source), "--out", str(out)])
    assert "is there already" in capsys.readouterr().err and out.read_text() == "precious"


def test_the_command_line_as_a_process() -> None:
    def run(*args: str) -> subprocess.CompletedProcess:
        command = [sys.executable, "-m", "tokenswarm.prompts", *args]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=30)

    shown = run("show", "chat")
    assert (shown.returncode, shown.stderr) == (0, "") and shown.stdout.startswith("chat: ")
    failed = run("show", "chta")
    assert failed.returncode == 2 and failed.stderr.count("\n") == 1 and "chat, code" in failed.stderr


def test_a_second_run_sends_the_same_prompts_under_other_heads() -> None:
    """Else the server's prefix cache would answer the second run."""
    first, second = (Draws(load("chat"), 1, "w0", 1, run=run) for run in ("a", "b"))
    for _ in range(50):
        one, two = first.next(), second.next()
        assert one.prompt == two.prompt
        assert one.nonce != two.nonce and one.body != two.body
