"""Nothing leaves the page, only its own script runs in it, and names stay names."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from browser import boards
from browser.test_access import unfold
from browser.test_flows import check_fit, fill, submit
from jdpack.pages.billboard_page import public_page, script

LOOPHOLES = """async (target) => {
  const image = new Image();
  image.src = target + "image";
  document.body.append(image);
  const frame = document.createElement("iframe");
  frame.src = target + "frame";
  document.body.append(frame);
  const sheet = document.createElement("link");
  sheet.rel = "stylesheet";
  sheet.href = target + "sheet";
  document.head.append(sheet);
  const script = document.createElement("script");
  script.src = target + "script";
  document.head.append(script);
  const font = new FontFace("f", `url(${target}font)`);
  font.load().catch(() => {});
  navigator.sendBeacon(target + "beacon", "x");
  try { new WebSocket(target.replace("http", "ws") + "socket"); } catch {}
  try { new EventSource(target + "events"); } catch {}
  const asked = new XMLHttpRequest();
  asked.open("GET", target + "xhr");
  try { asked.send(); } catch {}
  document.forms[0].action = target + "form";
  HTMLFormElement.prototype.submit.call(document.forms[0]);
  try { await fetch(target + "fetch"); } catch {}
  await new Promise((done) => setTimeout(done, 300));
}"""


def everything(page):
    """Everything that a reader does."""
    fill(page, "H1", [(9.5, {"18-21 h": 11})])
    submit(page)
    page.get_by_label("What it is worth to you").fill("x")
    submit(page)
    record = b'{"id":"H9","value":12.5,"demand":{"18-21 h":3}}'
    page.set_input_files("#file", {"name": "a.json", "mimeType": "", "buffer": record})
    page.wait_for_selector("#why:visible")
    for summary in page.locator("summary:visible").all():
        summary.click()
    page.click("#clear")


def test_nothing_is_requested_after_load(browser, site):
    """From a web server, only the page itself is requested, whatever the reader does."""
    folder, address, asked = site
    (folder / "index.html").write_text(public_page(boards.charging()), encoding="utf-8")
    context = browser.new_context()
    page, seen = context.new_page(), []
    context.on("request", lambda request: seen.append(request.url))
    page.on("websocket", lambda socket: seen.append(socket.url))
    page.goto(address)
    everything(page)
    page.wait_for_timeout(300)
    assert seen == [address] and asked == ["/"]
    assert context.cookies() == []
    stored = "[localStorage.length, sessionStorage.length, location.href]"
    assert page.evaluate(stored) == [0, 0, address]
    page.evaluate("async () => { await fetch('/').catch(() => {}); }")
    context.close()


def test_nothing_is_requested_from_a_file(browser, tmp_path):
    file = tmp_path / "index.html"
    file.write_text(public_page(boards.charging()), encoding="utf-8")
    context = browser.new_context()
    context.set_offline(True)
    page, seen = context.new_page(), []
    context.on("request", lambda request: seen.append(request.url))
    page.goto(file.as_uri())
    everything(page)
    page.wait_for_timeout(300)
    assert seen == [file.as_uri()]
    context.close()


def test_the_security_policy_stops_every_way_out(browser, site):
    """Even a script forced into the page gets nothing out."""
    folder, address, asked = site
    html = public_page(boards.charging())
    (folder / "index.html").write_text(html, encoding="utf-8")
    context = browser.new_context()
    page = context.new_page()
    page.goto(address)
    page.evaluate(LOOPHOLES, f"{address}out-")
    assert [path for path in asked if "out-" in path] == []
    # The control: without the policy, the same script gets out in many ways.
    open_html = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", html)
    assert open_html != html
    (folder / "open.html").write_text(open_html, encoding="utf-8")
    page.goto(f"{address}open.html")
    page.evaluate(LOOPHOLES.replace("HTMLFormElement", "// "), f"{address}out-")
    ways = {"image", "frame", "sheet", "script", "font", "beacon", "xhr", "fetch", "events"}
    for _ in range(100):  # a busy machine is slow
        gone = {path.split("out-")[1] for path in asked if "out-" in path}
        if gone >= ways:
            break
        page.wait_for_timeout(100)
    assert gone >= ways
    context.close()


def test_an_injected_script_does_not_run(browser, tmp_path):
    html = public_page(boards.charging())
    attack = (
        "<script>window.hit = 1</script><img src=x onerror='window.hit = 2'>"
        "<svg onload='window.hit = 3'></svg><a id=go href='javascript:window.hit=4'>go</a>"
        "<style>body { display: none }</style><p style='display: none' id=styled>x</p>"
        "<base href='https://example.org/'>"
    )
    file = tmp_path / "index.html"
    file.write_text(html.replace("<main", f"{attack}<main"), encoding="utf-8")
    page, said = browser.new_page(), []
    page.on("console", lambda message: said.append(message.text))
    page.goto(file.as_uri())
    page.click("#go")
    page.evaluate("document.body.setAttribute('onclick', 'window.hit = 5'); document.body.click()")
    assert page.evaluate("window.hit") is None
    assert page.locator("h1").is_visible() and page.locator("#styled").is_visible()
    assert page.evaluate("document.baseURI") == file.as_uri()
    assert sum("Content Security Policy" in text for text in said) >= 6
    fill(page, "H1", [(9.5, {"18-21 h": 11})])
    assert submit(page).startswith("You get"), "and the page's own script still does"
    page.close()


def test_the_policy_is_strict():
    html = public_page(boards.charging())
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', html)[1]
    policy = policy.replace("&#39;", "'")
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    sha = re.compile(r"'sha256-[A-Za-z0-9+/]{43}='")
    assert rules["default-src"] == "'none'" and rules["connect-src"] == "'none'"
    assert rules["form-action"] == rules["base-uri"] == "'none'"
    assert sha.fullmatch(rules["script-src"]) and sha.fullmatch(rules["style-src"])
    assert rules["img-src"] == "data:" and len(rules) == 7
    assert "unsafe" not in policy
    names = []
    reader = HTMLParser()
    reader.handle_starttag = lambda tag, attrs: names.extend(name for name, _ in attrs)
    reader.feed(html)
    assert len(names) > 300
    assert [n for n in names if n == "style" or n.startswith("on") or n == "src"] == []
    unfinished = public_page(boards.unfinished(boards.charging(), 5))
    assert "script-src" not in unfinished and "<script" not in unfinished


HOSTILE = [
    "</script><script>window.hit = 1</script>",
    "<!--<script>",
    "\"><img src=x onerror='window.hit = 2'>",
    "{{ 7 * 7 }}${7 * 7}",
    "&lt;b&gt; & \\u003c",
    "__proto__",
    "'; alert(1); '",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_names(opened, name):
    board = boards.named(name, f"{name} a", f"{name} b")
    page = opened(board)
    assert page.title() == name and page.inner_text("h1") == name
    assert page.locator("tbody th").first.inner_text() == f"{name} a"
    assert page.evaluate("window.hit") is None
    fill(page, name, [(1, {f"{name} a": 1})])
    assert submit(page) == "You get everything you asked for."
    assert f"1 {name} b of {name} a" in page.inner_text("#why")
    assert page.evaluate("window.hit") is None
    own = [tag for tag in ("img", "b", "iframe") if page.locator(tag).count()]
    assert own == [] and page.locator("script").count() == 2


def test_a_name_without_end_hides_nothing(opened):
    name = "W" * 900
    page = opened(boards.named(name, f"{name} a", name), "phone")
    unfold(page)
    fill(page, "x", [(1, {f"{name} a": 1})])
    assert submit(page) == "You get everything you asked for."
    check_fit(page)


def test_the_script_has_no_way_out_of_its_own():
    """The script does nothing that no policy can forbid, such as opening another page."""
    ways = (
        r"\b(fetch|XMLHttpRequest|WebSocket|EventSource|sendBeacon|RTCPeerConnection|location|opener"
        r"|history|cookie|localStorage|sessionStorage|indexedDB|caches|innerHTML|outerHTML|srcdoc"
        r"|insertAdjacentHTML|eval|Function|Worker|importScripts|postMessage|href|src|action)\b"
        r"|window\.|\bopen\(|\bimport\b"
    )
    assert re.findall(ways, script()) == []
    assert re.search(ways, public_page(boards.unfinished(boards.charging(), 5), live=True))


def test_a_record_file_cannot_inject(opened):
    page = opened(boards.charging())
    for bad in HOSTILE:
        column = '"' + bad.replace('"', '""') + '"'
        text = f"id,value,{column}\nx,1,1\n".encode()
        page.set_input_files("#file", {"name": "a.csv", "mimeType": "", "buffer": text})
        page.wait_for_selector("#file-error:visible")
        assert bad in page.inner_text("#file-error")
        page.click("#clear")
    assert page.evaluate("window.hit") is None
