"""Looks at a page of `sealwire-load report` in a browser: is there something in each plot, light and dark, wide and narrow?

    check.py PROGRAM [--keep FOLDER]

Needs chromium and nothing else. Axes and notes of a plot are grey, what was measured has a colour: a plot is empty if its
area holds too few pixels with one. The same page without its measured values must fail that, or the check is worth nothing.
With --keep the pages and pictures stay in FOLDER.
"""

import json
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import zlib

HERE = pathlib.Path(__file__).resolve().parent
EXAMPLES = ["mix-r1.json", "mix-k1.json", "sweep.json"]
WIDE, NARROW = 1200, 400
SECONDS_MAX = 300
# A browser may fail for reasons of its own.
ATTEMPTS = 3
# Pictures are made at half the size: they are read four times as fast.
SCALE = 0.5
# A pixel has a colour if its channels differ by this.
COLOUR_MIN = 50
# A single dot has about so many.
PIXELS_MIN = 8
# In a narrow window letters are set apart, as wide as those of any font.
WIDE_LETTERS = "<style>* { letter-spacing: 2px; }</style>"
# Plots of the example: four of each mix, three of the sweep.
PLOTS = 4 * 2 + 3

MEASURE = """<script>
const box = (e) => { const r = e.getBoundingClientRect(); return [r.left + scrollX, r.top + scrollY, r.width, r.height]; };
const isOutside = (t) => {
  const a = t.getBoundingClientRect(), b = t.ownerSVGElement.getBoundingClientRect();
  return a.left < b.left - 1 || a.right > b.right + 1 || a.top < b.top - 1 || a.bottom > b.bottom + 1;
};
const measured = {
  plots: [...document.querySelectorAll("svg.chart")].map((svg) => [svg.id, box(svg.querySelector(".area"))]),
  text: [...document.querySelectorAll("svg text")].filter(isOutside).map((t) => t.ownerSVGElement.id + ": " + t.textContent),
  covered: [...document.querySelectorAll("figure")].filter((f) => {
    const sides = [...f.querySelectorAll("figcaption, .legend, svg.chart")].map((e) => e.getBoundingClientRect());
    return sides.some((side, at) => at > 0 && side.top < sides[at - 1].bottom - 1);
  }).map((f) => f.querySelector("svg").id),
  width: document.documentElement.scrollWidth,
  height: document.documentElement.scrollHeight,
  ran: window.ran === true,
};
document.body.innerHTML = "<pre id=measured></pre>";
document.getElementById("measured").textContent = JSON.stringify(measured);
</script>"""


def chromium(folder, page, width, height, *arguments, holds=""):
    """Runs the browser on a page; gives what it prints, which holds `holds`."""
    program = shutil.which("chromium")
    if program is None:
        sys.exit("chromium is missing: apt-get install chromium")
    for _ in range(ATTEMPTS):
        with temporary(folder) as profile:
            command = [program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
                       "--disable-background-networking", "--disable-component-update", "--disable-sync",
                       "--disable-dev-shm-usage", "--hide-scrollbars", f"--user-data-dir={profile}",
                       f"--window-size={width},{height}", *arguments, page.as_uri()]
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_MAX)
            except subprocess.TimeoutExpired as late:
                why = str(late)
                continue
        if done.returncode == 0 and holds in done.stdout:
            return done.stdout
        why = f"status {done.returncode}\n{done.stderr}"
    sys.exit(f"{program} failed on {page.name}: {why}")


def temporary(folder=None):
    """A folder to work in. Helpers of the browser may still write there when it has ended."""
    return tempfile.TemporaryDirectory(dir=folder, ignore_cleanup_errors=True)


def measure(folder, page, width, style=""):
    """Where the plots of a page are. A script does that in a copy without the policy that forbids scripts."""
    text = page.read_text()
    policy = re.compile(r'<meta http-equiv="Content-Security-Policy"[^>]*>')
    assert policy.search(text), "the page has no policy"
    copy = folder / f"measured-{width}-{page.name}"
    copy.write_text(policy.sub("", text).replace("</body>", style + MEASURE + "</body>"))
    document = chromium(folder, copy, width, 1000, "--dump-dom", holds='<pre id="measured">')
    said = re.search(r'<pre id="measured">(.*?)</pre>', document, re.S)
    assert said, f"{page.name} could not be measured"
    return json.loads(said[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))


