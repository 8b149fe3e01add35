"""The review page in a real browser, in front of real servers: no answer is ever lost.

Each test is somebody else (`by`), and most look at a label of their own: so they share a server.
"""

import contextlib
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from builders import command, environment, partly_works, write_manifest, write_pictures
from partly import answers
from partly.answers import Answer

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
CHROMIUM = CHROMIUM or shutil.which("google-chrome")
if CHROMIUM is None:
    pytest.skip("there is no Chromium here to test the review page in", allow_module_level=True)
pytest.importorskip("fastapi", reason="the review page needs partly[review]")
sync_api = pytest.importorskip("playwright.sync_api", reason="there is no playwright here")
expect = sync_api.expect

NASTY = "<img src=x onerror=alert(1)>"
LABELS = ("red", "green", "blue", "cyan", "a/b ü 50%", NASTY)
IMAGES = 24
SOON = 8000  # milliseconds; a server that is busy elsewhere takes its time
PHONE = {"viewport": {"width": 390, "height": 780}, "has_touch": True, "is_mobile": True}


class Home(NamedTuple):
    run: Path
    data: Path

    def said_by(self, who: str) -> list[Answer]:
        journal = answers.journal_of(self.data)
        return [answer for answer in answers.read(journal) if answer.by == who]


class Server(NamedTuple):
    process: "subprocess.Popen[str]"
    address: str
    output: list[str]

    @property
    def port(self) -> int:
        return int(self.address.split(":")[2].split("/")[0])


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """Pictures of which only the first two are labelled, and a run on them."""
    folder = tmp_path_factory.mktemp("home")
    labels = write_pictures(folder / "photos", IMAGES, size=24)
    labels = np.concatenate([labels, labels], axis=1)
    labels[2:] = -1
    labels[:2] = [[1, 0, 1, 0, 1, 0], [0, 1, 0, 1, 0, 1]]
    data = write_manifest(folder / "photos" / "data.csv", labels, names=LABELS)
    options = ["--backbone", "small", "--image-size", 16, "--epochs", 1, "--hold-out", 0]
    partly_works("train", data, "--out", folder / "run", *options)
    return Home(folder / "run", data)


@contextlib.contextmanager
def serving(home: Home, *options: object, port: int = 0) -> Iterator[Server]:
    """A server, killed at the end if it still runs."""
    arguments = ["review", home.run, home.data, "--no-open", "--port", port, *options]
    process = subprocess.Popen(
        command(*arguments),
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    output: list[str] = []
    try:
        for line in process.stdout:
            output.append(line)
            if line.startswith("open "):
                break
        else:
            raise AssertionError("".join(output))
        rest = threading.Thread(target=output.extend, args=(process.stdout,), daemon=True)
        rest.start()
        yield Server(process, output[-1].split()[1], output)
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def server(home: Home) -> Iterator[Server]:
    with serving(home) as server:
        yield server


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    flags = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        yield browser
        browser.close()


Open = Callable[..., Any]


@pytest.fixture
def visit(browser: Any, server: Server) -> Iterator[Open]:
    """Open the page as somebody, in a window of their own; no script may fail in it."""
    contexts, failures = [], []

    def visit(who: str, view: str = "questions", label: str = "", at: str = "", **how: Any) -> Any:
        context = browser.new_context(**how)
        context.set_default_timeout(SOON)
        context.add_init_script(f"localStorage.setItem('partly:name', '{who}')")
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: failures.append(str(error)))
        page.on("dialog", lambda dialog: failures.append(dialog.message))
        page.goto((at or server.address) + f"#/{view}/{label}".rstrip("/"))
        page.wait_for_selector("main > *")
        return page

    yield visit
    for context in contexts:
        context.close()
    assert failures == []


def saved(page: Any) -> None:
    """Wait until the page says that everything is on the disk."""
    expect(page.locator("#saved")).to_have_text("all saved", timeout=SOON)


def keys(page: Any, pressed: str) -> None:
    for key in pressed:
        page.keyboard.press(key)


def asked(page: Any) -> tuple[str, str]:
    """Which image and which label the question is about."""
    page.wait_for_selector(".panel h2")
    image, label = page.inner_text(".panel .name"), page.inner_text(".panel h2")
    return image, label.removesuffix("?")


