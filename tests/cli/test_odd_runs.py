"""A damaged or hostile run breaks no page, list or training, and is named as such."""

import http.client
import json
import os
import socket
import threading
import time
import warnings
from urllib.parse import quote

import pytest

from blackout.cli import report_page, run_server
from blackout.cli.comparison_page import save_comparison
from blackout.cli.report_page import LivePage, save_report
from blackout.cli.run_results import read_scores, score_cards
from blackout.cli.run_server import MAX_CONNECTIONS, RunServer, run_row
from blackout.errors import UserError

GOOD = {
    "config.yaml": "trainer: {max_steps: 9}\nseed: 0\n",
    "metrics.csv": "step,train/loss\n1,2\n7,1.5\n",
}
DEEP = 40  # levels, more than any file of a run has
CARD = {"values": {"a": 1.0, "a_error": 0.5}, "references": {"a": {"exact": 2.0, "other": 3.0}}}
SCORES = {
    "a list in place of everything": [1, 2],
    "numbers in place of parts": dict.fromkeys(
        (
            "values",
            "references",
            "comparisons",
            "condition",
            "sampler",
            "made_with",
            "data",
            "warnings",
            "seeds",
        ),
        5,
    ),
    "text in place of parts": dict.fromkeys(
        (
            "values",
            "references",
            "condition",
            "sampler",
            "made_with",
            "warnings",
            "seeds",
            "earlier",
        ),
        "abc",
    ),
    "warnings that are mappings": {"warnings": [{"a": 1}, None, "one"], "warning": ["x"]},
    "lists in place of values": {"values": {"a": [1], "b": {"c": 2}, "c": None, "d": True}},
    "references of references": {
        "values": {"a": 1.0},
        "references": {"a": {"exact": {"b": 1}, "x": [1]}, "b": 3},
    },
    "no finite number": {
        "values": {"a": float("inf"), "b": float("nan"), "a_error": float("nan")},
        "references": {"a": {"exact": float("nan"), "other": float("inf")}},
    },
    "numbers at the ends": {
        "values": {"a": 1.7e308, "b": 2**1000 - 1, "c": -(2**999)},
        "references": {"a": {"exact": -1.7e308, "other": 1.7e308}},
    },
    "comparisons of nothing": {
        "comparisons": {"a": 1, "b": {"baselines": {}}, "c": {"baselines": {"x": 2}}}
    },
    "odd records": {
        "finished": "yes",
        "training_steps": [1],
        "command": {"a": 1},
        "date": 3,
        "num_samples": "many",
    },
    "earlier results that are odd": {
        "earlier": [1, {"values": 3}, {"values": {"a": 1}, "training_steps": {"b": 1}}]
    },
    "a kernel that is a number": {"sampler": {"kernel": 5}},
    "a kernel named by a list": {"sampler": {"kernel": {"_target_": [1]}}},
    "a condition of lists": {"condition": {"class": [1, {"a": 2}]}},
}
CONFIGS = {
    "text as trainer": "trainer: abc\n",
    "a list as trainer": "trainer: [1]\n",
    "a mapping as number of steps": "trainer: {max_steps: {a: 1}}\n",
    "infinitely many steps": "trainer: {max_steps: .inf}\n",
    "dates and bytes": "trainer: {max_steps: 2020-01-01}\nx: !!binary aGVsbG8=\n",
    "nothing": "",
    "a list": "- 1\n",
    "no UTF-8": b"\xff\xfe\x00",
    "a set": "x: !!set {a, b}\n",
    "an object": "x: !!python/object:os.system [ls]\n",
    "many digits": "trainer: {max_steps: " + "9" * 400 + "}\n",
    "too large": "a: " + "b" * 4_100_000,
    "too deep": "a: " + "[" * DEEP + "]" * DEEP,
    "numbers as names": "1: 2\n",
    "an interpolation": "trainer: {max_steps: '${oc.env:HOME}'}\n",
    "control characters": 'seed: "\\x1b[2J\\x07"\n',
}
CURVES = {
    "no number": "step,a\n1,abc\n",
    "no step": "a,b\n1,2\n",
    "steps that fall": "step,a\n9,1\n1,2\n9,3\n",
    "infinity": "step,train/loss\n1,inf\n2,nan\n",
    "the ends": "step,train/loss\n1,1.7e308\n2,-1.7e308\n"
    + "".join(f"{k},{(-1) ** k}e308\n" for k in range(3, 50)),
    "names alone": "step,a\n",
    "a name of control characters": "step,\x1b[2J\n1,2\n2,3\n",
    "an underscore": "step,a\n1_000,2\n",
    "a step below 0": "step,a\n-5,2\n-4,3\n",
}


