"""Pages on runs: valid HTML, complete without a network and of limited size."""

import base64
import hashlib
import http.client
import json
import os
import re
import shutil
import sys
import threading
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import quote

import jinja2
import numpy as np
import pytest
from PIL import Image

from blackout.cli import compare, pages, report, report_page, run_server
from blackout.cli.demo_page import DemoModel, build_page
from blackout.errors import UserError
from tests.cli.conftest import TINY


@pytest.fixture
def runs(run, tmp_path):
    """A run, and another one that says to have had another learning rate."""
    assert run("train", *TINY, "trainer.max_steps=4", f"runs_dir={tmp_path}", "run_id=a").code == 0
    shutil.copytree(tmp_path / "digits" / "a", tmp_path / "digits" / "b")
    config = tmp_path / "digits" / "b" / "config.yaml"
    config.write_text(config.read_text().replace("lr: 0.003", "lr: 0.001"))
    return tmp_path / "digits"


@pytest.mark.deep
def test_reports_of_runs_show_scores_curves_and_settings(runs, run, capsys):
    assert (
        run(
            "sample",
            f"ckpt={runs / 'a'}",
            "num_samples=6",
            "evaluate=true",
            "metrics=none",
            "trajectory=true",
        ).code
        == 0
    )
    report.main([str(runs / "a")])
    compare.main([str(runs / "a"), str(runs / "b"), "--out", str(runs / "both.html")])
    page, comparison = (
        (path.read_text()) for path in (runs / "a" / "report.html", runs / "both.html")
    )
    for words in (
        "val/bits_per_dim",
        "samples/metrics.json",
        "samples/grid.png",
        "samples/trajectory.webp",
        "samples/final/trajectory.webp",
        '"name": "train/loss"',
    ):
        assert words in page, words
    assert 'href="a/report.html"' in comparison and "finished" in page
    assert (
        f"blackout train {TINY[0]}" in page
        and "optimizer.lr" in comparison
        and "0.001" in comparison
    )
    pictures = {
        path.relative_to(runs / "a")
        for path in (runs / "a").rglob("*")
        if path.suffix in (".png", ".webp")
    }
    assert len(pictures) > 6 and not [path for path in pictures if f"{path}<" not in page]
    assert (
        page.count("<img") == len(pictures) + 1 and comparison.count("<img") == 3
    )  # one more is where large ones are shown
    for content in (page, comparison):
        assert len(content) < 5_000_000
        check_page(content)


@pytest.mark.deep
def test_the_demo_draws_fills_restores_and_names_its_requirements(runs, monkeypatch, tmp_path):
    demo = DemoModel(runs / "a")
    frames = demo.sample_frames(2, seed=1, steps=3)
    assert len(frames) == 4 and frames[-1].size == frames[0].size and demo.classes == []
    warm = demo.sample_frames(
        2, seed=1, steps=4, temperature=0.5
    )  # two steps from digits that are half on their way to black
    assert (
        len(warm) == 3 and np.asarray(warm[0]).max() > 0 == np.asarray(frames[0])[2:-2, 2:-2].min()
    )
    assert not np.array_equal(warm[0], demo.sample_frames(2, seed=2, steps=4, temperature=0.5)[0])
    hole = np.zeros((8, 8), bool)
    hole[2:5] = True
    (filled,) = {picture.size for picture in demo.fill(hole, 1, steps=2)}
    assert filled == demo.sample_frames(1, steps=2)[-1].size
    with pytest.raises(UserError, match="must leave a part"):
        demo.fill(~np.zeros((8, 8), bool))
    assert demo.supports_restarts
    inferred = np.asarray(demo.restore(0.3, 1, 2).convert("L"), int)
    assert inferred.shape[1] > 5 * inferred.shape[0] and not np.array_equal(
        inferred, demo.restore(0.9, 1, 2)
    )
    demo.export_space(tmp_path / "space")
    copied_demo = DemoModel(tmp_path / "space" / "model")
    assert np.array_equal(copied_demo.sample_frames(2, seed=1, steps=3)[-1], frames[-1])
    with pytest.raises(UserError, match="give a new folder"):
        demo.export_space(tmp_path / "space")
    with pytest.raises(UserError, match="is an address"):
        demo.export_space(Path("s3://bucket/space"))
    monkeypatch.setitem(sys.modules, "gradio", None)
    with pytest.raises(UserError, match=r"\.\[demo\]"):
        build_page(demo)


