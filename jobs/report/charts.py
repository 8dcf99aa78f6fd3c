"""Small charts as SVG text, for a self-contained page.

All are 360 units wide, which is the width of a phone, and scale with their container; colours are the
page's CSS variables, so that they follow its light or dark scheme. Every mark has a title of its own.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10

WIDTH = 360
LEFT, RIGHT, TOP, BOTTOM = 46, 10, 10, 34
SERIES = 6
"""Colours the page has for series: CSS variables --s0 to --s5."""

Point = tuple[float, float]


class Canvas:
    """The marks of a picture, in drawing order."""

    def __init__(self, height: float, title: str) -> None:
        self.height = height
        self._marks: list[str] = []
        self._title = title

    def add(self, mark: str) -> None:
        self._marks.append(mark)

    def text(self, x: float, y: float, words: str, *, anchor: str = "start", style: str = "label") -> None:
        self.add(
            f'<text class="{style}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'
        )

    def line(self, x1: float, y1: float, x2: float, y2: float, style: str = "grid") -> None:
        self.add(f'<line class="{style}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>')

    def bar(
        self, x: float, y: float, width: float, height: float, title: str, *, series: int = 0, style: str = ""
    ) -> None:
        self.add(
            f'<rect class="mark {style}" x="{x:.1f}" y="{y:.1f}" width="{max(width, 0.5):.1f}" '
            f'height="{max(height, 0.5):.1f}" rx="1.5" style="fill:var(--s{series % SERIES})">'
            f"<title>{escape(title)}</title></rect>"
        )

    def path(self, points: Sequence[Point], *, series: int = 0, style: str = "curve") -> None:
        steps = " ".join(f"{'L' if number else 'M'}{x:.1f} {y:.1f}" for number, (x, y) in enumerate(points))
        self.add(f'<path class="{style}" d="{steps}" style="--c:var(--s{series % SERIES})"/>')

    def dot(self, x: float, y: float, title: str, *, series: int = 0, hollow: bool = False) -> None:
        style = "dot hollow" if hollow else "dot"
        self.add(
            f'<circle class="{style}" cx="{x:.1f}" cy="{y:.1f}" r="3.2" '
            f'style="--c:var(--s{series % SERIES})"><title>{escape(title)}</title></circle>'
        )

    def svg(self) -> str:
        return (
            f'<svg viewBox="0 0 {WIDTH} {self.height:.0f}" role="img" aria-label="{escape(self._title)}">'
            + "".join(self._marks)
            + "</svg>"
        )


@dataclass(frozen=True, kw_only=True)
class Axis:
    """A scale from values to positions: linear, or logarithmic to base 10."""

    low: float
    high: float
    start: float
    stop: float
    logarithmic: bool = False

    def at(self, value: float) -> float:
        low, high = self._scaled(self.low), self._scaled(self.high)
        share = (self._scaled(value) - low) / ((high - low) or 1.0)
        return self.start + share * (self.stop - self.start)

    def ticks(self) -> list[float]:
        """Round values inside the scale."""
        if not self.logarithmic:
            return round_ticks(self.low, self.high)
        tens = range(floor(log10(self.low)), ceil(log10(self.high)) + 1)
        steps = (1,) if len(tens) > 4 else (1, 2, 5)
        values = [step * 10.0**power for power in tens for step in steps]
        return [value for value in values if self.low <= value * 1.0001 and value <= self.high * 1.0001]

    def _scaled(self, value: float) -> float:
        return log10(max(value, 1e-12)) if self.logarithmic else value


def round_ticks(low: float, high: float, most: int = 5) -> list[float]:
    """At most `most` multiples of 1, 2 or 5 times a power of ten in low..high."""
    span = (high - low) or abs(high) or 1.0
    unit = 10.0 ** floor(log10(span / most))
    step = next(unit * times for times in (1, 2, 5, 10) if span / (unit * times) <= most)
    first = ceil(low / step - 1e-9)
    return [number * step for number in range(first, floor(high / step + 1e-9) + 1)]


def short(value: float) -> str:
    """A number in few characters: 1.5k, 20M, 0.03."""
    for unit, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= unit * 0.9995:
            return f"{value / unit:.3g}{name}"
    return f"{value:.3g}"


@dataclass(frozen=True, kw_only=True)
class Series:
    """One line of a chart; `titles` describe its points, `hollow` marks some of them."""

    name: str
    points: Sequence[Point]
    titles: Sequence[str] = ()
    hollow: frozenset[int] = frozenset()
    dots: bool = True


@dataclass(frozen=True, kw_only=True)
class LineChart:
    """Lines over two axes; `marks` are (x, text) of vertical lines, `from_zero` starts y at 0.

    keys : whether to draw a legend below; a page has its own.
    """

    title: str
    x: str
    y: str
    series: Sequence[Series]
    x_logarithmic: bool = False
    y_logarithmic: bool = False
    keys: bool = False
    from_zero: bool = False
    marks: Sequence[tuple[float, str]] = ()
    x_text: Callable[[float], str] = short
    y_text: Callable[[float], str] = short
    height: float = 220

    def svg(self) -> str:
        xs = [x for line in self.series for x, _ in line.points]
        ys = [y for line in self.series for _, y in line.points]
        low, high = _padded(min(ys), max(ys), self.from_zero, self.y_logarithmic)
        right = WIDTH - RIGHT - 4
        across = Axis(low=min(xs), high=max(xs), start=LEFT + 6, stop=right, logarithmic=self.x_logarithmic)
        up = Axis(
            low=low,
            high=high,
            start=self.height - BOTTOM,
            stop=TOP + 12,
            logarithmic=self.y_logarithmic,
        )
        names = [line.name for line in self.series] if self.keys else []
        canvas = Canvas(self.height + 15 * -(-len(names) // 2), self.title)
        draw_keys(canvas, names, self.height + 4)
        draw_axes(canvas, across, up, self)
        for place, words in self.marks:
            canvas.line(across.at(place), TOP + 12, across.at(place), up.start, "mark-line")
            late = across.at(place) > WIDTH / 2
            shift, anchor = (-3, "end") if late else (3, "start")
            canvas.text(across.at(place) + shift, TOP + 20, words, anchor=anchor, style="label small")
        for number, line in enumerate(self.series):
            places = [(across.at(x), up.at(y)) for x, y in line.points]
            canvas.path(places, series=number)
            if line.dots:
                titles = line.titles or [f"{short(x)}, {short(y)}" for x, y in line.points]
                for point, ((x, y), title) in enumerate(zip(places, titles, strict=True)):
                    canvas.dot(x, y, title, series=number, hollow=point in line.hollow)
        return canvas.svg()


def _padded(low: float, high: float, from_zero: bool, logarithmic: bool) -> tuple[float, float]:
    """A range a little larger than its values."""
    if logarithmic:
        return low / 1.15, high * 1.15
    pad = 0.06 * ((high - low) or abs(high) or 1.0)
    return (0.0 if from_zero else low - pad), high + pad


def draw_keys(canvas: Canvas, names: Sequence[str], top: float) -> None:
    """The series' names with their colours, two in a row."""
    for number, name in enumerate(names):
        x, y = LEFT + (WIDTH - LEFT) / 2 * (number % 2), top + 15 * (number // 2)
        canvas.bar(x, y, 9, 9, name, series=number)
        canvas.text(x + 14, y + 8.5, name)


def draw_axes(canvas: Canvas, across: Axis, up: Axis, chart: LineChart) -> None:
    """Grid, numbers and names of both axes."""
    for value in up.ticks():
        canvas.line(LEFT, up.at(value), WIDTH - RIGHT, up.at(value))
        canvas.text(LEFT - 5, up.at(value) + 3.5, chart.y_text(value), anchor="end")
    for value in across.ticks():
        canvas.text(across.at(value), up.start + 14, chart.x_text(value), anchor="middle")
    canvas.line(LEFT, up.start, WIDTH - RIGHT, up.start, "axis")
    canvas.text((LEFT + WIDTH - RIGHT) / 2, chart.height - 5, chart.x, anchor="middle", style="name")
    canvas.text(4, TOP + 1, chart.y, style="name")


def column_chart(title: str, x: str, y: str, columns: Sequence[tuple[str, Sequence[float]]]) -> str:
    """Upright bars, each stacked of the values of its series, with the sum above."""
    height = 200.0
    canvas = Canvas(height, title)
    most = max((sum(values) for _, values in columns), default=1.0) or 1.0
    up = Axis(low=0, high=most * 1.1, start=height - BOTTOM, stop=TOP + 12)
    slot = (WIDTH - LEFT - RIGHT) / max(1, len(columns))
    for value in up.ticks():
        canvas.line(LEFT, up.at(value), WIDTH - RIGHT, up.at(value))
        canvas.text(LEFT - 5, up.at(value) + 3.5, short(value), anchor="end")
    for number, (name, values) in enumerate(columns):
        left, base = LEFT + slot * (number + 0.15), 0.0
        for series, value in enumerate(values):
            top, bottom = up.at(base + value), up.at(base)
            canvas.bar(left, top, 0.7 * slot, bottom - top, f"{name}: {short(value)}", series=series)
            base += value
        if len(columns) <= 12:
            canvas.text(
                left + 0.35 * slot, up.at(base) - 4, short(base), anchor="middle", style="label small"
            )
        canvas.text(left + 0.35 * slot, up.start + 14, name, anchor="middle")
    canvas.line(LEFT, up.start, WIDTH - RIGHT, up.start, "axis")
    canvas.text((LEFT + WIDTH - RIGHT) / 2, height - 5, x, anchor="middle", style="name")
    canvas.text(4, TOP + 1, y, style="name")
    return canvas.svg()


def row_chart(
    title: str, rows: Sequence[tuple[str, float, str]], *, most: float | None = None, limits: bool = False
) -> str:
    """Horizontal bars, names above and values behind; `limits` shows the largest possible values."""
    step, left = 30.0, 4.0
    canvas = Canvas(step * len(rows) + 6, title)
    longest = most or max((value for _, value, _ in rows), default=1.0) or 1.0
    room = WIDTH - left - 92
    for number, (name, value, words) in enumerate(rows):
        top = step * number
        canvas.text(left, top + 11, name)
        if limits:
            canvas.add(
                f'<rect class="track" x="{left}" y="{top + 15:.1f}" width="{room:.1f}" height="9" rx="1.5"/>'
            )
        canvas.bar(left, top + 15, room * value / longest, 9, f"{name}: {words}")
        behind = left + (room if limits else room * value / longest) + 6
        canvas.text(behind, top + 23, words, style="label small")
    return canvas.svg()


def histogram_rows(title: str, rows: Sequence[tuple[str, Sequence[int]]], bins: Sequence[str], x: str) -> str:
    """Small histograms in rows, with the same bins; heights are shares of a row's nodes."""
    step = 44.0
    canvas = Canvas(step * len(rows) + 36, title)
    slot = (WIDTH - LEFT - RIGHT) / max(1, len(bins))
    for number, (name, counts) in enumerate(rows):
        base, total = step * (number + 1) - 4, max(1, sum(counts))
        canvas.text(LEFT - 6, base - 2, name, anchor="end")
        canvas.line(LEFT, base, WIDTH - RIGHT, base, "axis")
        for column, count in enumerate(counts):
            if count:
                height = 32.0 * count / total
                words = f"{name}, {bins[column]}: {count / total:.2%}"
                canvas.bar(LEFT + slot * column + 1, base - height, slot - 2, height, words)
    end = step * len(rows)
    for column, name in enumerate(bins):
        if len(bins) <= 9 or column % 2 == 0:
            canvas.text(LEFT + slot * (column + 0.5), end + 12, name, anchor="middle", style="label small")
    canvas.text((LEFT + WIDTH - RIGHT) / 2, end + 30, x, anchor="middle", style="name")
    return canvas.svg()


def heat_map(title: str, matrix: Sequence[Sequence[float]], names: Sequence[str], unit: str) -> str:
    """A square of cells whose strength is their value; the diagonal is left empty."""
    size = len(names)
    left = 26.0
    cell = min(40.0, (WIDTH - left - 8) / max(1, size))
    canvas = Canvas(left + cell * size + 24, title)
    most = max((matrix[i][j] for i in range(size) for j in range(size) if i != j), default=0.0)
    for i, name in enumerate(names):
        middle = left + cell * (i + 0.5)
        canvas.text(left - 5, middle + 3.5, name, anchor="end")
        canvas.text(middle, left - 7, name, anchor="middle")
        for j in range(size):
            if i == j:
                continue
            value, x, y = matrix[i][j], left + cell * j, left + cell * i
            share = value / most if most > 0 else 0.0
            canvas.add(
                f'<rect class="mark heat" x="{x + 0.5:.1f}" y="{y + 0.5:.1f}" width="{cell - 1:.1f}" '
                f'height="{cell - 1:.1f}" rx="1.5" style="fill-opacity:{0.06 + 0.94 * share:.3f}">'
                f"<title>{escape(name)} and {escape(names[j])}: {value:.4f} {unit}</title></rect>"
            )
            if cell >= 26:
                style = "label small on" if share > 0.55 else "label small"
                canvas.text(x + cell / 2, y + cell / 2 + 3.2, f"{value:.2f}", anchor="middle", style=style)
    canvas.text(left, canvas.height - 6, f"{unit}; the strongest cell is {most:.3f}", style="name")
    return canvas.svg()
