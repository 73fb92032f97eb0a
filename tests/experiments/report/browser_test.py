"""The page in a real browser: Chromium, driven by Playwright."""

import itertools
import shutil

import pytest

from made.experiments.report.page import write

pytest.importorskip(
    "playwright", reason="The browser tests need the Python package playwright: pip install playwright."
)
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
if CHROMIUM is None:
    missing = "The browser tests need Chromium: install the system's package `chromium` (such as apt install chromium)."
    pytest.skip(missing, allow_module_level=True)

from playwright.sync_api import expect  # noqa: E402, after the sentence that says what is missing

WIDE, NARROW = {"width": 1280, "height": 900}, {"width": 375, "height": 800}
SEEN = "e => !!(e.offsetWidth || e.offsetHeight)"


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture(scope="module")
def address(lock, grid, agent, tmp_path_factory) -> str:
    return write(tmp_path_factory.mktemp("page") / "index.html", [lock, grid], [agent]).as_uri()


@pytest.fixture
def show(browser):
    """Open an address; whatever the page says to the console or asks the network for fails the test at its end."""
    opened, said, asked = [], [], []

    def go(address: str, size=WIDE, **options):
        page = browser.new_page(viewport=size, **options)
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(address)
        opened.append(page)
        return page

    yield go
    for page in opened:
        page.close()
    assert said == [] and [url for url in asked if not url.startswith(("file:", "data:"))] == []


def shown(page, what: str) -> int:
    return sum(page.eval_on_selector_all(what, f"all => all.map({SEEN})"))


def test_filters_filter_the_table_and_the_sections(show, address):
    page = show(address)
    rows, told = ".overview tbody tr", page.locator("#shown")
    assert shown(page, rows) == 4 and shown(page, "li.claim") == 4 and told.inner_text() == "4 of 4 claims shown"
    page.uncheck("[value=yes]")
    assert shown(page, rows) == 3 and shown(page, "li.claim[data-verdict=yes]") == 0
    page.select_option("#part", "4.1")
    assert shown(page, rows) == 1 and told.inner_text() == "1 of 4 claims shown"
    assert shown(page, ".experiment") == 1 and shown(page, "nav li") == 3  # the grid's only claim stands elsewhere
    page.uncheck("[value=no]")
    assert shown(page, rows) == 0 and page.locator(".nothing").is_visible()
    page.click("text=Show all")
    expect(told).to_have_text("4 of 4 claims shown")
    assert shown(page, rows) == 4 and shown(page, ".experiment") == 2


def test_the_slider_moves_the_maps_of_every_bonus(show, address):
    page = show(address)
    colors = "all => all.map(e => e.getAttribute('fill'))"
    first = page.eval_on_selector_all(".panels rect", colors)
    assert len(first) == 16 and "episodes 1 to 200" in page.inner_text(".when")
    page.focus(".at")
    page.keyboard.press("ArrowRight")
    second = page.eval_on_selector_all(".panels rect", colors)
    assert page.get_attribute(".at", "aria-valuetext") == "episodes 201 to 400" == page.inner_text(".when")
    assert first[:8] != second[:8] and first[8:] != second[8:]
    assert "201 to 400" in (page.get_attribute(".panels svg", "aria-label") or "")
    page.click(".play")
    expect(page.locator(".when")).to_have_text("episodes 401 to 600")
    expect(page.locator(".play")).to_have_text("Play")  # it stops at the end
    page.select_option(".form", "1")
    assert page.locator(".panels figure").count() == 1


def test_the_switch_moves_the_curves_and_the_legend_hides_them(show, address):
    page = show(address)
    box = page.locator(".experiment .curves")
    lines, ends = box.locator(".curve"), "all => all.map(e => +e.getAttribute('d').split(/[ML]/).at(-1).split(' ')[0])"
    by_frames, ticks = lines.evaluate_all(ends), box.locator(".tick").all_text_contents()
    assert (
        by_frames[0] == by_frames[1]
        and "300k" in ticks[-1]
        and "environment frames" in box.locator("svg").first.text_content()
    )
    box.locator("[value=seconds]").check(force=True)
    by_time = lines.evaluate_all(ends)
    assert by_time[0] < 0.3 * by_time[1] and box.locator(".tick").all_text_contents() != ticks
    box.locator(".items input").first.uncheck()
    assert lines.count() == 1
    box.locator(".task").select_option("1")
    assert lines.count() == 0 and "RND" in box.locator(".items").inner_text()


def test_a_video_plays_on_request(show, address):
    page = show(address)
    video = page.locator("#agents img[data-video]")
    still, moving = video.get_attribute("src"), video.get_attribute("data-video")
    assert still.startswith("data:image/webp") and moving.startswith("data:image/gif") and still != moving
    page.click(".video")
    assert video.get_attribute("src") == moving and page.get_attribute(".video", "aria-pressed") == "true"
    page.click(".video")
    assert video.get_attribute("src") == still


