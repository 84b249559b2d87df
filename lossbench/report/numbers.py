"""Formatting of numbers, intervals and untrusted text in reports."""

import math
from dataclasses import dataclass

MISSING = "–"
"""Placeholder for a missing value."""


@dataclass(frozen=True)
class NumberStyle:
    """Digits and unit of one quantity: `share` values are written in percent."""

    unit: str
    decimals: int
    share: bool = False

    def plain(self, value: float | None) -> str:
        """The number without its unit: "1,970", "0.642", "12.5"."""
        return self._write(value, "")

    def signed(self, value: float | None) -> str:
        """The number with its sign, a true minus: "+27.6", "−0.041"."""
        return self._write(value, "+")

    def interval(self, low: float, high: float, sign: str = "+") -> str:
        """ "[+24.1, +31.1]"; a dash where either end is missing."""
        if not (math.isfinite(low) and math.isfinite(high)):
            return MISSING
        return f"[{self._write(low, sign)}, {self._write(high, sign)}]"

    def with_unit(self, value: float | None) -> str:
        """The number and its unit: "47.2 tokens", "12.5 %"."""
        text = self._write(value, "")
        return text if text == MISSING or not self.unit_name else f"{text} {self.unit_name}"

    @property
    def unit_name(self) -> str:
        """The unit as it stands behind a number; empty for a bare one such as reward."""
        return "%" if self.share else "" if self.unit in ("reward", "ratio", "norm") else self.unit

    def _write(self, value: float | None, sign: str) -> str:
        if value is None or not math.isfinite(value):
            return MISSING
        scaled = 100 * value if self.share else value
        text = f"{scaled:{sign},.{self.decimals}f}"
        # A rounded zero has no sign.
        return text.lstrip("+-") if float(text.replace(",", "")) == 0 else text.replace("-", "−")


_DECIMALS = {"reward": 3, "share": 1, "nats": 3, "norm": 3, "1/tokens": 4, "ratio": 2}


def number_style(unit: str, scale: float = math.nan) -> NumberStyle:
    """Digits for a quantity in `unit` whose values are about as large as `scale`."""
    if unit in _DECIMALS:
        return NumberStyle(unit, _DECIMALS[unit], share=unit == "share")
    if not math.isfinite(scale) or scale == 0:
        return NumberStyle(unit, 1)
    return NumberStyle(unit, max(0, min(3, 2 - math.floor(math.log10(abs(scale))))))


def p_value(p: float) -> str:
    """ "p = 0.0078", "p < 0.0001"; a dash if missing."""
    if not math.isfinite(p):
        return MISSING
    return "p < 0.0001" if p < 1e-4 else f"p = {p:.2g}"


def bare_p(p: float) -> str:
    """A p-value for a column that is called p."""
    return p_value(p).removeprefix("p ").removeprefix("= ")


def times(ratio: float) -> str:
    """A factor: "2.4×"."""
    return f"{ratio:.2f}×" if math.isfinite(ratio) else MISSING


def count(number: int, word: str) -> str:
    """ "1 run", "2 runs"."""
    return f"{number:,} {word}" if number == 1 else f"{number:,} {word}s"


def shortened(text: str, head: int = 700, tail: int = 250) -> str:
    """Long text with its middle left out, and how much that was."""
    if len(text) <= head + tail + 60:
        return text
    return f"{text[:head]}\n[… {len(text) - head - tail:,} characters left out …]\n{text[-tail:]}"
