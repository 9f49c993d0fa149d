"""Claims about the server: only this machine, only reading, only our own page."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from urllib.parse import quote

import pytest

from eagle3_assets.errors import StoreError
from eagle3_assets.exact.sample_row import SampleRow
from eagle3_assets.view.library import Library
from eagle3_assets.view.pages import QUESTIONS
from eagle3_assets.view.server import HEADERS, POLICY, STATIC, bind
from eagle3_assets_tests.view.serving import Served, served
from eagle3_assets_tests.view.small_root import EVIL_NAME


@pytest.fixture
def viewer(library: Library) -> Iterator[Served]:
    with served(library) as found:
        yield found


@pytest.mark.slow
def test_it_listens_on_loopback_alone(viewer: Served) -> None:
    others = {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)} - {"127.0.0.1"}
    for address in others:
        if address.startswith("127."):
            continue
        with pytest.raises(OSError, match=r"."), socket.create_connection((str(address), viewer.port), timeout=2):
            pass


@pytest.mark.slow
@pytest.mark.parametrize(
    "path", ["/", "/viewer.js", "/api/state", "/api/nothing", "/raw/response?key=x", "/reports/x.html", "/../etc/passwd"]
)
def test_every_answer_forbids_what_a_page_could_be_made_to_do(viewer: Served, path: str) -> None:
    headers = viewer.get(path).headers
    for name, value in HEADERS.items():
        assert headers[name.lower()] == value
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy and "unsafe-eval" not in policy
    assert not re.search(r"script-src[^;]*(unsafe|\*|https?:)", policy)


def test_the_page_s_policy_allows_no_inline_script_and_no_other_site(viewer: Served) -> None:
    assert viewer.get("/").headers["content-security-policy"] == POLICY
    assert "unsafe" not in POLICY and "http" not in POLICY and "*" not in POLICY


@pytest.mark.slow
@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8337", "127.0.0.1.evil.example", "localhost.evil.example:1", "", "[::1].x", "127.0.0.1@evil"],
)
def test_another_name_for_this_server_is_refused(viewer: Served, host: str) -> None:
    """DNS rebinding: a page of evil.example whose name now means 127.0.0.1."""
    answer = viewer.get("/api/state", host=host)
    assert answer.status in (400, 421) and b"demo" not in answer.body


@pytest.mark.slow
@pytest.mark.parametrize("host", ["localhost:{port}", "127.0.0.1:{port}", "localhost:9999", "LOCALHOST"])
def test_its_own_names_are_served_also_through_a_tunnel(viewer: Served, host: str) -> None:
    assert viewer.get("/api/state", host=host.format(port=viewer.port)).status == 200


@pytest.mark.slow
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
def test_it_takes_nothing(viewer: Served, method: str) -> None:
    answer = viewer.get("/api/state", method)
    assert answer.status == 405 and "access-control-allow-origin" not in answer.headers


@pytest.mark.slow
def test_a_page_of_another_site_may_link_here_and_may_not_read(viewer: Served) -> None:
    assert viewer.get("/api/state", sec_fetch_site="cross-site", sec_fetch_mode="cors").status == 403
    assert viewer.get("/api/state", sec_fetch_site="same-site", sec_fetch_mode="no-cors").status == 403
    assert viewer.get("/", sec_fetch_site="cross-site", sec_fetch_mode="navigate").status == 200


@pytest.mark.slow
@pytest.mark.parametrize(
    "path",
    [
        "/reports/..%2fcampaign.lock",
        "/reports/%2e%2e%2fwire_profiles.json",
        "/reports/b3.json",
        "/..%2f..%2fetc%2fpasswd",
        "/api/..%2fstate",
        "/static/x",
    ],
)
def test_no_path_leads_out_of_what_is_served(viewer: Served, path: str) -> None:
    answer = viewer.get(path)
    assert answer.status in (400, 404) and set(json.loads(answer.body)) == {"error"}


def test_a_report_is_served_with_a_policy_without_scripts(viewer: Served, library: Library) -> None:
    reports = library.catalogue().root.store.reports
    reports.mkdir(parents=True)
    (reports / "b3_magicoder.html").write_text("<!doctype html><script>1</script>")
    answer = viewer.get("/reports/b3_magicoder.html")
    assert answer.status == 200 and answer.headers["content-type"] == "text/html; charset=utf-8"
    assert (
        "script-src" not in answer.headers["content-security-policy"]
        and "default-src 'none'" in answer.headers["content-security-policy"]
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(QUESTIONS))
def test_every_question_answers_json_and_refuses_in_words(viewer: Served, rows: list[SampleRow], name: str) -> None:
    row = next(row for row in rows if row.provider == EVIL_NAME)
    key = quote(f"{row.dataset}/{row.sample_id}/{row.turn}", safe="")
    words = {
        "row": f"key={key}", "tokens": f"key={key}&start=0", "raw": f"key={key}&which=response&start=0", "neighbours": f"key={key}",
        "deciding": "provider=Joining&window=0", "compare": "left.provider=Plain&right.provider=Joining",
        "pair": "left.provider=Plain&right.provider=Joining&asked=x",
    }  # fmt: skip
    good = viewer.get(f"/api/{name}?{words.get(name, '')}")
    assert good.status == 200 and good.headers["content-type"].startswith("application/json"), good.body
    json.loads(good.body, parse_constant=lambda constant: pytest.fail(f"{constant} is no JSON"))
    bad = viewer.get(f"/api/{name}?root=nowhere&left=nowhere&key=x")
    assert bad.status == 400 and "nowhere" in json.loads(bad.body)["error"]


def test_raw_bytes_are_saved_and_never_opened(viewer: Served, rows: list[SampleRow]) -> None:
    row = next(row for row in rows if row.provider == EVIL_NAME)
    answer = viewer.get(f"/raw/response?key={quote(f'{row.dataset}/{row.sample_id}/{row.turn}', safe='')}")
    assert answer.headers["content-type"] == "application/octet-stream" and answer.headers["content-disposition"].startswith(
        "attachment; "
    )
    assert json.loads(answer.body)["provider"] == EVIL_NAME


def test_a_name_in_the_address_is_never_part_of_a_header(viewer: Served, rows: list[SampleRow]) -> None:
    answer = viewer.get("/raw/response?key=" + quote('x"\r\nSet-Cookie: a=b', safe=""))
    assert answer.status == 404 and "set-cookie" not in answer.headers


def test_a_port_in_use_is_said_in_one_line(viewer: Served) -> None:
    with pytest.raises(StoreError, match=rf"127\.0\.0\.1:{viewer.port} cannot be used .*--port 0"):
        bind(viewer.port).listen()


def test_the_page_names_no_other_place_and_the_bundle_is_small() -> None:
    page = (STATIC / "index.html").read_text()
    assert not re.search(r"(src|href)=\"(?!\./)", page) and "<script>" not in page and "style=" not in page
    assert sum(path.stat().st_size for path in STATIC.iterdir()) <= 400_000
    for path in STATIC.iterdir():
        places = set(re.findall(r"https?://[\w./-]+", path.read_text()))
        assert places <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xhtml", "http://www.w3.org/1998/Math/MathML"}, (
            path
        )