def test_a_filtered_view_has_an_address(show, address):
    page = show(address)
    page.uncheck("[value=yes]")
    page.select_option("#part", "4.1")
    assert page.url.endswith("?without=yes&section=4.1")
    again = show(page.url)
    assert shown(again, ".overview tbody tr") == 1 and not again.is_checked("[value=yes]")
    assert again.input_value("#part") == "4.1"
    again.click("text=Show all")
    expect(again.locator("#shown")).to_have_text("4 of 4 claims shown")
    assert again.url == address


def test_figures_of_lines_are_inverted_in_the_dark(show, address):
    look = "e => getComputedStyle(e).filter"
    page = show(address, color_scheme="dark")
    figure = page.locator("img.drawing").first
    assert "invert" in figure.evaluate(look)
    page.locator("[name=theme][value=light]").check(force=True)
    assert figure.evaluate(look) == "none"


def test_nothing_overflows_a_phone(show, address):
    page = show(address, NARROW)
    page.eval_on_selector_all("details", "all => all.forEach(e => { e.open = true; })")
    assert page.evaluate("document.documentElement.scrollWidth") == 375
    beyond = "e.getBoundingClientRect().right > 375.5 && !e.closest('.scroll, .unseen')"
    outside = f"all => all.filter(e => {beyond}).map(e => e.outerHTML)"
    assert page.eval_on_selector_all("body *", outside) == []
    page.wait_for_timeout(100)  # what was opened is looked at again
    scrolls = page.eval_on_selector_all(".scroll", "all => all.map(e => [e.scrollWidth > e.clientWidth, e.tabIndex])")
    assert {tuple(one) for one in scrolls} == {(True, 0), (False, -1)}


def test_the_keyboard_reaches_every_control(show, address):
    page = show(address)
    mark = (
        "() => { const e = document.activeElement; return e.className.split(' ')[0] || e.name || e.id || e.tagName; }"
    )
    reached = []
    for _ in range(90):
        page.keyboard.press("Tab")
        reached.append(page.evaluate(mark))
    wanted = {
        "skip",
        "theme",
        "verdict",
        "part",
        "play",
        "at",
        "form",
        "task",
        "curves-1-x",
        "video",
        "SUMMARY",
    }
    assert reached[0] == "skip" and wanted <= set(reached), wanted - set(reached)
    page.focus("[name=verdict]")
    page.keyboard.press("Space")
    assert not page.is_checked("[name=verdict]")


def test_every_control_and_image_has_a_name(show, address):
    page = show(address)
    nameless = (
        "all => all.filter(e => !(e.labels?.length || e.textContent.trim() || e.getAttribute('aria-label'))).length"
    )
    assert page.eval_on_selector_all("input, select, button", nameless) == 0
    assert page.eval_on_selector_all("img", "all => all.filter(e => !e.alt).length") == 0
    assert (
        page.eval_on_selector_all("svg[role=img]", "all => all.filter(e => !e.getAttribute('aria-label')).length") == 0
    )
    assert [page.locator(one).count() for one in ("header", "nav", "main", "footer", "h1")] == [1] * 5
    levels = page.eval_on_selector_all("h1, h2, h3, h4", "all => all.map(e => +e.tagName[1])")
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))


CONTRAST = """all => {
  const numbers = (text) => text.match(/[\\d.]+/g).slice(0, 3).map(Number);
  const linear = (v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  const light = (text) => numbers(text).map((v) => linear(v / 255))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = (e) => {
    while (e && /, 0\\)$/.test(getComputedStyle(e).backgroundColor)) e = e.parentElement;
    return e ? getComputedStyle(e).backgroundColor : "rgb(255, 255, 255)";
  };
  const speaks = (e) => e.offsetWidth && [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
  return all.filter(speaks).map((e) => {
    const [a, b] = [light(getComputedStyle(e).color), light(ground(e))];
    return [(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), e.outerHTML.slice(0, 80)];
  }).filter(([ratio]) => ratio < 4.5);
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_can_be_read_in_both_schemes_and_the_switch_overrides(show, address, scheme):
    page = show(address, color_scheme=scheme)
    back = "getComputedStyle(document.body).backgroundColor"
    at_first = page.evaluate(back)
    assert page.eval_on_selector_all("body *:not(script)", CONTRAST) == []
    other = {"light": "dark", "dark": "light"}[scheme]
    page.locator(f"[name=theme][value={other}]").check(force=True)
    assert page.evaluate(back) != at_first and page.eval_on_selector_all("body *:not(script)", CONTRAST) == []


def test_hostile_words_are_only_words(show, hostile, tmp_path):
    page = show(write(tmp_path / "bad.html", [hostile[0]], [hostile[1]]).as_uri())
    page.click(".play")
    assert page.evaluate("window.caught") is None and page.locator("img[onerror]").count() == 0
    assert "<script>window.caught=1</script>" in page.inner_text(".curves .items >> nth=0")


def test_without_scripts_everything_is_there_and_no_control_is_dead(browser, address):
    page = browser.new_page(java_script_enabled=False)
    page.goto(address)
    assert page.locator(".overview tbody tr").count() == 4 and not page.locator("#filters").is_visible()
    assert not page.locator(".copy").first.is_visible() and page.locator("noscript").first.is_visible()
    page.close()
