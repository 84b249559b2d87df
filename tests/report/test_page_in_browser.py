"""The page in a real browser: no sideways scrolling, no error of its script, and the colours of its ground."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from matplotlib.image import imread
from support.made_sweeps import Plan, make_sweep

from lossbench.report.style import DARK, LIGHT
from lossbench.report.write import make_report

CHROMIUM = shutil.which("chromium")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: apt-get install chromium"),
]
MEASURE = """<script>
for (const fold of document.querySelectorAll("details")) fold.open = true;
const area = document.querySelector("#figure-lengths svg").getBoundingClientRect();
const at = { clientX: area.left + area.width / 2, clientY: area.top + area.height / 2 };
document.querySelector("#figure-lengths svg").dispatchEvent(new PointerEvent("pointermove", at));
document.querySelector("#modes .sort").click();
document.querySelector("#figure-lengths .controls button").click();
const hidden = [...document.querySelectorAll("#figure-lengths svg g")].filter((g) => g.style.visibility === "hidden");
const found = [document.documentElement.scrollWidth, innerWidth, hidden.length,
  document.querySelector("#figure-lengths .tip").textContent, document.querySelectorAll("[aria-sort]").length];
parent.postMessage(found.join("|"), "*");
</script></body>"""
# Chromium's own windows are never narrower than 500 pixels; frames are.
FRAME = """<script>onmessage = (event) => { document.title = event.data; };</script>
<body style="margin: 0"><iframe src="measured.html" style="border: 0" width="WIDTH" height="1200"></iframe>"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    arms = ("grpo", "dr_grpo", "dapo", "grpo@seq-mean-token-sum-norm/group", "cispo@seq-mean-token-sum-norm/group")
    folder = make_sweep(tmp_path_factory.mktemp("sweep") / "s", Plan(arms, 3, 20, claims=["C1", "C2", "C9"]))
    return make_report(folder).folder / "index.html"


def browse(page: Path, width: int, dark: bool, *arguments: str) -> subprocess.CompletedProcess[str]:
    assert CHROMIUM is not None
    scheme = ["--blink-settings=preferredColorScheme=0"] if dark else []
    command = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", *scheme,
               "--enable-logging=stderr", f"--window-size={width},1200", *arguments, page.as_uri()]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
def test_the_page_fits_and_answers(page: Path, tmp_path: Path, width: int, dark: bool) -> None:
    picture = tmp_path / "page.png"
    shown = browse(page, width, dark, f"--screenshot={picture}")
    assert "CONSOLE" not in shown.stderr, [line for line in shown.stderr.splitlines() if "CONSOLE" in line]
    corner = "#" + "".join(f"{round(255 * part):02x}" for part in imread(picture)[5, 5, :3])
    assert corner == (DARK if dark else LIGHT)["paper"]

    framed = tmp_path / "framed.html"
    framed.write_text(FRAME.replace("WIDTH", str(width)))
    text = re.sub(r"script-src 'sha256-[^']*'", "script-src 'unsafe-inline'", page.read_text())
    (tmp_path / "measured.html").write_text(text.replace("</body>", MEASURE))
    found = re.search(r"<title>(.*?)</title>", browse(framed, 1280, dark, "--dump-dom").stdout)
    assert found is not None
    whole, inner, hidden, tip, sorted_by = found[1].split("|")
    assert int(whole) <= int(inner) == width
    assert int(hidden) >= 2 and "dr_grpo incorrect: " in tip and sorted_by == "1"
