"""The training data of models of codes."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from blackout.errors import UserError
from blackout.permutations.classical import (
    Mallows,
    Mixture,
    describe_worths,
    fit_plackett_luce,
)
from blackout.permutations.coded import (
    cycles,
    mallows,
    permutations,
    plackett_luce,
    rankings,
    synthetic_rankings,
)
from blackout.permutations.coded.data import from_puzzles
from blackout.permutations.coded.report import CodeScorer, likelihood_baselines, ranking_baselines
from blackout.permutations.codes import Insertion
from blackout.permutations.datasets import items, jigsaw_digits
from blackout.permutations.distributions import PlackettLuce
from blackout.permutations.group import (
    all_permutations,
    is_permutation,
    lexicographic_rank,
    num_cycles,
)
from blackout.permutations.metrics import expected_unique, ndcg, rearrange


def test_cycles_are_split_by_a_hash():
    source = cycles(7, share=0.3)
    assert len(source.members) == 720 and bool((num_cycles(source.members) == 1).all())
    train, validation, test = (
        set(lexicographic_rank(source.batch(split, torch.arange(source.size(split)))["x"]).tolist())
        for split in ("train", "val", "test")
    )
    assert not train & test and not train & validation and not validation & test
    assert len(train | validation | test) == 720 and 0.25 < len(train) / 720 < 0.35
    assert abs(len(validation) - len(test)) <= 1
    scores = source.sample_scores({"samples": source.members})
    assert float(scores["in_train"].sum()) == len(train) and float(scores["cyclic"].mean()) == 1
    scores_of_all = source.sample_scores({"samples": all_permutations(7)})
    assert float(scores_of_all["cyclic"].sum()) == 720 and float(
        scores_of_all["in_train"].sum()
    ) == len(train)
    log_p = source.log_prob({}, all_permutations(7))
    assert float(log_p.exp().sum()) == pytest.approx(1)
    assert cycles(7, share=0.3).fingerprint("train") == source.fingerprint("train")
    assert cycles(7, share=0.3, seed=1).fingerprint("train") != source.fingerprint("train")


@pytest.mark.parametrize(
    "arguments, word",
    [
        ({"length": 1}, "length must be at least 2"),
        ({"length": 11}, "at most 10"),
        ({"share": 0.0}, "in \\(0, 1\\]"),
        ({"share": 1.5}, "in \\(0, 1\\]"),
        ({"share": math.nan}, "in \\(0, 1\\]"),
        ({"length": 4, "share": 1e-9}, "leaves none"),
        ({"length": 3, "share": 0.9}, "for validation and test"),
    ],
)
def test_invalid_cycles_are_refused(arguments, word):
    with pytest.raises(ValueError, match=word):
        cycles(**arguments)


def test_samples_of_known_distributions_match_them():
    source = mallows(5)
    batch = source.batch("train", torch.arange(4000))
    scores = source.sample_scores({"samples": batch["x"], **batch})
    assert float(scores["distance"].mean()) == pytest.approx(
        float(scores["expected_distance"].mean()), abs=0.15
    )
    single = source.batch("train", torch.tensor([17]))
    assert torch.equal(single["x"][0], batch["x"][17]) and torch.equal(
        single["condition"][0], batch["condition"][17]
    )
    log_p = source.log_prob({"condition": torch.tensor([[0.3]])}, all_permutations(5))
    assert float(log_p.exp().sum()) == pytest.approx(1)
    first_items = plackett_luce(4).batch("train", torch.arange(6000))["x"][:, 0]
    assert (first_items.bincount(minlength=4) / 6000).tolist() == pytest.approx(
        [1 / 15, 2 / 15, 4 / 15, 8 / 15], abs=0.025
    )


def test_permutations_of_the_user_are_read_or_refused(tmp_path):
    path = tmp_path / "mine.npy"
    np.save(path, all_permutations(4).numpy())
    source = permutations(path, holdout=0.25)
    sizes = {split: source.size(split) for split in ("train", "val", "test")}
    assert sizes == {"train": 16, "val": 2, "test": 6} and source.facts == {"num_items": 4}
    rows = torch.cat(
        [source.batch(split, torch.arange(size))["x"] for split, size in sizes.items()]
    )
    assert len(rows.unique(dim=0)) == 24
    without_validation = permutations(path, holdout=0.25, validation=0)
    assert without_validation.size("train") == 18 and without_validation.size("val") == 0
    for content, word in (
        (np.array([[0, 1], [1, 1]]), "row 1 is no permutation"),
        (np.zeros((3, 1), int), "at least 2"),
        (np.full((3, 4), 0.5), "integers"),
        (np.array([[0, 1]]), "at least 2 samples"),
    ):
        np.save(path, content)
        with pytest.raises(UserError, match=word):
            permutations(path)
    for name in ("not.npy", "not.csv", "not.soc"):
        with pytest.raises(UserError, match=f"{name}: no such file"):
            permutations(tmp_path / name)


@pytest.mark.parametrize("name", ["permutations", "items"])
def test_splits_of_a_file_are_kept(tmp_path, name):
    """With and without separate validation samples, of permutations and of lists."""
    x = all_permutations(4)
    parts = {"train": x[:12], "val": x[12:15], "test": x[15:]}
    path = tmp_path / "mine.npz"
    read_file = permutations if name == "permutations" else items

    def samples(source, split):
        size = source.size(split)
        batch = source.batch(split, torch.arange(200 if size is None else size))
        return batch["x"] if name == "permutations" else batch["items"].squeeze(-1).long()

    np.savez(path, **{split: part.numpy() for split, part in parts.items()})
    with pytest.raises(UserError, match=r"holdout=0\.4 is not used"):
        read_file(path, holdout=0.4)
    source = read_file(path)
    for split, part in parts.items():
        assert torch.equal(samples(source, split).unique(dim=0), part.unique(dim=0))
    np.savez(path, train=x[:12].numpy(), test=x[15:].numpy())
    source = read_file(path, validation=2)
    training, validation = (samples(source, split).unique(dim=0) for split in ("train", "val"))
    assert (
        len(training) == 10
        and len(validation) == 2
        and torch.equal(torch.cat([training, validation]).unique(dim=0), x[:12])
    )
    assert read_file(path, validation=0).size("val") == 0
    for invalid in ({"train": x}, {"train": x, "test": x[:, :3]}, {"train": x, "test": x[:0]}):
        np.savez(path, **{split: part.numpy() for split, part in invalid.items()})
        with pytest.raises(UserError, match=r"must come together|of one shape"):
            read_file(path)


def write_ratings(path, rows, header="userId,movieId,rating,timestamp"):
    """Write a table of ratings."""
    path.write_text("\n".join([header, *(",".join(map(str, row)) for row in rows)]) + "\n")
    return path


def test_rankings_sort_the_items_a_user_rated(tmp_path):
    rng = np.random.default_rng(0)
    stars = {
        (u, m): rng.integers(1, 11) / 2 for u in range(40) for m in rng.choice(12, 8, replace=False)
    }
    path = write_ratings(
        tmp_path / "ratings.csv", [(u + 5, 100 + 7 * m, r, 0) for (u, m), r in stars.items()]
    )
    source = rankings(path, length=5, min_raters=3, num_movies=10)
    assert (
        source.facts["num_tokens"] == 10
        and sum(source.size(split) for split in ("train", "val", "test")) <= 40
    )
    names = source.buffers["item_names"]
    assert bool((names[1:] > names[:-1]).all()) and set(names.tolist()) <= {
        100 + 7 * m for m in range(12)
    }
    raters = [sum(m == (name - 100) // 7 for _, m in stars) for name in names.tolist()]
    # the ten items with the most ratings
    assert min(raters) >= sorted([sum(m == i for _, m in stars) for i in range(12)])[2]
    index = torch.arange(source.size("train"))
    batch = source.batch("train", index, torch.rand(len(index)))
    ranked = batch["ratings"].gather(1, batch["x"])
    assert bool((ranked[:, 1:] <= ranked[:, :-1]).all()) and bool(is_permutation(batch["x"]).all())
    by_user = [
        {names[i].item(): r.item() for i, r in zip(*row, strict=True)}
        for row in zip(batch["items"], batch["ratings"], strict=True)
    ]
    people = [{100 + 7 * m: r for (v, m), r in stars.items() if v == u} for u in range(40)]
    assert all(
        any(rankings_of_user.items() <= person.items() for person in people)
        and len(rankings_of_user) == 5
        for rankings_of_user in by_user
    )
    next_epoch = source.batch("train", index, torch.rand(len(index)))
    assert not torch.equal(next_epoch["items"], batch["items"])  # other items of the same users
    single = source.batch("train", index[3:4], torch.tensor([0.5]))
    assert torch.equal(
        single["items"], source.batch("train", index[:6], torch.full((6,), 0.5))["items"][3:4]
    )


def test_equal_ratings_are_ordered_at_random(tmp_path):
    """If all ratings are equal, all orders are equally frequent, so no model beats uniform
    orders."""
    path = write_ratings(
        tmp_path / "ratings.csv", [(u, m, 3.0, 0) for u in range(60) for m in range(3)]
    )
    source = rankings(path, length=3)
    index = torch.arange(source.size("train")).repeat(100)
    x = source.batch(
        "train", index, torch.rand(len(index), generator=torch.Generator().manual_seed(0))
    )["x"]
    counts = torch.bincount(lexicographic_rank(x), minlength=6)
    expected = len(x) / 6
    # chi-square with 5 degrees of freedom, p = 0.001
    assert float(((counts - expected) ** 2 / expected).sum()) < 20.5


@pytest.mark.parametrize(
    "rows, header, arguments, word",
    [
        ([(1, 2, 3.0)], "user,movieId,rating", {}, "userId is missing"),
        ([(1, 2, "nan")], "userId,movieId,rating", {}, "NaN"),
        ([(1, 2, "good")], "userId,movieId,rating", {}, "good"),
        ([(1, 2, 99.0)], "userId,movieId,rating", {}, "from 0 to 30"),
        ([(1, m, 3.0) for m in range(9)], "userId,movieId,rating", {}, "1 users rated 5 or more"),
        (
            [(1, m, 3.0) for m in range(9)],
            "userId,movieId,rating",
            {"min_raters": 2},
            "0 items have 2 raters",
        ),
        (
            [(u, m % 7, 3.0) for m in range(9) for u in (4, 5)],
            "userId,movieId,rating",
            {},
            "user 4 rates item 0 more than",
        ),
    ],
)
def test_invalid_ratings_are_refused(tmp_path, rows, header, arguments, word):
    path = write_ratings(tmp_path / "ratings.csv", rows, header)
    with pytest.raises(UserError, match=word):
        rankings(path, **{"length": 5, "min_raters": 1, **arguments})


def test_votes_in_preflib_format_are_read(tmp_path):
    """Ties and missing items are in random order, new in every epoch; votes are counted."""
    path = tmp_path / "votes.toi"
    names = "".join(
        f"# ALTERNATIVE NAME {i}: {name}\n"
        for i, name in enumerate(("Ann", "Bob", "Cem", "Dora"), 1)
    )
    path.write_text(
        f"# FILE NAME: votes.toi\n# NUMBER ALTERNATIVES: 4\n{names}300: 1,{{2,3}},4\n200: 4,2\n"
    )
    source = permutations(path)
    assert source.labels == ("Ann", "Bob", "Cem", "Dora") and source.size("train") == 400
    index = torch.arange(400)
    x = torch.cat([source.batch("train", index, torch.full((400,), u))["x"] for u in (0.1, 0.6)])
    counts = {
        tuple(row): number
        for row, number in zip(
            *(t.tolist() for t in x.unique(dim=0, return_counts=True)), strict=True
        )
    }
    assert set(counts) == {(0, 1, 2, 3), (0, 2, 1, 3), (3, 1, 0, 2), (3, 1, 2, 0)}
    assert all(number > 130 for number in counts.values()) and (x[:400] != x[400:]).any()
    path = tmp_path / "votes.soc"
    names = "".join(f"# ALTERNATIVE NAME {i}: {i}\n" for i in (1, 2, 3))
    # alternatives are identified by their numbers
    path.write_text("".join(reversed(names.splitlines(True))) + "10: 2,1,3\n2: 3,2,1\n")
    complete_orders = permutations(path, holdout=0.5, validation=0)
    assert complete_orders.labels == ("1", "2", "3")
    assert torch.equal(
        complete_orders.batch("train", torch.arange(6))["x"].unique(dim=0),
        torch.tensor([[1, 0, 2], [2, 1, 0]]),
    )
    for text, word in (
        (f"{names}9: 1,2,4\n", "line 4: a vote must be"),
        (names, "3 alternatives and 0 votes"),
        (f"{names}9: 1,1\n", "at most once"),
        ("3\n1,a\n9,1,2\n", "0 alternatives"),
        ("", "not a file of PrefLib"),
        (f"{names}999999999: 1,2\n", "places of all votes"),
        (names.replace("3:", "4:") + "9: 1,2\n", "numbered 1, 2, "),
    ):
        path.write_text(text)
        with pytest.raises(UserError, match=word):
            permutations(path)


def test_a_table_of_names_is_read_as_votes(tmp_path):
    """Every line is an order, best first; items are sorted alphabetically."""
    path = tmp_path / "votes.csv"
    path.write_text("pear, fig,kiwi\n" * 9 + "fig,kiwi,pear\n" * 9 + "\n")
    source = permutations(path)
    assert source.labels == ("fig", "kiwi", "pear")
    orders = source.batch("train", torch.arange(source.size("train")))["x"].unique(dim=0)
    assert torch.equal(orders, torch.tensor([[0, 1, 2], [2, 0, 1]]))
    for text, word in (
        ("a,b,c\na,b\n", "line 2: must list each name of the first line"),
        ("a,a\n", "line 1"),
        ("a,b\n1,2\n", "line 2"),
        ("", "two names"),
        ("a\n", "two names"),
        ("a,b,\nb,a,\n", "line 1"),
    ):
        path.write_text(text)
        with pytest.raises(UserError, match=word):
            permutations(path)


def test_a_possible_length_is_chosen_for_ratings_with_gaps(tmp_path):
    rows = [
        (user, item, 1.0 + (user * item) % 3)
        for user in range(40)
        for item in range(8)
        if (user + item) % 4
    ]
    path = write_ratings(tmp_path / "gaps.csv", rows)
    source = rankings(path)  # every user rated six of the eight items, with ties
    assert source.length == 6 and source.num_tokens == 8
    with pytest.raises(UserError, match=r"0 users rated 8 or more.*dataset.length=6 leaves 40"):
        rankings(path, length=8)
    with pytest.raises(UserError, match=r"dataset.min_raters=30 leaves 2"):
        rankings(path, min_raters=1000)


def test_ndcg_matches_a_calculation_by_hand():
    ratings = torch.tensor([[1.0, 3.0, 2.0]])
    gains = [2**r - 1 for r in (3.0, 1.0, 2.0)]
    gain = gains[0] + gains[1] / math.log2(3)
    best_gain = gains[0] + gains[2] / math.log2(3)
    assert float(ndcg(torch.tensor([[1, 0, 2]]), ratings, 2)) == pytest.approx(gain / best_gain)
    assert float(ndcg(torch.tensor([[1, 2, 0]]), ratings, 3)) == pytest.approx(1)
    assert float(ndcg(torch.tensor([[1, 2, 0]]), torch.zeros(1, 3), 1)) == 1


def test_fits_are_described_by_the_names_of_the_items():
    worths = describe_worths(PlackettLuce(torch.tensor([0.0, math.log(3.0)])), ["ann", "bob"])
    assert worths == {"worths": {"bob": pytest.approx(0.75), "ann": pytest.approx(0.25)}}
    assert list(worths["worths"]) == ["bob", "ann"]
    centre = Mallows(2, 0.5, torch.tensor([1, 0]))
    assert centre.describe(["ann", "bob"]) == {"phi": 0.5, "centre": ["bob", "ann"]}
    mixture = Mixture(torch.tensor([0.25, 0.75], dtype=torch.float64), [centre, Mallows(2, 0.1)])
    components = mixture.describe(["ann", "bob"])["components"]
    assert [component["weight"] for component in components] == [0.75, 0.25]
    assert [component["centre"][0] for component in components] == ["ann", "bob"]


def test_baselines_state_their_fitted_parameters(tmp_path):
    np.save(tmp_path / "votes.npy", np.array([[1, 0, 2]] * 30 + [[1, 2, 0]] * 10))
    source = replace(permutations(tmp_path / "votes.npy"), labels=("ann", "bob", "eve"))
    fitted = likelihood_baselines(source, 4)
    assert next(iter(fitted["plackett_luce"].parameters["worths"])) == "bob"
    assert fitted["mallows"].parameters["centre"] == ["bob", "ann", "eve"]
    assert fitted["uniform"].parameters == {}


@pytest.mark.deep
def test_baselines_beat_uniform_orders_on_their_training_distribution():
    source = synthetic_rankings(length=6, num_movies=20, users=500)
    without_given = ranking_baselines(source, 0, 100)
    with_four_given = ranking_baselines(source, 4, 100)
    assert (
        without_given["plackett_luce"]["ndcg_at_5"]
        > without_given["uniform_insertion"]["ndcg_at_5"] + 0.02
    )
    assert (
        with_four_given["uniform_insertion"]["ndcg_at_5"]
        > without_given["uniform_insertion"]["ndcg_at_5"] + 0.02
    )
    assert ranking_baselines(source, 6, 100)["uniform_insertion"]["ndcg_at_1"] == pytest.approx(1)
    known_distribution = plackett_luce(5)
    scores = fit_plackett_luce(
        known_distribution.batch("train", torch.arange(5000))["x"], prior=0.0
    )
    assert (scores - scores[0]).tolist() == pytest.approx(
        [k * math.log(2) for k in range(5)], abs=0.12
    )
    # rankings are treated as orders of their items, also if these are not all items
    fitted = likelihood_baselines(source, 100)
    bits = {name: float(baseline.values.mean()) for name, baseline in fitted.items()}
    assert bits["plackett_luce"] < bits["uniform"] - 0.5 and "mallows" not in bits
    known_distribution = replace(known_distribution, train_size=1000)
    fitted = likelihood_baselines(known_distribution, 500)
    bits = {name: float(baseline.values.mean()) for name, baseline in fitted.items()}
    assert (
        bits["plackett_luce"]
        < bits["repeated_insertion"]
        < bits["uniform"]
        == pytest.approx(math.log2(120))
    )
    unvalidated = likelihood_baselines(replace(known_distribution, validation=None), 9)
    assert "mallows_mixture" not in unvalidated and unvalidated["uniform"].validation is None
    assert all(
        len(baseline.values) == 500 and abs(baseline.validation - bits[name]) < 0.5
        for name, baseline in fitted.items()
    )


def test_puzzles_become_permutations_that_solve_them():
    puzzles = jigsaw_digits(2, held_out=12)
    source = from_puzzles(puzzles)
    batch = source.batch("train", torch.arange(8))
    puzzle_batch = puzzles.batch("train", torch.arange(8))
    assert torch.equal(rearrange(batch["items"], batch["x"]), puzzle_batch["items"])
    test = source.batch("test", torch.arange(12))
    scores = source.sample_scores({"samples": test["x"], "target": test["x"], **test})
    assert float(scores["accuracy"].mean()) == 1
    assert source.facts["item_shape"] == [1, 4, 4] and source.size("train") is None


def test_scores_count_unique_valid_and_cyclic_samples():
    source = cycles(5, share=0.5)
    scores = CodeScorer().begin(source, 4)
    x = torch.cat([source.members[:1], source.members[:2], torch.tensor([[0, 0, 1, 2, 3]])])
    scores.update({"samples": x[2:]}, torch.tensor([2, 3]))
    scores.update({"samples": x[:2]}, torch.tensor([0, 1]))
    values = scores.compute()
    assert values["unique"] == 0.75 and values["valid"] == 0.75 and values["cyclic"] == 0.75
    assert values["unique_of_perfect"] == pytest.approx(expected_unique(24, 4))
    assert expected_unique(362_880, 10_000) == pytest.approx(0.98635, abs=1e-5)
    assert expected_unique(1, 10) == 0.1
    without_validation = replace(source, validation=None)
    with pytest.raises(UserError, match="no val data to compare samples with"):
        CodeScorer().begin(without_validation, 4, split="val")
    held_out_values = CodeScorer().held_out(source, 1000)["values"]
    assert held_out_values["cyclic"] == 1 and held_out_values["in_train"] == 0
    assert bool((Insertion.encode(source.members) >= 0).all())