def check_page(content):
    """Check that a page is valid HTML, whose only links are to reports next to it.

    Its images have text alternatives, and its policy lets no other script run than its own.
    """
    programs = []

    class Checker(HTMLParser):
        def handle_starttag(self, tag, attributes):
            values = dict(attributes)
            assert re.fullmatch(r"(?!/)[\w./%-]+/report\.html", values.get("href", "a/report.html"))
            assert not [name for name in values if name.startswith("on") or name == "style"]
            if tag == "script" and values.get("type") != "application/json":
                programs.append(values)
            assert tag != "img" or (values["src"].startswith("data:image/") and "alt" in values)
            if tag not in ("meta", "img", "input", "br", "wbr"):
                self.open.append(tag)

        def handle_endtag(self, tag):
            assert self.open.pop() == tag

    checker = Checker()
    checker.open = []
    checker.feed(content)
    assert checker.open == [] and programs == [{}]
    digests = dict(re.findall(r"(style|script)-src 'sha256-([^']+)'", content))
    for tag in ("style", "script"):
        (inside,) = re.findall(f"<{tag}>(.*?)</{tag}>", content, re.DOTALL)
        assert base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode() == digests[tag]
    html5lib = pytest.importorskip(
        "html5lib", reason="html5lib, of the extra `test`, checks the rest"
    )
    html5lib.HTMLParser(strict=True).parse(content)


def test_only_the_list_and_the_reports_of_a_folder_are_served(tmp_path):
    outside, attack = tmp_path / "outside", "<script>alert(1)<script>"
    for run in (
        outside / "b",
        tmp_path / "runs" / "digits" / "a",
        tmp_path / "runs" / "x" / attack,
    ):
        run.mkdir(parents=True)
        (run / "config.yaml").write_text("trainer: {max_steps: 9}\n")
        (run / "metrics.csv").write_text("step,train/loss\n1,2\n7,1.5\n")
        (run / "report.html").write_text("mine" if "runs" in run.parts else "secret")
    (tmp_path / "runs" / "link").symlink_to(outside)
    (tmp_path / "runs" / "x" / attack / "report.html").unlink()
    (tmp_path / "runs" / "x" / attack / "report.html").symlink_to(outside / "b" / "report.html")
    with run_server.RunServer(tmp_path / "runs") as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()

        def get(path, host="127.0.0.1"):
            connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=9)
            connection.request("GET", path, headers={"Host": f"{host}:{server.server_port}"})
            answer = connection.getresponse()
            return answer.status, answer.read().decode(), answer.headers

        status, listed, headers = get("/")
        assert status == 200 and "digits/a" in listed and "secret" not in listed and ">7<" in listed
        assert "<script>alert" not in listed and headers["Content-Security-Policy"] == pages.POLICY
        check_page(listed.replace('href="/', 'href="'))
        assert get("/digits/a/report.html")[:2] == (200, "mine")
        refused = (
            "/digits/a/config.yaml",
            "/../outside/b/report.html",
            "/link/b/report.html",
            "/%2e%2e/outside/b/report.html",
        )
        for path in (
            *refused,
            f"/x/{quote(attack)}/report.html",
            "/digits/a",
            "/digits/a/report.html/",
        ):
            assert get(path)[0] == 404, path
        assert get("/", "evil.example")[0] == get("/", "[")[0] == 403
        server.shutdown()


