"""Draws the images of vlm.jsonl into profiles/images/: the same pixels every time, standard library only."""

import itertools
import math
import random
import struct
import zlib
from pathlib import Path

Color = tuple[int, int, int]
WHITE, INK, GREY = (255, 255, 255), (30, 30, 40), (200, 200, 205)
COLORS: list[Color] = [(66, 114, 190), (221, 132, 60), (84, 160, 90), (190, 70, 75), (130, 105, 170)]
# Letters 3 wide and 5 high: one octal digit a row, top first, bits from left to right.
FONT = {
    "A": "25755", "B": "65656", "C": "34443", "D": "65556", "E": "74647", "F": "74644", "G": "34553",
    "H": "55755", "I": "72227", "J": "11152", "K": "55655", "L": "44447", "M": "57755", "N": "65555",
    "O": "25552", "P": "65644", "Q": "25563", "R": "65655", "S": "34216", "T": "72222", "U": "55557",
    "V": "55552", "W": "55775", "X": "55255", "Y": "55222", "Z": "71247", "0": "75557", "1": "26227",
    "2": "71747", "3": "71717", "4": "55711", "5": "74717", "6": "74757", "7": "71122", "8": "75757",
    "9": "75717", ".": "00002", ":": "02020", "-": "00700", "%": "51245",
}  # fmt: skip


class Canvas:
    """RGB pixels in one bytearray."""

    def __init__(self, width: int, height: int, color: Color = WHITE) -> None:
        self.width, self.height = width, height
        self.pixels = bytearray(bytes(color) * (width * height))

    def rect(self, x: float, y: float, w: float, h: float, color: Color) -> None:
        left, right = max(0, int(x)), min(self.width, int(x + w))
        for row in range(max(0, int(y)), min(self.height, int(y + h))):
            at = 3 * (row * self.width + left)
            self.pixels[at : at + 3 * max(0, right - left)] = bytes(color) * max(0, right - left)

    def disc(self, x: float, y: float, radius: float, color: Color) -> None:
        for row in range(int(-radius), int(radius) + 1):
            half = math.sqrt(max(0.0, radius * radius - row * row))
            self.rect(x - half, y + row, 2 * half, 1, color)

    def line(self, x: float, y: float, x2: float, y2: float, color: Color, thick: int = 3) -> None:
        steps = int(max(abs(x2 - x), abs(y2 - y), 1))
        for i in range(steps + 1):
            self.rect(x + (x2 - x) * i / steps, y + (y2 - y) * i / steps, thick, thick, color)

    def text(self, x: int, y: int, text: str, size: int = 3, color: Color = INK) -> None:
        for index, letter in enumerate(text.upper()):
            for row, digit in enumerate(FONT.get(letter, "00000")):
                for bit in range(3):
                    if int(digit) >> (2 - bit) & 1:
                        self.rect(x + (4 * index + bit) * size, y + row * size, size, size, color)

    def png(self) -> bytes:
        """Filter 0 in every row, so that it can be taken apart without a decoder."""
        step = 3 * self.width
        rows = b"".join(b"\0" + self.pixels[at : at + step] for at in range(0, len(self.pixels), step))
        head = struct.pack(">IIBBBBB", self.width, self.height, 8, 2, 0, 0, 0)
        chunks = [(b"IHDR", head), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b"")]
        parts = [struct.pack(">I", len(d)) + k + d + struct.pack(">I", zlib.crc32(k + d)) for k, d in chunks]
        return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def bars(width: int, height: int, title: str, labels: list[str], values: list[int]) -> Canvas:
    c, left, bottom = Canvas(width, height), 50, height - 50
    c.text(left, 16, title, 4)
    for tick in range(0, 101, 25):
        y = bottom - (bottom - 60) * tick // 100
        c.rect(left, y, width - left - 20, 1, GREY)
        c.text(6, y - 6, str(tick), 3)
    step = (width - left - 30) / len(values)
    for i, (label, value) in enumerate(zip(labels, values, strict=True)):
        tall = (bottom - 60) * value / 100
        c.rect(left + 8 + i * step, bottom - tall, step * 0.7, tall, COLORS[i % len(COLORS)])
        c.text(int(left + 8 + i * step), bottom + 12, label, 3)
    c.rect(left, bottom, width - left - 20, 2, INK)
    return c