def make_run(folder, **files):
    folder.mkdir(parents=True)
    for name, content in (GOOD | files).items():
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def make_odd_runs(folder):
    """A folder of runs, nearly each of which is odd in another way."""
    for name, content in SCORES.items():
        make_run(folder / f"scores {name}", **{"metrics.json": json.dumps(content)})
    for name, content in CONFIGS.items():
        make_run(folder / f"config {name}", **{"config.yaml": content})
    for name, content in CURVES.items():
        make_run(folder / f"curves {name}", **{"metrics.csv": content})
    for number, name in enumerate(
        (b"byte \xff", b"line\nend", "half \ud800".encode("utf-8", "surrogatepass"), b"\x1b[2J")
    ):
        run = os.fsencode(folder) + b"/" + name
        os.mkdir(run)
        for file, content in GOOD.items():
            with open(run + b"/" + file.encode(), "w", encoding="utf-8") as out:
                out.write(content)
        with open(run + b"/report.html", "w", encoding="utf-8") as out:
            out.write(f"page {number}")
    looped = make_run(folder / "loops")
    for name in ("config.yaml", "metrics.json", "report.html", "samples"):
        (looped / name).unlink(missing_ok=True)
        (looped / name).symlink_to(looped / name)
    piped = make_run(folder / "pipes")
    (piped / "config.yaml").unlink()
    os.mkfifo(piped / "config.yaml")
    os.mkfifo(piped / "report.html")
    folders = make_run(folder / "folders")
    for name in ("metrics.json", "report.html", ".holder"):
        (folders / name).mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        os.chdir(folders)  # names of sockets are short
        listener.bind("final.png")
    future = make_run(folder / "future")
    os.utime(future / "metrics.csv", (2**33, 2**33))
    make_run(folder / "good", **{"metrics.json": json.dumps(CARD)})
    return folder


@pytest.fixture
def odd_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return make_odd_runs(tmp_path / "runs")