def test_keys_answer_move_on_and_take_back(home, visit):
    page = visit("keys", label="red")
    first = asked(page)
    keys(page, "yns")
    third = asked(page)
    keys(page, "uu")
    second = asked(page)
    keys(page, "y")
    saved(page)
    said = home.said_by("keys")
    assert [answer.value for answer in said] == [1, 0, -1, None, None, 1]
    assert (said[0].image, said[0].label) == first
    assert (said[-1].image, said[-1].label) == second
    assert third != second
    expect(page.locator("#progress-text")).to_contain_text("2 of 22")

    where = page.locator(".where span")
    before = where.inner_text()
    page.keyboard.press("ArrowRight")
    expect(where).not_to_have_text(before)
    page.keyboard.press("ArrowLeft")
    expect(where).to_have_text(before)
    page.keyboard.press("z")
    expect(page.locator("#large")).to_be_visible()
    keys(page, "y")  # not while something lies on top
    page.keyboard.press("Escape")
    page.select_option("#label", label="green")
    expect(page.locator(".panel h2")).to_have_text("green?")
    assert len(home.said_by("keys")) == 6


def test_two_tabs_are_asked_different_things_and_lose_nothing(home, visit):
    one = visit("first tab", label="green")
    begun = asked(one)
    with one.expect_response(re.compile("row=")):
        pass  # it has told the server what it shows
    other = visit("second tab", label="green")
    assert asked(other) != begun
    keys(one, "y")
    other.keyboard.press("ArrowLeft")
    expect(other.locator(".said")).to_contain_text("first tab said yes")
    for _ in range(10):
        other.keyboard.press("ArrowRight")
    for _ in range(3):  # in turns, as fast as they come
        keys(other, "n")
        keys(one, "y")
    saved(one)
    saved(other)
    assert [answer.value for answer in home.said_by("first tab")] == [1] * 4
    assert [answer.value for answer in home.said_by("second tab")] == [0] * 3
    expect(one.locator("#others")).to_contain_text("second tab 3")
    for page in (one, other):
        expect(page.locator("#progress-text")).to_have_text("7 of 22")


def test_a_reload_in_the_middle_loses_neither_the_place_nor_an_answer(home, visit):
    page = visit("reload", label="blue")
    keys(page, "yy")
    saved(page)
    third = asked(page)
    page.reload()
    assert asked(page) == third
    expect(page.locator("#progress-text")).to_have_text("2 of 22")
    page.route("**/api/answers", lambda route: route.abort())  # it does not get through
    keys(page, "nu" + "n")
    expect(page.locator("#saved")).to_have_text("3 not saved yet")
    expect(page.locator("#down")).to_be_visible()
    assert len(home.said_by("reload")) == 2
    page.unroute("**/api/answers")
    page.reload()
    saved(page)
    assert [answer.value for answer in home.said_by("reload")] == [1, 1, 0, None, 0]
    keys(page, "u")  # what was given before the reload
    saved(page)
    assert home.said_by("reload")[-1].value is None
    assert asked(page) == third


def test_a_page_that_is_loaded_again_is_not_somebody_else(visit):
    page = visit("loaded again", label="cyan")
    with page.expect_response(re.compile("row=")) as told:
        pass
    row = int(re.search(r"row=(\d+)", told.value.url)[1])
    with page.expect_response(re.compile("/api/queue")) as asked_again:
        page.reload()
    assert row not in asked_again.value.json()["looked_at"]
    other = page.context.new_page()  # beside it, as a duplicate: that is another
    with other.expect_response(re.compile("/api/queue")) as asked_there:
        other.goto(page.url)
    assert row in asked_there.value.json()["looked_at"]


def test_a_new_round_does_not_look_like_a_loss(visit):
    page = visit("steady", label="a%2Fb%20%C3%BC%2050%25")
    assert asked(page)[1] == "a/b ü 50%"
    keys(page, "yn")
    saved(page)
    expect(page.locator("#mine")).to_be_hidden()  # 2 of them are done
    page.evaluate("location.hash = location.hash.replace('questions', 'gallery')")  # of open ones
    expect(page.locator("#mine")).to_have_text("2 answered")


CUT = """() => [...document.querySelectorAll("#title, #who, .figures, #saved, kbd")]
  .filter((one) => !one.closest("dialog"))
  .filter((one) => one.clientWidth && one.scrollWidth > one.clientWidth
    || one.getBoundingClientRect().right > innerWidth || !one.checkVisibility())
  .map((one) => one.id || one.tagName)"""


@pytest.mark.parametrize("width", [1271, 1280, 1440, 1920])
def test_the_header_is_whole(visit, width):
    page = visit("rosa maria", "gallery", "cyan", viewport={"width": width, "height": 720})
    page.wait_for_selector(".tiles")
    page.evaluate(SOMEBODY)
    assert page.evaluate(CUT) == []
    header = page.locator("header").bounding_box()
    assert header["height"] < 70
    assert page.evaluate("document.documentElement.scrollWidth") == width


SOMEBODY = """() => {
  document.getElementById("mine").textContent = "1,234 answered";
  document.getElementById("rate").textContent = "23 a minute";
  document.getElementById("others").textContent = "somebody 1,234, somebody else 1,234 …";
}"""