def lines(width: int, height: int, title: str, series: dict[str, list[int]]) -> Canvas:
    c, left, bottom = Canvas(width, height), 50, height - 40
    c.text(left, 16, title, 4)
    for tick in range(0, 101, 20):
        y = bottom - (bottom - 70) * tick // 100
        c.rect(left, y, width - left - 20, 1, GREY)
        c.text(6, y - 6, str(tick), 3)
    for i, (name, values) in enumerate(series.items()):
        c.text(left + i * 150, 48, name, 3, COLORS[i])
        step = (width - left - 40) / (len(values) - 1)
        dots = [(left + k * step, bottom - (bottom - 70) * v / 100) for k, v in enumerate(values)]
        for a, b in itertools.pairwise(dots):
            c.line(*a, *b, COLORS[i])
        for dot in dots:
            c.disc(*dot, 5, COLORS[i])
    return c


def pie(size: int, title: str, shares: dict[str, int]) -> Canvas:
    c, middle, radius, start = Canvas(size, size), size / 2, size * 0.3, 0.0
    for i, share in enumerate(shares.values()):
        for step in range(share * 14):  # spokes dense enough to leave no holes
            angle = 2 * math.pi * (start + step / 14) / 100 - math.pi / 2
            x, y = middle + radius * math.cos(angle), middle + radius * math.sin(angle)
            c.line(middle, middle, x, y, COLORS[i])
        start += share
    c.text(16, 14, title, 4)
    for i, (name, share) in enumerate(shares.items()):
        c.text(16 + (i % 3) * (size // 3), size - 44 + 22 * (i // 3), f"{name} {share}%", 3, COLORS[i])
    return c


def strokes(c: Canvas, x: int, y: int, w: int, count: int, seed: int) -> None:
    """Lines of small bars that look like running text."""
    dice = random.Random(seed)
    for row in range(count):
        at, end = x, x + w * (0.6 if row == count - 1 else 1)
        while at < end - 8:
            word = dice.randint(8, 40)
            c.rect(at, y + row * 14, min(word, end - at), 6, (90, 90, 100))
            at += word + 6


def page(width: int, height: int, title: str, seed: int) -> Canvas:
    c = Canvas(width, height)
    c.text(50, 50, title, 5)
    c.rect(50, 90, width - 100, 2, INK)
    for block in range((height - 200) // 130):
        c.text(50, 115 + block * 130, f"{block + 1}. PART {chr(65 + block)}", 3)
        strokes(c, 50, 140 + block * 130, width - 100, 6, seed + block)
    c.text(width - 80, height - 40, "7", 3)
    return c


def table(width: int, height: int, title: str, rows: list[list[str]], size: int = 3) -> Canvas:
    c = Canvas(width, height)
    c.text(24, 20, title, size + 1)
    step, cols = (height - 80) // len(rows), len(rows[0])
    for i, row in enumerate(rows):
        c.rect(20, 64 + i * step, width - 40, 1 if i > 1 else 2, INK)
        for k, cell in enumerate(row):
            c.text(28 + k * (width - 40) // cols, 64 + i * step + step // 3, cell, size)
    c.rect(20, 64 + len(rows) * step, width - 40, 2, INK)
    return c


def landscape(width: int, height: int, seed: int, night: bool = False) -> Canvas:
    """Sky, a sun or moon, three ranges of hills, and a little grain."""
    dice, c = random.Random(seed), Canvas(width, height)
    for y in range(height):
        t = y / height
        dark, light = (10 + 30 * t, 15 + 40 * t, 45 + 60 * t), (110 + 130 * t, 160 + 60 * t, 225 - 30 * t)
        red, green, blue = map(int, dark if night else light)
        c.rect(0, y, width, 1, (red, green, blue))
    c.disc(width * 0.7, height * 0.25, width * 0.07, (240, 240, 215) if night else (255, 225, 120))
    for layer in range(3):
        wave, shift = dice.uniform(0.008, 0.02), dice.uniform(0, 6)
        shade = int((40 if night else 120) - 30 * layer * (0.4 if night else 1))
        for x in range(width):
            top = height * (0.55 + 0.13 * layer) + height * 0.06 * math.sin(wave * x + shift)
            c.rect(x, top, 1, height, (shade // 2, shade, shade // 2 + 15))
    for _ in range(width * height // 60):
        c.rect(dice.randrange(width), dice.randrange(height), 1, 1, (dice.randrange(90, 130),) * 3)
    return c


def still_life(width: int, height: int, seed: int, fruits: int) -> Canvas:
    """Shaded balls on a table."""
    dice, c = random.Random(seed), Canvas(width, height, (205, 195, 180))
    c.rect(0, height * 0.6, width, height, (125, 90, 60))
    for i in range(fruits):
        x, y = width * (i + 0.6) / (fruits + 0.3), height * dice.uniform(0.55, 0.7)
        radius, color = width * 0.35 / fruits, COLORS[i % len(COLORS)]
        c.disc(x + radius * 0.3, y + radius * 0.8, radius * 0.9, (90, 65, 45))
        for ring in range(16):
            light = 0.7 + ring * 0.03
            shade = tuple(min(255, int(v * light) + 4 * ring) for v in color)
            c.disc(x - ring * radius / 50, y - ring * radius / 50, radius * (1 - ring / 16), shade)  # type: ignore
    return c


def grain(size: int, seed: int) -> Canvas:
    """Coarse coloured noise, a picture that does not compress to nothing."""
    dice, c = random.Random(seed), Canvas(size, size)
    for y in range(0, size, 4):
        for x in range(0, size, 4):
            base = 100 + 80 * math.sin(x / 30) * math.cos(y / 40)
            c.rect(x, y, 4, 4, tuple(int(base + dice.randrange(0, 60)) for _ in range(3)))  # type: ignore
    return c


def draw_all() -> dict[str, Canvas]:
    """Every image by file name."""
    towns = ["OSLO", "ROME", "LIMA", "CAIRO", "DELHI", "PERTH"]
    menu = [["TEA", "2.50"], ["COFFEE", "3.20"], ["SOUP", "5.80"], ["BREAD", "1.40"], ["TOTAL", "12.90"]]
    plan = [["DAY", "ROOM", "TIME"], ["MON", "B12", "09:00"], ["TUE", "A04", "11:30"],
            ["WED", "B12", "14:00"], ["THU", "C21", "10:15"], ["FRI", "A04", "08:45"]]  # fmt: skip
    bill = [["ITEM", "QTY", "PRICE"], ["PUMP", "2", "410.00"], ["SEAL", "6", "8.50"], ["HOSE", "3", "24.00"],
            ["SUM", "11", "943.00"]]  # fmt: skip
    return {
        "bars-quarters.png": bars(448, 448, "SALES 2024", ["Q1", "Q2", "Q3", "Q4"], [42, 58, 91, 67]),
        "bars-cities.png": bars(896, 448, "RAIN PER CITY", towns, [78, 55, 8, 12, 64, 49]),
        "lines-load.png": lines(640, 480, "LATENCY AND LOAD", {"LATENCY": [12, 13, 14, 18, 35, 80],
                                                               "OUTPUT": [10, 25, 48, 66, 72, 73]}),
        "lines-small.png": lines(320, 240, "WEEK", {"VISITS": [30, 44, 41, 60, 75, 92, 50]}),
        "pie-energy.png": pie(448, "ENERGY MIX", {"WIND": 38, "SUN": 27, "GAS": 20, "OTHER": 15}),
        "page-report.png": page(595, 842, "ANNUAL REPORT", 5),
        "page-contract.png": page(768, 1024, "CONTRACT NO. 4711", 50),
        "receipt.png": table(240, 480, "CAFE LUNA", menu),
        "timetable.png": table(672, 448, "TIMETABLE", plan, 4),
        "invoice.png": table(480, 640, "INVOICE 2031", bill),
        "landscape-day.png": landscape(448, 448, 1),
        "landscape-night.png": landscape(384, 512, 2, night=True),
        "fruit-three.png": still_life(640, 480, 3, 3),
        "fruit-five.png": still_life(512, 384, 4, 5),
        "grain.png": grain(224, 6),
    }  # fmt: skip


if __name__ == "__main__":
    folder = Path(__file__).parent / "images"
    folder.mkdir(exist_ok=True)
    for name, canvas in draw_all().items():
        (folder / name).write_bytes(canvas.png())
