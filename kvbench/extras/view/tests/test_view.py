"""The live page: all samples by its filters, folders that grow, and a server that lets nobody else read."""

import gzip
import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from urllib.parse import quote, urlencode

import pytest

from kvbench.extras.view import live_folder
from kvbench.extras.view.line_index import LineIndex
from kvbench.extras.view.live_folder import PATIENCE, LiveFolder
from kvbench.extras.view.live_page import LivePage
from kvbench.extras.view.query import Query
from kvbench.extras.view.server import Access, Server
from kvbench.records import KeptSets, PromptRecord, Recorder
from kvbench.support.errors import MissingFile, UserError
from tests.browser import browser, dom_of
from tests.security.conftest import TEXT

VALUES = [1.0, 0.0, 0.5, None, "too long", *[1.0] * 45]


@pytest.fixture
def folder(tmp_path, cell):
    """Fifty samples of two policies, of which h2o answers more; two losses; prompts and kept sets."""
    rows = [
        *cell(VALUES, cell="aa", kept_fraction=0.1),
        *cell([1.0, 1.0, 0.5, 1.0, 1.0, *[1.0] * 45], "h2o", cell="bb", kept_fraction=0.1),
        *cell([0.0, 2.0], cell="cc", metric="nll", task="books", new_tokens=3, kept_fraction=0.1),
    ]
    rows = [replace(row, prediction=f"Answer {row.sample}", prompt_sha256=f"{row.sample:02}") for row in rows]
    kept = [KeptSets("aa", 1, 4, (0,), ((2,),), ((bytes([0b11000000]),),)).to_json()]
    prompt = PromptRecord("01", "the end", ("ref",), ("a", "b", " ref", "d")).to_json()
    with Recorder(tmp_path / "runs") as recorder:
        recorder.append(rows, {"kept": kept, "prompts": [prompt]})
    return tmp_path / "runs"


def read(page, /, *cells, **query):
    """(cell, sample) of the answers on one page of samples, of all cells if none is named; and all of the answer."""
    answer = page.samples(Query(cells or tuple(cell["cell"] for cell in page.cells()["cells"]), **query))
    pairs = [zip(entry["cells"], entry["answers"], strict=True) for entry in answer["entries"]]
    return [[(cell, sample["sample"]) for cell, sample in pair if sample] for pair in pairs], answer


def test_all_samples_are_there_the_worst_first_and_in_pages(folder):
    page = LivePage([str(folder)])
    shown, answer = read(page)
    assert (answer["total"], answer["wrong"], answer["pages"]) == (102, 5, 6)
    assert shown[:4] == [[("0.aa", 4)], [("0.aa", 3)], [("0.cc", 1)], [("0.cc", 0)]], "failed, no value, largest loss"
    everything = [one for number in range(1, 7) for one in read(page, page=number)[0]]
    assert len({*map(tuple, everything)}) == 102
    assert read(page, page=99)[1]["page"] == 6 and read(page, page=0)[1]["page"] == 1


CHOSEN = [
    (("0.aa", "0.bb"), {"only_wrong": True}, {"aa": {1, 2, 3, 4}, "bb": {2}}),
    (("0.bb",), {"only_wrong": True}, {"bb": {2}}),
    ((), {"text": "ANSWER 49"}, {"aa": {49}, "bb": {49}}),
    ((), {"text": "too lon"}, {"aa": {4}}),
    ((), {"text": "("}, {}),
    (("0.cc",), {}, {"cc": {0, 1}}),
    ((), {"sample": 7}, {"aa": {7}, "bb": {7}}),
    (("0.aa",), {"side_by_side": True, "only_wrong": True}, {"aa": {1, 2, 3, 4}}),
    (("0.aa", "0.bb"), {"side_by_side": True, "sample": 1}, {"aa": {1}, "bb": {1}}),
    (("0.zz", "0.cc"), {"sample": 1}, {"cc": {1}}),
    (("0.zz",), {"side_by_side": True}, {}),
]


def test_a_query_chooses_samples(folder):
    page = LivePage([str(folder)])
    for cells, query, samples in CHOSEN:
        found: dict[str, set[int]] = {}
        for name, sample in (one for entry in read(page, *cells, **query)[0] for one in entry):
            found.setdefault(name.partition(".")[2], set()).add(sample)
        assert found == samples, (cells, query)


