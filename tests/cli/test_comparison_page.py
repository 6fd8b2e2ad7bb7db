"""Tables of scores in pages: the best run, seeds, evidence, and cards with reference values."""

import json
import re

from blackout.cli import run_results
from blackout.cli.comparison_page import save_comparison
from tests.cli.test_pages import check_page


def test_the_best_run_is_nearest_to_the_target_and_seeds_share_a_row(tmp_path):
    for number, (seed, lr, score) in enumerate(
        ((1, 0.1, 3.0), (2, 0.1, 5.0), (1, 0.2, 0.5), (1, 0.2, 0.7))
    ):
        run = tmp_path / str(number)
        run.mkdir()
        logger = "{wandb: {}}" if number == 3 else "{}"
        run.joinpath("config.yaml").write_text(
            f"seed: {seed}\nlr: {lr}\nrun_id: {number}\nlogger: {logger}\n"
        )
        values, references = (
            {"fd": score, "bits": score, "odd": score},
            {"fd": {"held_out_data": 2.0, "copula": 9.0}},
        )
        content = {
            "values": values,
            "references": references,
            "metric_descriptions": {"bits": {"better": "lower"}},
        }
        run.joinpath("metrics.json").write_text(json.dumps(content))
    save_comparison([tmp_path / str(number) for number in range(4)], tmp_path / "all.html")
    rows = re.findall("<tr>(.*?)</tr>", (tmp_path / "all.html").read_text(), re.DOTALL)
    cells = [re.findall("<t[dh][^>]*>(.*?)</t[dh]>", row, re.DOTALL) for row in rows]
    marked = [re.findall('class="number best"[^>]*>([0-9.]+)', row) for row in rows]
    assert cells[0] == ["runs", "fd", "bits", "odd", "lr"] and cells[3] == [
        "run",
        "fd",
        "bits",
        "odd",
        "lr",
        "seed",
    ]
    assert cells[1][2] == "4 <small>&plusmn; 1</small>" and cells[2][0] == "2 seeds"
    assert marked == [[], [], ["0.6", "0.6"], [], ["3"], [], ["0.5"], []]


def test_evidence_has_a_row_for_every_operator(tmp_path):
    (tmp_path / "config.yaml").write_text("seed: 0\n")
    for place, operator, value in (
        ("pool", "Pool", -30.0),
        ("blur", "Blur", -31.5),
        ("blur-2", "Blur", -31.0),
    ):
        (tmp_path / place).mkdir()
        sampler = {
            "method": "SMC",
            "operator": {"name": operator, "size": 2},
            "measurement": "test:0-3",
        }
        values = {
            "log_evidence": value,
            "log_evidence_error": 0.25 if value == -30 else "<b>",
            "fd": 1.0,
        }
        (tmp_path / place / "metrics.json").write_text(
            json.dumps({"values": values, "sampler": sampler})
        )
    save_comparison([tmp_path], tmp_path / "all.html")
    page = (tmp_path / "all.html").read_text()
    check_page(page)
    table = page[page.index("<h2>Evidence</h2>") :]
    rows = [
        re.findall("<t[dh][^>]*>(.*?)</t[dh]>", row, re.DOTALL) for row in table.split("<tr>")[1:]
    ]
    assert rows[0] == ["measurement", "operator", "noise", "method", "run", "log_evidence"]
    assert [row[1] for row in rows[1:]] == ["Blur, size 2", "Blur, size 2", "Pool, size 2"]
    assert rows[3][-1] == "-30 <small>&plusmn; 0.25</small>"
    assert re.findall('best" data-value="(.*?)"', table) == ["-30"]
    assert "log_evidence" not in page[: page.index("<h2>Evidence</h2>")]


def test_a_card_is_placed_between_held_out_data_and_the_last_reference():
    references = {"held_out_data": 1.0, "worse_model": 9.0, "gaussian_copula": 5.0}
    (card,) = run_results.score_cards(
        {"values": {"distance": 3.0}, "references": {"distance": references}}
    )
    assert card["place"] == 0.5 and [value for _, value in card["references"]] == [1.0, 9.0, 5.0]


def test_a_standard_deviation_is_not_shown_as_a_standard_error():
    values = {"is": 3.7518, "is_std": 0.3812, "bits": 2.1495, "bits_error": 0.0189}
    cards = {card["name"]: card for card in run_results.score_cards({"values": values})}
    assert cards.keys() == {"is", "bits"}
    assert (cards["is"]["error"], cards["is"]["std"]) == (None, 0.38)
    assert (cards["bits"]["error"], cards["bits"]["std"]) == (0.019, None)


def test_the_digits_of_a_card_follow_its_error_and_tell_it_from_its_references():
    values = {
        "log_z": 15.52341,
        "log_z_error": 0.00213,
        "elbo": 15.51234,
        "fid": 123.456,
        "count": 12345.6,
    }
    references = {"log_z": {"exact": 15.52012}, "elbo": {"exact": 15.52012}}
    described = {"log_z": {"unit": "nats", "better": "reference"}, "fid": {"better": "lower"}}
    content = {"values": values, "references": references, "metric_descriptions": described}
    cards = {card["name"]: card for card in run_results.score_cards(content)}
    assert cards["log_z"]["value"] == 15.5234 and cards["log_z"]["references"] == [
        ("exact", 15.5201)
    ]
    assert cards["elbo"]["value"] == 15.5123 and cards["elbo"]["references"] == [("exact", 15.5201)]
    assert cards["fid"]["value"] == 123.5 and cards["count"]["value"] == 12350.0
    assert cards["log_z"]["unit"] == "nats" and cards["fid"]["better"] == "lower is better"
    assert cards["count"]["unit"] == "" == cards["count"]["better"]
