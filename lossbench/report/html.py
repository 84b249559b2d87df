"""A report as one HTML file: offline, no script, images inside, every text escaped."""

import base64
import re
from collections.abc import Callable
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from lossbench.report.document import Document
from lossbench.version import __version__

SVG_LIMIT = 500_000
"""Bytes above which a figure goes into the page as PNG rather than SVG."""

_INTERVAL = re.compile(r"(\[[+−\d.,]+), ")
_MARKS = {"supported": "●", "contradicted": "✕", "inconclusive": "○", "not-tested": "–"}
_LEVELS = {"error": "✕", "warning": "▲", "note": "•"}


def render_html(document: Document) -> str:
    """The page. Figures are read from the report's folder and put into it as data URIs."""
    environment = Environment(
        loader=PackageLoader("lossbench", "report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(marks=_MARKS, levels=_LEVELS, version=__version__, image=_image_of(document.folder))
    environment.filters["breaks"] = _breaks
    environment.filters["tidy"] = _tidy
    return environment.get_template("template.html.j2").render(document=document)


def _image_of(folder: Path) -> Callable[[str], str]:
    def image(name: str) -> str:
        """A figure as a data URI: in an <img>, an SVG can neither run scripts nor clash with another's ids."""
        svg = (folder / "figures" / f"{name}.svg").read_bytes()
        if len(svg) <= SVG_LIMIT:
            return f"data:image/svg+xml;base64,{base64.b64encode(svg).decode()}"
        png = (folder / "figures" / f"{name}.png").read_bytes()
        return f"data:image/png;base64,{base64.b64encode(png).decode()}"

    return image


def _tidy(text: str) -> str:
    """Keeps "p = 0.03" and "95 %" on one line."""
    return text.replace(" = ", "\u00a0=\u00a0").replace(" %", "\u00a0%")


def _breaks(text: str) -> Markup:
    """Let long mode names break after @ and / on narrow screens, and keeps intervals on one line."""
    return Markup(re.sub("([@/])", r"\1<wbr>", str(escape(_INTERVAL.sub("\\1,\u00a0", text)))))