def test_what_is_no_query_is_refused_in_a_line():
    whole = Query(("0.aa",), side_by_side=True, only_wrong=True, text="é", sample=3, page=2)
    assert Query.of(json.dumps(asdict(whole)).encode()) == whole and Query.of(b'{"cells": []}') == Query(())
    for body in (
        *(b"", b"{", b"[]", b"{}", b"\xff", b"[" * 100_000, b'{"cells": "0.aa"}', b'{"cells": [1]}'),
        *(b'{"cells": [], "page": "1"}', b'{"cells": [], "page": -1}', b'{"cells": [], "page": 1e30}'),
        *(b'{"cells": [], "sample": 1.5}', b'{"cells": [], "sample": %s}' % (b"9" * 5000), b'{"cells": [], "text": 1}'),
    ):
        with pytest.raises(UserError, match=r"^no query for samples: [^\n]+$"):
            Query.of(body)


def test_folders_are_there_and_named_once(folder):
    for sources, error in (([str(folder / "nowhere")], MissingFile), ([str(folder)] * 2, UserError)):
        with pytest.raises(error):
            LivePage(sources)


def test_two_cells_of_two_folders_stand_side_by_side(folder, tmp_path, cell):
    """One answer of the second run is another; a sample that it lacks has a blank."""
    with Recorder(tmp_path / "later") as recorder:
        rows = cell([1.0, 1.0, 0.5], cell="aa", kept_fraction=0.1)
        recorder.append([replace(row, prompt_sha256=f"{row.sample:02}") for row in rows])
    page = LivePage([str(folder), str(tmp_path / "later")])
    assert [cell["folder"] for cell in page.cells()["cells"] if cell["cell"].endswith(".aa")] == ["runs", "later"]
    shown, answer = read(page, "0.aa", "1.aa", side_by_side=True)
    assert answer["total"] == 50 and [("0.aa", 1), ("1.aa", 1)] in shown and [("0.aa", 4)] in shown
    (entry,) = (answer["entries"][[*map(len, shown)].index(2)],)
    assert entry["cells"] == ["0.aa", "1.aa"]
    assert read(page, "1.aa")[1]["total"] == 3


def test_a_sample_has_its_prompt_and_what_was_kept_of_it(folder):
    _, answer = read(LivePage([str(folder)]), "0.aa", side_by_side=True, sample=1)
    (sample,) = answer["entries"][0]["answers"]
    prompt = answer["prompts"]["01"]
    assert prompt["references"] == ["ref"] and prompt["tokens"] == ["a", "b", " ref", "d"]
    assert sample["seen"] == 4 and sample["tokens"] and sample["kept"] and sample["prediction"] == "Answer 1"


def test_rows_that_are_written_meanwhile_are_on_the_page(folder, cell, monkeypatch):
    monkeypatch.setattr(live_folder, "PATIENCE", 0)
    page = LivePage([str(folder)])
    before = page.cells()
    assert page.cells(before["live"]) is None
    rows = [replace(row, prompt_sha256="01") for row in cell([0.0] * 2, "tova", cell="dd", kept_fraction=0.1)]
    kept = KeptSets("dd", 1, 4, (0,), ((1,),), ((bytes([0b10000000]),),))
    with Recorder(folder) as recorder:
        recorder.append(rows, {"kept": [kept.to_json()]})
        after = page.cells(before["live"])
        assert len(after["cells"]) == len(before["cells"]) + 1 and after["facts"] == "4 cells, 104 rows, 1 failed"
        assert read(page, "0.dd", sample=1)[1]["entries"][0]["answers"][0]["seen"] == 4
    file = max((folder / "rows").glob("*.jsonl"))
    file.write_bytes(file.read_bytes().replace(b'"value": 0.0', b'"value": 9.0'))
    damaged = page.cells(after["live"])
    assert len(damaged["cells"]) == 3 and any("damaged" in note for note in damaged["notes"])


def test_a_folder_without_rows_yet_is_a_note(tmp_path, cell, monkeypatch):
    monkeypatch.setattr(live_folder, "PATIENCE", 0)
    (tmp_path / "runs" / "rows").mkdir(parents=True)
    page = LivePage([str(tmp_path / "runs")])
    empty = page.cells()
    assert empty["cells"] == [] and "has no rows yet" in empty["notes"][0]
    assert read(page) == ([], {"total": 0, "wrong": 0, "page": 1, "pages": 1, "entries": [], "prompts": {}})
    assert "<title>" in page.html()
    with Recorder(tmp_path / "runs") as recorder:
        recorder.append(cell([1.0]))
        assert len(page.cells(empty["live"])["cells"]) == 1