def test_a_browser_shows_all_pictures_without_a_network(tmp_path):
    """The Chromium is BLACKOUT_BROWSER, or that of `playwright install chromium`."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="needs pip install playwright, and a Chromium"
    )
    Image.new("RGB", (200, 100), (0, 200, 0)).save(tmp_path / "green.png")
    green = [pages.load_picture(tmp_path / "green.png", "green", tmp_path)]
    content = {
        "head": (),
        "rows": [],
        "links": [],
        "seeds": None,
        "evidence": None,
        "num_settings": 0,
    }
    content |= {"curve_data": None, "pictures": green}
    pages.save_page("compare.html", tmp_path / "page.html", title="Page", **content)
    with playwright.sync_playwright() as started:
        program = os.environ.get("BLACKOUT_BROWSER") or started.chromium.executable_path
        if not os.path.exists(program):
            pytest.skip("no Chromium: playwright install chromium, or BLACKOUT_BROWSER=<program>")
        arguments = [
            "--no-sandbox",
            "--no-zygote",
            "--single-process",
            "--use-gl=angle",
            "--use-angle=swiftshader",
        ]
        browser = started.chromium.launch(executable_path=program, args=arguments)
        page = browser.new_page(offline=True)
        requests = []
        page.on("request", lambda request: requests.append(request.url))
        page.goto(f"file://{tmp_path / 'page.html'}")
        page.screenshot(path=tmp_path / "shot.png")
        assert (
            page.evaluate("[...document.images].map(i => i.naturalWidth)") == [200, 1]
            and page.title() == "Page"
        )
        browser.close()
    assert [url for url in requests if not url.startswith(("file://", "data:"))] == []
    colours = {
        colour: count
        for count, colour in Image.open(tmp_path / "shot.png").convert("RGB").getcolors(1 << 20)
    }
    assert colours.get((0, 200, 0), 0) >= 15_000  # nearly all pixels of the picture


def test_text_is_escaped_and_files_that_are_no_pictures_are_left_out(tmp_path):
    (tmp_path / "x.png").write_text("<script>")
    assert (
        pages.load_picture(tmp_path / "x.png", "x", tmp_path) is None
        and pages.load_picture(tmp_path / "none.png", "none", tmp_path) is None
    )
    attack = "<script>alert(1)</script>'\"{{ 7777 * 7 }}"
    run = tmp_path / attack.replace("/", "")
    (run / "samples").mkdir(parents=True)
    Image.new("RGB", (20, 10)).save(run / "samples" / f"{attack.replace('/', '')}.png")
    (run / "config.yaml").write_text(
        json.dumps({"batch_size": attack, "seed": attack, attack: {"a": attack}})
    )
    scores = {attack: 1.23456789, "kept": attack, "share_x": 1}
    report_of = {
        "values": scores,
        "references": {name: {attack: 1.0} for name in scores},
        "command": attack,
        "sampler": {attack: attack},
    }
    (run / "metrics.json").write_text(json.dumps({**report_of, "training_steps": attack}))
    (run / "metrics.csv").write_text(f"step,{attack.replace(chr(34), '')}\n1,2\n2,3\n")
    report.main([str(run)])
    compare.main([str(run), str(run), "--out", str(tmp_path / "both.html")])
    for page in ((run / "report.html").read_text(), (tmp_path / "both.html").read_text()):
        assert (
            "&lt;script&gt;" in page
            and "<script>alert" not in page
            and "54439" not in re.sub('base64,[^"]*', "", page)
        )
        assert "1.2346" in page
        check_page(page)


def test_tables_and_sections_without_content_are_left_out():
    parts = pages.PAGES.get_template("parts.html").module
    assert "<td>a.b</td><td>&lt;</td>" in parts.fields({"a": {"b": "<"}})
    assert '<td class="number">1.2346</td><td>True</td>' in parts.table([(1.23456789, True)])
    assert parts.table([]).strip() == parts.figure(None).strip() == "" == parts.fields({}).strip()
    with pytest.raises(jinja2.UndefinedError):
        pages.save_page(
            "compare.html",
            Path("nowhere.html"),
            title="a template asks for nothing that it is not given",
        )


@pytest.mark.deep
def test_a_large_picture_is_made_smaller(tmp_path):
    Image.effect_noise((2000, 2000), 80).save(tmp_path / "noise.png")
    assert (tmp_path / "noise.png").stat().st_size > 2_000_000
    assert len(pages.load_picture(tmp_path / "noise.png", "noise", tmp_path).source) < 1_000_000


def test_a_run_that_trains_has_a_page_from_its_first_row_on(tmp_path, monkeypatch):
    clock = iter((0.0, 0.1, 2.0, 50.0, 50.1, 99.0, 99.1))
    monkeypatch.setattr(report_page.time, "monotonic", lambda: next(clock))
    (tmp_path / "config.yaml").write_text("seed: 0\nbatch_size: 8\ntrainer: {max_steps: 9}\n")
    living, page = report_page.LivePage(tmp_path), tmp_path / "report.html"
    for step in (
        1,
        2,
        3,
    ):  # at 0, 2 and 50 seconds; the first one takes a tenth of a second, for twenty of them
        rows = "".join(f"{k},{1 / k}\n" for k in range(1, step + 1))
        (tmp_path / "metrics.csv").write_text(f"step,train/loss\n{rows}")
        living()
        content = page.read_text()
        assert "training</span>" in content and f"step {(1, 1, 3)[step - 1]} of 9" in content
        check_page(content)
    (tmp_path / "metrics.csv").write_text("a,b\n1,2\n")
    living._next_time = 0.0
    living()  # says nothing, and leaves the page that is there
    assert page.read_text() == content


def test_a_folder_that_is_no_run_is_refused(tmp_path, capsys):
    for program in (report, compare):
        with pytest.raises(SystemExit, match="2"):
            program.main([str(tmp_path)])
        assert "is not a run directory: it has no config.yaml" in capsys.readouterr().err
