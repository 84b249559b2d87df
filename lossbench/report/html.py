"""A report as one HTML file: offline, figures inside, every text escaped; its one script is our own."""

import base64
import hashlib
import json
import re
from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from lossbench.report.document import MARKS, Document, FigureBlock
from lossbench.report.style import DARK, LIGHT
from lossbench.version import __version__

_INTERVAL = re.compile(r"(\[[+−\d.,]+), ")
_NAMES = {color: name for name, color in LIGHT.items()}
_COLOR = re.compile(r"#[0-9a-f]{6}\b")
_GROUP = re.compile(r'<g id="((?:runs-)?mode\d+)">')
_PATH = re.compile(r' d="[^"]*"')
_LONG_DECIMAL = re.compile(r"(\d\.\d)\d+")


def render_html(document: Document) -> str:
    """The page. Figures are read from the report's folder and put into it."""
    environment = Environment(
        loader=PackageLoader("lossbench", "report"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    script = files("lossbench.report").joinpath("page.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    environment.globals.update(
        marks=MARKS, version=__version__, script=Markup(script), digest=digest,
        palettes=[Markup(";".join(f"--{name}:{color}" for name, color in colors.items())) for colors in (LIGHT, DARK)],
        svg=lambda block: _inline(document, block), dumps=lambda value: json.dumps(value, separators=(",", ":")),
    )  # fmt: skip
    environment.filters.update(breaks=_breaks, tidy=_tidy)
    return environment.get_template("template.html.j2").render(document=document)


def _inline(document: Document, block: FigureBlock) -> Markup:
    """The figure's SVG with the page's colours, ids of its own, and classes by which the script finds modes."""
    svg = (document.folder / "figures" / f"{block.name}.svg").read_text(encoding="utf-8")
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    svg = _COLOR.sub(lambda found: f"var(--{_NAMES[found[0]]})" if found[0] in _NAMES else found[0], svg)
    svg = _GROUP.sub(lambda found: f'<g class="{found[1].replace("runs-", "runs ")}">', svg)
    svg = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{block.name}-", svg)
    svg = _PATH.sub(lambda path: _LONG_DECIMAL.sub(r"\1", path[0].replace("\n", "")), svg)
    view = re.search(r'viewBox="[^"]*"', svg)
    head = f'<svg {view[0] if view else ""} role="img" aria-label="{escape(block.alt)}"'
    return Markup(f'{head} xmlns:xlink="http://www.w3.org/1999/xlink">{svg[svg.index(">") + 1 :]}')


def _tidy(text: str) -> str:
    """Keep intervals, "p = 0.03" and "95 %" on one line."""
    return _INTERVAL.sub("\\1,\u00a0", text).replace(" = ", "\u00a0=\u00a0").replace(" %", "\u00a0%")


def _breaks(text: str) -> Markup:
    """Let long mode names break after @ and / on narrow screens."""
    return Markup(re.sub("([@/])", r"\1<wbr>", str(escape(_tidy(text)))))