def test_a_large_folder_is_not_read_all_the_time(folder, cell):
    """Each reading takes two seconds by this clock."""
    now = [0.0]

    def clock():
        now[0] += 2.0
        return now[0]

    live = LiveFolder(str(folder), clock)
    live.refresh()
    first = live.snapshot
    with Recorder(folder) as recorder:
        recorder.append(cell([0.0], "tova", cell="dd"))
    live.refresh()
    assert live.snapshot is first
    now[0] += PATIENCE * 2.0
    live.refresh()
    assert live.snapshot.version != first.version and live.snapshot.rows.num_rows == 103


def test_lines_are_found_in_files_that_grow(tmp_path):
    def line(text):
        return PromptRecord("ab", text, ()).to_json() + "\n"

    file = tmp_path / "prompts" / "one.jsonl"
    file.parent.mkdir()
    index = LineIndex(tmp_path, PromptRecord)
    index.scan()
    file.write_text(line("x") + "not JSON\n" + line("y").replace("ab", "cd")[:-9])
    index.scan()
    assert [*index.find("ab")] == ["one"] and index.find("cd") == {}, "a torn line is none yet"
    file.write_text(line("x") + "not JSON\n" + PromptRecord("cd", "y", ()).to_json() + "\n")
    index.scan()
    assert index.find("cd")["one"].tail == "y"
    file.write_text(line("z"))
    index.scan()
    assert index.find("ab")["one"].tail == "z" and index.find("cd") == {}, "another file of that name"
    file.write_text(line("z").replace("z", "q"))
    assert index.find("ab") == {}, "its checksum is of another text"
    index = LineIndex(tmp_path, PromptRecord)
    file.write_text(PromptRecord("cd", "z", ()).to_json() + "\n" + line("z"))
    index.scan()
    file.write_text(line("z") + PromptRecord("cd", "z", ()).to_json() + "\n")
    assert index.find("ab") == {} and index.find("cd") == {}, "lines of other prompts stand at these places"
    index.scan()
    assert index.find("ab")["one"].prompt_sha256 == "ab" and index.find("cd")["one"].prompt_sha256 == "cd"


@contextmanager
def serving(*sources: object, door: Access | None = None) -> Iterator[Server]:
    told: list[str] = []
    with Server(LivePage([*map(str, sources)]), door or Access("127.0.0.1"), 0, told.append) as server:
        server.told = told  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def server(folder) -> Iterator[Server]:
    with serving(folder) as server:
        yield server