def shoot(folder, page, name, width, height, *arguments):
    """A picture of a page."""
    height += height % 2  # Else half a pixel is left.
    picture = folder / name
    chromium(folder, page, width, height, f"--screenshot={picture}", f"--force-device-scale-factor={SCALE}", *arguments)
    rows, channels = pixels(picture.read_bytes())
    size = (len(rows[0]) // channels, len(rows))
    assert size == (round(width * SCALE), round(height * SCALE)), f"{name} has {size} pixels"
    return rows, channels


def pixels(png):
    """Rows of a PNG of eight bits a channel without interlacing, as browsers write it, and channels of a pixel."""
    assert png[:8] == b"\x89PNG\r\n\x1a\n", "is no PNG"
    at, data, shape = 8, b"", None
    while at < len(png):
        size, kind = struct.unpack(">I4s", png[at:at + 8])
        body = png[at + 8:at + 8 + size]
        if kind == b"IHDR":
            shape = struct.unpack(">IIBBBBB", body)
        elif kind == b"IDAT":
            data += body
        at += 12 + size
    width, height, depth, colour, _, _, interlaced = shape
    assert depth == 8 and colour in (2, 6) and interlaced == 0, shape
    channels = 3 if colour == 2 else 4
    return unfiltered(zlib.decompress(data), width * channels, height, channels), channels


def unfiltered(raw, stride, height, channels):
    rows, above = [], bytearray(stride)
    for number in range(height):
        start = number * (stride + 1)
        kind, row = raw[start], bytearray(raw[start + 1:start + 1 + stride])
        if kind == 1:
            for x in range(channels, stride):
                row[x] = (row[x] + row[x - channels]) & 255
        elif kind == 2:
            row = bytearray([(a + b) & 255 for a, b in zip(row, above)])
        elif kind == 3:
            for x in range(stride):
                left = row[x - channels] if x >= channels else 0
                row[x] = (row[x] + ((left + above[x]) >> 1)) & 255
        elif kind == 4:
            for x in range(stride):
                left, corner = (row[x - channels], above[x - channels]) if x >= channels else (0, 0)
                up = above[x]
                guess = left + up - corner
                a, b, c = abs(guess - left), abs(guess - up), abs(guess - corner)
                row[x] = (row[x] + (left if a <= b and a <= c else up if b <= c else corner)) & 255
        rows.append(row)
        above = row
    return rows


def coloured(picture, box):
    """Pixels with a colour in a part of a picture."""
    rows, channels = picture
    left, top, width, height = (round(side * SCALE) for side in box)
    count = 0
    for row in rows[top:top + height]:
        part = row[left * channels:(left + width) * channels]
        spread = (max(rgb) - min(rgb) for rgb in zip(part[0::channels], part[1::channels], part[2::channels]))
        count += sum(one >= COLOUR_MIN for one in spread)
    return count


def empty(picture, plots):
    """Names of plots without measured values."""
    return [name for name, box in plots if coloured(picture, box) < PIXELS_MIN]


def paper(picture):
    """Brightness of the page's upper left corner."""
    return max(picture[0][2][:3])


def check(program, folder):
    page = folder / "report.html"
    # The page names its files as they were given: one name is wider than a narrow window.
    far = folder / ("a_folder_with_a_long_name" * 4)
    far.mkdir(exist_ok=True)
    examples = [shutil.copy(HERE / name, far) for name in EXAMPLES]
    subprocess.run([program, "report", *examples, "--output", page], check=True, stdout=subprocess.DEVNULL)

    wide = measure(folder, page, WIDE)
    plots = wide["plots"]
    assert len(plots) == PLOTS, f"{len(plots)} plots: {[name for name, _ in plots]}"
    assert wide["width"] <= WIDE, f"the page is {wide['width']} wide"
    assert not wide["text"], f"text beyond its plot: {wide['text']}"
    assert not wide["covered"], f"one part covers another: {wide['covered']}"
    light = shoot(folder, page, "light.png", WIDE, wide["height"])
    assert not empty(light, plots), f"empty: {empty(light, plots)}"
    assert paper(light) > 200, "the page is not light"

    dark = shoot(folder, page, "dark.png", WIDE, wide["height"], "--blink-settings=preferredColorScheme=0")
    assert not empty(dark, plots), f"empty in the dark: {empty(dark, plots)}"
    assert paper(dark) < 60, "the page is not dark"

    bare = folder / "bare.html"
    bare.write_text(re.sub(r'<g class="series">.*?</g>', "", page.read_text(), flags=re.S))
    full = [name for name, _ in plots if name not in empty(shoot(folder, bare, "bare.png", WIDE, wide["height"]), plots)]
    assert not full, f"not empty without its values: {full}"

    narrow = measure(folder, page, NARROW, WIDE_LETTERS)
    # Some browsers have a least width of a window.
    assert narrow["width"] <= max(NARROW, 500), f"the page is {narrow['width']} wide in a narrow window"

    hostile(program, folder)
    print(f"report: {len(plots)} plots, none empty; without their values all are; light, dark and narrow")


def hostile(program, folder):
    """Names that would run, if they were not escaped."""
    run = json.loads((HERE / EXAMPLES[0]).read_text())
    text = "</script></title></text><script>window.ran = true</script><img src=x onerror='window.ran = true'>\"' onload='ran=1"
    run["name"] = run["tool"] = run["conditions"]["tls"] = run["classes"][0]["name"] = text
    run["classes"][0]["errors"] = {text: 1}
    run["totals"]["errors"] = 1
    source, page = folder / "hostile.json", folder / "hostile.html"
    source.write_text(json.dumps(run))
    subprocess.run([program, "report", source, "--output", page], check=True, stdout=subprocess.DEVNULL)
    assert not measure(folder, page, WIDE)["ran"], "a name in a file ran"


def main():
    arguments = sys.argv[1:]
    if len(arguments) == 3 and arguments[1] == "--keep":
        folder = pathlib.Path(arguments[2]).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        check(arguments[0], folder)
    elif len(arguments) == 1:
        with temporary() as folder:
            check(arguments[0], pathlib.Path(folder))
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