def test_a_refused_answer_is_named_and_those_behind_it_are_saved(home, visit):
    page = visit("x" * 81, label="blue")  # a name from elsewhere, longer than any that is taken
    first = asked(page)
    keys(page, "y")
    refused = page.locator("#refused")
    expect(refused).to_contain_text("One answer was refused and is not saved.")
    expect(refused).to_contain_text(f"blue, {first[0]}: by: String should have at most 80")
    expect(page.locator("#down")).to_be_hidden()
    page.get_by_role("button", name="Close").click()
    expect(refused).to_be_hidden()
    page.keyboard.press("?")
    page.fill("#name", "refused")
    page.keyboard.press("Enter")
    expect(page.locator("#who")).to_have_text("refused")
    keys(page, "n")
    saved(page)
    (said,) = home.said_by("refused")
    assert said.value == 0
    for _ in range(IMAGES):
        if asked(page) != first:
            page.keyboard.press("ArrowLeft")
    assert asked(page) == first  # and open again
    expect(page.locator(".answers .yes")).to_have_attribute("aria-pressed", "false")


def test_a_server_that_is_killed_and_comes_back_has_every_answer(home, visit):
    with serving(home) as first:
        page = visit("killed", label="cyan", at=first.address)
        keys(page, "yyy")
        saved(page)
        first.process.send_signal(signal.SIGKILL)
        first.process.wait()
        keys(page, "nn")
        expect(page.locator("#down")).to_contain_text("The server does not answer.")
        expect(page.locator("#down")).to_contain_text("2 answers are kept in this browser")
        port = first.port
    with serving(home, port=port) as second:
        saved(page)
        expect(page.locator("#down")).to_be_hidden()
        keys(page, "y")
        saved(page)
        said = home.said_by("killed")
        assert [answer.value for answer in said] == [1, 1, 1, 0, 0, 1]
        assert len({answer.image for answer in said}) == 6
        second.process.send_signal(signal.SIGINT)
        assert second.process.wait(timeout=20) == 0
        time.sleep(0.2)
    assert "3 answers given (1 yes, 2 no, 0 cannot tell)" in second.output[-1]
    assert "Traceback" not in "".join(first.output + second.output)


def test_two_servers_share_one_journal_and_the_open_one_wants_its_token(home, visit):
    with serving(home, "--host", "0.0.0.0") as open_to_all:
        printed = re.search(r"#token=(\S+)", open_to_all.address)
        assert printed is not None
        here = visit("here")
        address = f"http://127.0.0.1:{open_to_all.port}/"
        there = here.context.browser.new_context()
        there.add_init_script("localStorage.setItem('partly:name', 'there')")
        page = there.new_page()
        page.goto(address)
        page.fill("#token", "this is not the token")
        page.keyboard.press("Enter")
        expect(page.locator("#login-problem")).to_have_text("This is not the token.")
        page.goto(address + "#token=" + printed[1])
        page.reload()
        expect(page.locator("#title")).to_have_text("data.csv")
        assert "token" not in page.url
        page.select_option("#label", label=LABELS[4])
        expect(page.locator(".panel h2")).to_have_text(LABELS[4] + "?")
        here.select_option("#label", label=LABELS[4])
        expect(here.locator(".panel h2")).to_have_text(LABELS[4] + "?")
        keys(here, "y")
        expect(page.locator(".said")).to_contain_text("here said yes")
        for _ in range(5):
            page.keyboard.press("ArrowRight")
        keys(page, "n")
        keys(here, "y")
        saved(page)
        saved(here)
        there.close()
        assert [answer.value for answer in home.said_by("there")] == [0]
        assert [answer.value for answer in home.said_by("here")] == [1, 1]
        assert printed[1] not in "".join(open_to_all.output[:-1])


def test_a_token_of_any_characters_opens_the_page(home, browser):
    with serving(home, "--token", "100% of: /?#&+ ü") as server:
        page = browser.new_page()
        page.goto(server.address)
        expect(page.locator("#title")).to_have_text("data.csv")
        page.context.clear_cookies()
        page.goto("about:blank")
        page.goto(server.address.partition("#")[0] + "#token=100% of: /")
        expect(page.locator("#login-problem")).to_have_text("This is not the token.")
        page.close()


def test_an_address_that_was_cut_off_leads_to_questions(visit):
    page = visit("cut off", label="a%2Fb%20%C3%BC%2050%")  # of a%2Fb%20%C3%BC%2050%25
    assert asked(page)