def ask(server, path="/", method="GET", body=None, **headers):
    """Status, headers and body of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
    connection.request(method, path, body, {name.replace("_", "-"): text for name, text in headers.items()})
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, dict(answer.getheaders()), body


def query(server, body=b'{"cells": ["0.aa"], "only_wrong": true}', path="/samples", **headers):
    """Status, headers and body of an answer to a query for samples."""
    return ask(server, path, "POST", body, **{"Content_Type": "application/json", **headers})


def test_every_part_of_the_page_is_served_with_strict_headers(server):
    kinds = {"/": "text/html", "/page.js": "text/javascript", "/plotly.js": "text/javascript", "/page.css": "text/css"}
    kinds |= {"/history": "text/html", "/history.js": "text/javascript", "/cells": "application/json"}
    for path, kind in {**kinds, "/samples": "application/json", "/no": "text/plain"}.items():
        status, headers, body = (query if path == "/samples" else ask)(server, path=path)
        assert status == (404 if path == "/no" else 200) and headers["Content-Type"].startswith(kind) and body
        assert headers["X-Content-Type-Options"] == "nosniff" and "Access-Control-Allow-Origin" not in headers
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'; script-src 'self';" in policy and "frame-ancestors 'none'" in policy
    _, _, html = ask(server)
    assert set(re.findall(rb'(?:src|href)="([^"]*)"', html)) == {b"page.css", b"plotly.js", b"page.js"}
    assert b"<script>" not in html, "nothing inline, which the policy forbids"


def test_what_a_reader_has_is_not_sent_again(server):
    _, headers, body = ask(server, "/plotly.js")
    status, _, nothing = ask(server, "/plotly.js", If_None_Match=headers["ETag"])
    assert (status, nothing) == (304, b"")
    _, packed_headers, packed = ask(server, "/plotly.js", Accept_Encoding="gzip")
    assert packed_headers["Content-Encoding"] == "gzip" and gzip.decompress(packed) == body
    version = json.loads(ask(server, "/cells")[2])["live"]
    assert ask(server, f"/cells?version={version}")[0] == 204
    status, headers, body = ask(server, "/page.css", "HEAD")
    assert status == 200 and int(headers["Content-Length"]) > 1000 and body == b""


def test_only_reading_is_served_and_no_address_is_a_file(server):
    for path in ("/../../etc/passwd", "/%2e%2e/etc/passwd", "/page.css/../page.py", "//etc/passwd", "/rows/", "/."):
        assert ask(server, path)[0] == 404, path
    others = ("PUT", "DELETE", "OPTIONS", "TRACE", "NONSENSE")
    for path, method in [("/", "POST"), *((path, method) for path in ("/", "/samples") for method in others)]:
        status, headers, body = ask(server, path, method)
        assert status == 405 and headers["Allow"] == "GET, HEAD" and body == b"only GET and HEAD\n"
        assert headers["Connection"] == "close"


def test_samples_are_asked_for_by_a_query_of_json(server):
    """A browser sends JSON from another site only if the answer to OPTIONS allows it."""
    status, headers, body = query(server, path="/samples?what=ever", Content_Type="application/json; charset=utf-8")
    answer = json.loads(body)
    assert (status, headers["Connection"]) == (200, "close")
    assert [entry["answers"][0]["sample"] for entry in answer["entries"]] == [4, 3, 1, 2]
    assert ask(server, "/samples")[0] == 404, "not by GET"
    for refused, said in (
        (query(server, b"{"), (400, b"no query for samples: the body: ")),
        (query(server, Content_Type="text/plain"), (415, b"a query for samples is application/json")),
        (ask(server, "/samples", "POST", b"{}"), (415, b"a query for samples is application/json")),
        (query(server, b"", Content_Length=str(2**22 + 1)), (413, b"a query has at most 4194304 bytes")),
        (query(server, b"", Content_Length="9" * 5000), (413, b"a query has at most 4194304 bytes")),
        (query(server, b"", Content_Length="-1"), (411, b"a query for samples says its length")),
        (query(server, b"", Transfer_Encoding="chunked"), (411, b"a query for samples says its length")),
        (query(server, Host="evil.example"), (421, b"this server is not known")),
    ):
        assert refused[0] == said[0] and refused[2].startswith(said[1]), said
        assert refused[1]["Connection"] == "close" and "Access-Control-Allow-Origin" not in refused[1]


def test_a_server_of_this_machine_knows_no_other_name(server):
    """A site that rebinds its name to this address is refused: its pages would be of the same origin."""
    own = ("127.0.0.1:99", "localhost", "LOCALHOST.:8", "[::1]:7", "127.0.0.2")
    others = ("evil.example", "127.0.0.1.evil.example", "10.0.0.1", "", "[", "localhost@evil.example", "2130706433")
    for host in (*own, *others):
        assert ask(server, "/cells", Host=host)[0] == (200 if host in own else 421), host


def test_what_is_no_request_and_one_without_or_with_two_hosts_is_refused(server):
    def answer(text):
        with socket.create_connection(("127.0.0.1", server.server_port), timeout=20) as connection:
            connection.sendall(text)
            return connection.makefile("rb").read()

    for hosts in (b"", b"Host: localhost\r\nHost: evil.example\r\n"):
        text = answer(b"GET /cells HTTP/1.1\r\n" + hosts + b"Connection: close\r\n\r\n")
        assert text.split()[1] == b"421"
    brackets = b"GET http://[ HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    too_long = b"GET /" + b"a" * 70000 + b" HTTP/1.1\r\n\r\n"
    for text in (brackets, b"nonsense\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", too_long):
        assert b"nosniff" in answer(text)
    assert ask(server)[0] == 200, "and the server goes on"


def test_others_need_the_token(folder):
    door = Access.of("0.0.0.0")
    assert len(door.token) >= 32 and door.token != Access.of("0.0.0.0").token
    with serving(folder, door=replace(door, host="127.0.0.1")) as server:
        for path in ("/", "/cells", "/plotly.js", "/?token=", "/?token=wrong", f"/?token={quote('é')}"):
            status, _, body = ask(server, path)
            assert status == 403 and door.token.encode() not in body
        assert ask(server, Cookie=f"{server.cookie}=wrong")[0] == query(server)[0] == 403
        assert ask(server, Cookie="\x7f;;=,")[0] == 403
        assert server.address.endswith(f"/?token={door.token}")
        words = urlencode({"wrong": "only", "token": door.token, "task": "a/b"})
        status, headers, _ = ask(server, f"/?{words}")
        assert (status, headers["Location"]) == (303, "/?wrong=only&task=a%2Fb"), "no link that is copied holds it"
        cookie, *rules = headers["Set-Cookie"].split("; ")
        assert {"HttpOnly", "SameSite=Lax"} <= {*rules}
        assert ask(server, headers["Location"], Cookie=cookie)[0] == query(server, Cookie=cookie)[0] == 200
        assert ask(server, f"//evil.example/?token={door.token}")[1]["Location"] == "/evil.example/"


def test_only_this_machine_reads_without_a_token_and_own_names_are_known():
    for host in ("127.0.0.1", "localhost", "::1"):
        assert not Access.of(host).token and Access.of(host, with_token=True).token
    for host in ("0.0.0.0", "::", "10.1.2.3", "example.org"):
        assert Access.of(host).token
    known = {"0.0.0.0": ("10.1.2.3:8421", socket.gethostname()), "node7": ("node7:1",), "::": ("[2001:db8::1]:1",)}
    assert all(Access.of(host).knows(name) for host, names in known.items() for name in names)
    assert not any(Access.of(host).knows(name) for host, name in [("0.0.0.0", "evil.example"), ("node7", "node8")])


def test_an_error_tells_readers_nothing(folder, monkeypatch):
    monkeypatch.setattr(LivePage, "samples", lambda *_: 1 / 0)
    with serving(folder) as server:
        status, _, body = query(server)
        assert status == 500 and b"division" not in body
        assert "ZeroDivisionError: division by zero" in server.told[0]


def test_the_history_of_the_folders_is_a_page(folder, tmp_path, cell):
    for name, right in (("a", 240), ("b", 60)):
        with Recorder(tmp_path / name) as recorder:
            recorder.append(cell([1.0] * right + [0.0] * (240 - right)))
    with serving(tmp_path / "a", tmp_path / "b") as server:
        _, _, html = ask(server, "/history")
        assert b"failed against run 1" in html and b"<script>" not in html and b'src="history.js"' in html
        assert b'href="history"' in ask(server)[2]


def test_the_command_serves_until_it_is_interrupted(folder):
    command = [sys.executable, "-m", "kvbench", "view", str(folder), "--port", "0", "--token"]

    def heed_interrupts():  # a shell starts what runs in its background with interrupts ignored
        signal.signal(signal.SIGINT, signal.default_int_handler)

    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=heed_interrupts) as process:
        try:
            line = process.stdout.readline()
            host, port, token = re.search(r"http://([\d.]+):(\d+)/\?token=(\S+)", line).groups()
            connection = http.client.HTTPConnection(host, int(port), timeout=20)
            connection.request("GET", f"/?token={token}")
            assert connection.getresponse().status == 303
        finally:
            process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0


@browser
def test_a_browser_reads_wrong_samples_of_hostile_texts(tmp_path, cell):
    """The address opens the page with its filters; texts of models stay texts; another page is asked for."""
    rows = cell([0.0] * 25 + [1.0] * 5, cell="aa", kept_fraction=0.1)
    with Recorder(tmp_path / "runs") as recorder:
        recorder.append([replace(row, prediction=TEXT) for row in rows])
        recorder.append(cell([0.0], "h2o", cell="bb", kept_fraction=0.1))
    with serving(tmp_path / "runs") as server:
        dom = dom_of(f"{server.address}?policy=snapkv&wrong=only&page=2", tmp_path / "profile")
    assert dom.count('class="sample"') == 5 and "25 wrong of 30 answers" in dom and "2 of 2" in dom
    assert dom.count("✗ wrong, value 0") == 5 and "&lt;script&gt;alert(1)" in dom and "<img" not in dom
    assert "1 of 2 cells" in dom and "scatterlayer" in dom and "2 cells, 31 rows" in dom
    assert re.search(r'href="\?cells=0\.aa&amp;sample=2\d"', dom), "each sample has its address"