def request(server, path, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    connection.request("GET", path, headers={"Host": f"127.0.0.1:{server.server_port}", **headers})
    answer = connection.getresponse()
    return answer.status, answer.read()


@pytest.fixture
def serve():
    servers = []

    def serve(folder):
        servers.append(RunServer(folder))
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        return servers[-1]

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


def test_the_list_shows_every_run_and_names_what_cannot_be_read(odd_runs, serve, capfd):
    server = serve(odd_runs)
    status, content = request(server, "/")
    page = content.decode()
    assert status == 200 and page.count("<tr><td>") == len(run_server.find_runs(odd_runs))
    for words in (
        "scores numbers in place of parts",
        "byte \\udcff",
        "line\nend",
        "\\x1b[2J",
        ">good<",
        "is damaged",
    ):
        assert words in page, words
    assert "\x1b" not in page and "\ud800" not in page
    for number, name in enumerate((b"byte \xff", b"line\nend")):
        assert request(server, f"/{quote(name)}/report.html") == (200, f"page {number}".encode())
    for name in ("loops", "pipes", "folders", "none"):
        assert request(server, f"/{name}/report.html")[0] == 404
    assert capfd.readouterr().err == ""  # of the threads that answered


def test_foreign_pages_and_odd_addresses_get_no_answer(tmp_path, serve):
    make_run(tmp_path / "a")
    server = serve(tmp_path)
    address = f"http://127.0.0.1:{server.server_port}"
    assert request(server, "/", Origin=address)[0] == request(server, "/?x=1")[0] == 200
    for origin in ("http://evil.example", "null", f"{address}.evil.example", "http://127.0.0.1:1"):
        assert request(server, "/", Origin=origin)[0] == 403
    for path in (
        "//[",
        "/%00/report.html",
        "/%ff%fe/report.html",
        "http://[/",
        "/" + "a/" * 1000,
        "*",
    ):
        assert request(server, path)[0] == 404, path


def send_slowly(connection):
    """A byte in time, again and again."""
    for _ in range(100):
        connection.sendall(b"G")
        time.sleep(0.2)


def test_slow_and_many_connections_are_closed(tmp_path, serve, monkeypatch):
    monkeypatch.setattr(run_server._Handler, "timeout", 0.5)
    monkeypatch.setattr(run_server, "CONNECTION_SECONDS", 1.5)
    server = serve(tmp_path)
    connections = [
        socket.create_connection(("127.0.0.1", server.server_port), 30)
        for _ in range(MAX_CONNECTIONS)
    ]
    time.sleep(0.2)
    with socket.create_connection(("127.0.0.1", server.server_port), 30) as one_more:
        assert one_more.recv(1) == b""  # closed at once
    assert all(connection.recv(1) == b"" for connection in connections)  # which said nothing
    start = time.monotonic()
    with (
        socket.create_connection(("127.0.0.1", server.server_port), 30) as slow,
        pytest.raises(OSError),
    ):
        send_slowly(slow)
    assert time.monotonic() - start < 15
    assert request(server, "/")[0] == 200


def test_reports_of_odd_runs_are_pages_or_one_line(odd_runs):
    refused = []
    for run in [
        *odd_runs.iterdir(),
        *(odd_runs / os.fsdecode(name) for name in (b"byte \xff", b"\x1b[2J")),
    ]:
        kind = run.name.split()[0]
        try:
            page = save_report(run).read_bytes().decode()
        except (UserError, OSError) as error:
            refused.append((kind, "\n" in str(error)))
            continue
        assert "</html>" in page and "\x1b" not in page
    assert {kind for kind, _ in refused} <= {
        "config",
        "curves",
        "scores",
        "loops",
        "pipes",
        "folders",
    }
    assert not any(has_lines for _, has_lines in refused)


@pytest.mark.parametrize("name", SCORES)
def test_entries_of_another_type_are_left_out_of_a_page(tmp_path, name):
    run = make_run(tmp_path / "a", **{"metrics.json": json.dumps(SCORES[name])})
    if name == "a list in place of everything":
        with pytest.raises(UserError, match="not a mapping of names"):
            save_report(run)
        return
    assert "</html>" in save_report(run).read_text(encoding="utf-8")
    save_comparison([run, run], tmp_path / "both.html")
    assert run_row("a", run)["state"] in ("stopped", "finished")
    for card in score_cards(read_scores(run)["metrics.json"]):
        assert json.dumps([card["value"], card["error"], card["place"]], allow_nan=False)


def test_a_comparison_leaves_odd_runs_out_and_says_so(tmp_path):
    good = make_run(tmp_path / "good")
    odd = make_run(tmp_path / "odd", **{"config.yaml": "- 1\n"})
    with pytest.warns(UserWarning, match="left out 1 of 2 runs: .*odd.config.yaml is damaged"):
        save_comparison([odd, good], tmp_path / "a.html")
    assert "good" in (tmp_path / "a.html").read_text(encoding="utf-8")
    with pytest.raises(UserError, match=r"odd.config.yaml is damaged"):
        save_comparison([odd], tmp_path / "b.html")
    with pytest.raises(UserError, match="in the meantime"):
        save_comparison([good], tmp_path / "a.html")


@pytest.mark.parametrize(
    "error", [UserError("odd"), OSError("odd"), TypeError("odd"), RecursionError("odd")]
)
def test_a_page_that_cannot_be_written_ends_no_training(tmp_path, monkeypatch, error):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(report_page, "save_report", fail)
    page = LivePage(tmp_path)
    with pytest.warns(UserWarning, match="cannot be written: .*odd"):
        page()
    page._next_time = 0.0
    with warnings.catch_warnings(action="error"):
        page()  # says it once
    with pytest.warns(UserWarning, match=r"report\.html cannot be written"):
        page.finish()