def test_fingers(home, visit):
    page = visit("fingers", label="cyan", **PHONE)
    page.wait_for_selector(".answers .yes")
    box = page.locator(".answers .yes").bounding_box()
    assert box["height"] >= 44
    page.tap(".answers .yes")
    page.tap(".answers .skip")
    page.tap("#undo")
    saved(page)
    assert [answer.value for answer in home.said_by("fingers")] == [1, -1, None]
    where = page.locator(".where span")
    before = where.inner_text()
    swipe(page, -150)
    expect(where).not_to_have_text(before)
    swipe(page, 150)
    expect(where).to_have_text(before)
    wide = page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert wide, "the page is wider than the phone"


def swipe(page: Any, by: int) -> None:
    box = page.locator(".stage img").bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    session = page.context.new_cdp_session(page)
    for kind, points in (
        ("touchStart", [{"x": x, "y": y}]),
        ("touchMove", [{"x": x + by, "y": y}]),
        ("touchEnd", []),
    ):
        session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})


def test_a_gallery_is_swept_by_tap_by_key_and_all_at_once(home, visit):
    page = visit("gallery", "gallery", "%3Cimg%20src%3Dx%20onerror%3Dalert(1)%3E")
    expect(page.locator("#label option:checked")).to_have_text(NASTY)
    tiles = page.locator(".tiles > li")
    expect(tiles).to_have_count(22)
    tiles.nth(0).locator(".tile").click()
    expect(tiles.nth(0)).to_have_class(re.compile("yes answered"))
    page.keyboard.press("ArrowRight")
    keys(page, "n")
    expect(tiles.nth(1)).to_have_class(re.compile("no answered"))
    tiles.nth(0).locator(".tile").click()  # again: taken back
    expect(tiles.nth(0)).not_to_have_class(re.compile("answered"))
    page.get_by_role("group").get_by_text("no", exact=True).click()
    page.get_by_role("button", name="Say no to the 21 open ones shown").click()
    saved(page)
    values = [answer.value for answer in home.said_by("gallery")]
    assert values == [1, 0, None, *[0] * 21]
    keys(page, "u")
    saved(page)
    assert len(answers.latest(home.said_by("gallery"))) == 1
    page.get_by_label("Show").select_option("no")
    expect(tiles).to_have_count(2)  # one from the data, one from here
    assert {answer.label for answer in home.said_by("gallery")} == {NASTY}


def test_an_image_that_broke_is_a_sentence_on_the_page(home, visit):
    broken = home.data.with_name("0001.png")
    content = broken.read_bytes()
    broken.unlink()
    try:
        page = visit("broken", "gallery", "red")
        page.get_by_label("Show").select_option("all")
        expect(page.locator(".broken").first).to_contain_text("there is no such file")
    finally:
        broken.write_bytes(content)


CONTRAST = """() => {
  const numbers = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((c) => c / 255)
    .map((c) => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, place) => sum + c * [0.2126, 0.7152, 0.0722][place], 0);
  const behind = (one) => {
    for (let at = one; at; at = at.parentElement) {
      const colour = numbers(getComputedStyle(at).backgroundColor);
      if (colour.length < 4 || colour[3] > 0) return colour;
    }
    return [255, 255, 255];
  };
  const texts = [...document.querySelectorAll("body *")].filter((one) =>
    one.checkVisibility() && !one.disabled && [...one.childNodes].some((node) =>
      node.nodeType === 3 && node.data.trim()) && !one.closest(".hidden, .skip, option"));
  return texts.map((one) => {
    const [high, low] = [light(numbers(getComputedStyle(one).color)), light(behind(one))]
      .sort((a, b) => b - a);
    return [one.textContent.trim(), (high + 0.05) / (low + 0.05)];
  }).filter(([, contrast]) => contrast < 4.5);
}"""
NAMELESS = """() => [...document.querySelectorAll("button, select, input, img, a")]
  .filter((one) => one.checkVisibility() && one.getAttribute("aria-label") === null
    && !one.textContent.trim() && !one.labels?.length && one.getAttribute("alt") === null)
  .map((one) => one.outerHTML)"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_can_be_read_and_everything_has_a_name(visit, scheme):
    page = visit("reader", label="red", color_scheme=scheme, reduced_motion="reduce")
    asked(page)
    assert page.evaluate(CONTRAST) == []
    assert page.evaluate(NAMELESS) == []
    expect(page.locator("#live")).to_have_text(re.compile(r"red\? The model says \d+ %\. Image \d"))
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")  # past the header, to the question
    page.keyboard.press("?")
    expect(page.locator("#help")).to_be_visible()
    assert page.evaluate(CONTRAST) == []
    page.fill("#name", "another")
    page.keyboard.press("Enter")
    expect(page.locator("#who")).to_have_text("another")
    page.goto(page.url.replace("questions", "gallery"))
    page.wait_for_selector(".tiles")
    assert page.evaluate(CONTRAST) == []
    assert page.evaluate(NAMELESS) == []
