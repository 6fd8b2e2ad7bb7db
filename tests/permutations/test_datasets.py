"""Puzzles are functions of (seed, split, index) with correct solutions and known ties."""

import itertools

import numpy as np
import pytest
import torch

from blackout.config.descriptions import fill_statistics
from blackout.config.instantiate import instantiate
from blackout.data import digits
from blackout.errors import UserError
from blackout.permutations import inverse
from blackout.permutations.datasets import (
    items,
    jigsaw_digits,
    one_permutation,
    read_puzzles,
    sort_digits,
    tsp,
)
from blackout.permutations.datasets.puzzles import first_equal
from blackout.permutations.datasets.tours import read_tours
from blackout.permutations.group import is_permutation
from blackout.permutations.metrics import (
    ndcg_scores,
    order_scores,
    puzzle_scores,
    rearrange,
    score_ceilings,
    tour_length,
)
from blackout.permutations.plots import (
    draw_lists,
    draw_samples,
    precedence_figure,
    precedence_shares,
)
from blackout.permutations.tours import (
    counter_clockwise,
    gaps_without_learning,
    held_karp,
    integer_programme,
    polar_tours,
    shortest_tours,
    two_opt,
)

SOURCES = {
    "jigsaw": lambda: jigsaw_digits(held_out=20),
    "sort": lambda: sort_digits(length=6, held_out=20),
    "token": lambda: one_permutation(7, held_out=20),
    "tour": lambda: tsp(6, held_out=20),
}


@pytest.fixture(params=SOURCES)
def source(request):
    return SOURCES[request.param]()


def test_a_puzzle_depends_on_split_and_index_only(source):
    for split in ("train", "val", "test"):
        batch = source.batch(split, torch.arange(20))
        rows = source.batch(split, torch.tensor([13, 4]))
        assert all(torch.equal(values[[13, 4]], rows[name]) for name, values in batch.items())
        assert is_permutation(batch["given"]).all()
    assert source.size("train") is None and source.size("val") == source.size("test") == 20
    hashes = [source.fingerprint(split) for split in ("train", "val", "test")]
    assert len(set(hashes)) == 3 and source.fingerprint("train") == hashes[0]


def test_splits_share_no_puzzles(source):
    """No order of items is in two splits, and no list either.

    The list of `one_permutation`, which is to be memorised, is the same everywhere.
    """
    batches = [source.batch(split, torch.arange(20)) for split in ("train", "val", "test")]
    for first, second in itertools.combinations(batches, 2):
        assert not torch.equal(first["given"], second["given"])
        if source.kind != "tokens":
            equal_lists = (
                first["items"].flatten(1).unsqueeze(1) == second["items"].flatten(1)
            ).all(-1)
            assert not equal_lists.any()


def test_puzzles_use_the_images_of_their_split():
    images = digits(0.2)
    jigsaws = jigsaw_digits(pieces=2, held_out=10)
    for split in ("val", "test"):
        cut = jigsaws.batch(split, torch.arange(10))["items"]
        full = images.batch(split, torch.arange(10))["x0"].float() / 16
        assert torch.equal(cut[:, 0, 0], full[:, 0, :4, :4])


def test_every_list_of_a_file_is_in_one_split(tmp_path):
    np.savez(tmp_path / "lists.npz", items=np.arange(60).reshape(20, 3))
    source = items(tmp_path / "lists.npz", holdout=0.2, validation=0.1)
    sets = {
        split: set(source.batch(split, torch.arange(number))["items"].flatten().tolist())
        for split, number in (("train", 400), ("val", 2), ("test", 4))
    }
    assert sorted(map(len, sets.values())) == [6, 12, 42] and len(set.union(*sets.values())) == 60
    assert items(tmp_path / "lists.npz", validation=0).size("val") == 0


def test_true_solutions_score_perfectly_and_encoders_accept_the_items(source):
    batch = source.batch("test", torch.arange(20))
    shuffled_items = rearrange(batch["items"], batch["given"])
    truth = inverse(batch["given"])
    scores = puzzle_scores(source.kind, shuffled_items, truth, truth, batch["ties"])
    assert all(
        (scores[name] == 1).all()
        for name in ("accuracy", "correct", "kendall_ranks", "kendall_lists")
    )
    features = instantiate(
        fill_statistics(source.facts["encoder"], source.facts, "encoder"), "encoder"
    )(batch["items"])
    assert features.shape == (20, source.num_items, 96)
    figure_data = {"samples": truth, "items": shuffled_items, "truth": truth, "ties": batch["ties"]}
    assert draw_samples(figure_data, {"kind": source.kind}) is not None
    assert draw_lists(source.kind, shuffled_items) is not None


def test_jigsaws_are_cropped_and_cut_row_by_row():
    source = jigsaw_digits(pieces=3)
    images = source._images.test[:4].float() / 16
    cut = source.batch("test", torch.arange(4))["items"]
    assert cut.shape == (4, 9, 1, 2, 2)
    assert torch.equal(cut[:, 5, 0], images[:, 0, 2:4, 4:6])


@pytest.mark.parametrize("shape", [(3, 1), (4, 30), (2, 12, 1, 2)])
@pytest.mark.parametrize("dtype", [torch.int64, torch.float32])
def test_the_first_equal_entry_is_the_first_of_all_comparisons(shape, dtype):
    x = torch.randint(0, 3, shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    expected = [
        [next(k for k in range(len(row)) if torch.equal(row[k], entry)) for entry in row]
        for row in x
    ]
    assert first_equal(x).tolist() == expected


def test_sorted_numbers_rise_and_their_ties_are_known():
    batch = sort_digits(length=30, digits=1, held_out=3).batch("test", torch.arange(3))
    values = batch["values"]
    assert (values[:, 1:] >= values[:, :-1]).all()
    assert torch.equal(values.gather(1, batch["ties"]), values)
    assert (
        (batch["ties"][:, 1:] == batch["ties"][:, :-1]) == (values[:, 1:] == values[:, :-1])
    ).all()


def test_ceilings_are_the_mean_over_all_tie_breaks():
    ties = torch.tensor([[0, 1, 1, 3, 3, 3]])
    tie_break_scores = [
        order_scores(torch.tensor([[0, *a, *b]]), torch.arange(6)[None])
        for a in itertools.permutations((1, 2))
        for b in itertools.permutations((3, 4, 5))
    ]
    for name in ("accuracy", "correct"):
        mean = sum(float(score[name]) for score in tie_break_scores) / len(tie_break_scores)
        assert float(score_ceilings(ties)[f"{name}_ceiling"]) == pytest.approx(mean)
    swapped = order_scores(torch.tensor([[0, 2, 1, 3, 4, 5]]), torch.arange(6)[None], ties)
    assert swapped["accuracy"] == 0 and swapped["accuracy_up_to_ties"] == 1


def test_swapping_neighbours_costs_little_in_ranks_and_much_in_lists():
    truth = torch.randperm(52, generator=torch.Generator().manual_seed(0))[None]
    solution = truth.clone()
    solution[:, [20, 21]] = truth[:, [21, 20]]
    scores = order_scores(solution, truth)
    assert float(scores["kendall_ranks"]) == pytest.approx(1 - 2 / 1326)
    assert float(scores["kendall_lists"]) < float(scores["kendall_ranks"])


def test_lists_of_an_svmlight_file_are_sorted_by_relevance(tmp_path):
    """Lists of any length: numbers are standardised over the file, and padding comes last."""
    rng = np.random.default_rng(0)
    lines = []
    sizes = [1, 4, 7, 2, 5, 3]
    for query, size in enumerate(sizes):
        for level in rng.integers(0, 3, size):
            lines.append(f"{level} qid:{query} 1:{level} 2:{rng.normal():.4f} 4:1 # document")
    rng.shuffle(lines)  # the lines of a list need not be adjacent
    (file := tmp_path / "lists.svm").write_text("\n".join(lines))
    source = items(file, holdout=0.5)
    assert (source.num_items, source.item_shape, source.held_out) == (7, (5,), 3)
    batches = [source.batch(split, torch.arange(3)) for split in ("train", "test")]
    values = {
        name: torch.cat([batch[name] for batch in batches])
        for name in ("items", "relevance", "ties")
    }
    is_item = values["items"][..., 4] == 1
    lengths = values["items"][..., 4].sum(1)
    # every held-out list occurs once
    assert sorted(lengths[3:].tolist()) == sorted(set(lengths[3:].tolist()))
    assert (values["items"][~is_item] == 0).all() and (is_item[:, 1:] <= is_item[:, :-1]).all()
    assert ((values["relevance"].diff(dim=1) <= 0) & (values["items"][..., 0].diff(dim=1) <= 1e-6))[
        is_item[:, 1:]
    ].all()
    assert torch.equal(values["relevance"].gather(1, values["ties"]), values["relevance"])
    batch_items = source.batch("train", torch.arange(200))["items"]
    lists_of_training = batch_items.flatten(1).unique(dim=0).view(-1, 7, 5)
    assert len(lists_of_training) < 200 and source.size("val") == 1
    unique_items = lists_of_training[lists_of_training[..., 4] == 1].unique(dim=0)
    # standardised by the training items
    assert torch.allclose(unique_items.mean(0), torch.tensor([0.0, 0.0, 0.0, 0.0, 1.0]), atol=1e-5)
    puzzles = read_puzzles(file, source)
    ranked = rearrange(puzzles["relevance"], puzzles["truth"])
    assert len(ranked) == len(sizes) and (ranked.diff(dim=1) <= 0).all()
    assert all(
        (unique_items == 1).all()
        for unique_items in ndcg_scores(puzzles["truth"], puzzles["relevance"]).values()
    )


@pytest.mark.parametrize(
    "line",
    [
        "1 1:2",
        "0.5 qid:1 1:2",
        "-1 qid:1 1:2",
        "40 qid:1 1:2",
        "nonsense",
        "1 qid:1 1:nan",
        "1 qid:1 999999999:1",
    ],
)
def test_invalid_svmlight_files_are_refused(tmp_path, line):
    (file := tmp_path / "lists.svm").write_text(f"{line}\n{line}\n")
    with pytest.raises(UserError, match=r"lists\.svm"):
        items(file)


def test_exact_solvers_find_the_shortest_tours():
    points = torch.rand(12, 7, 2, generator=torch.Generator().manual_seed(1))
    distances = torch.cdist(points.double(), points.double()).numpy()
    all_tours = torch.tensor([(0, *rest) for rest in itertools.permutations(range(1, 7))])
    best = torch.stack([tour_length(points[i][all_tours]).min() for i in range(12)])
    programme = torch.from_numpy(np.stack([integer_programme(matrix) for matrix in distances]))
    for tours in (shortest_tours(points), torch.from_numpy(held_karp(distances)), programme):
        torch.testing.assert_close(tour_length(rearrange(points, tours)), best)
    optimal = shortest_tours(points)
    assert torch.equal(
        counter_clockwise(points, torch.cat([optimal[:, :1], optimal[:, 1:].flip(1)], 1)), optimal
    )


def test_tour_baselines_have_their_known_gaps():
    points = tsp(10, held_out=300).batch("test", torch.arange(300))["items"]
    polar = polar_tours(points)
    improved = two_opt(points, polar)
    assert is_permutation(improved).all() and (improved[:, 0] == 0).all()
    # the result does not depend on the unit, and moves never cycle
    assert torch.equal(two_opt(1024 * points, polar), improved)
    assert (
        tour_length(rearrange(points, improved)) <= tour_length(rearrange(points, polar)) + 1e-6
    ).all()
    gaps = {name: float(values.mean()) for name, values in gaps_without_learning(points).items()}
    assert gaps["gap_of_polar_tour"] == pytest.approx(0.0355, abs=0.006)
    assert 0 <= gaps["gap_of_polar_tour_with_two_opt"] < 0.006
    square = torch.tensor([[[0.0, 0.0], [1.0, 1.0], [1.0, 0.0], [0.0, 1.0]]])
    assert float(
        tour_length(rearrange(square, two_opt(square, torch.arange(4)[None])))
    ) == pytest.approx(4)


@pytest.mark.parametrize("cities", [6, 14])
def test_tours_run_counter_clockwise_from_any_city(cities):
    items_in_order = tsp(cities, instances=3, held_out=4).batch("train", torch.arange(6))["items"]
    x, y = items_in_order.unbind(-1)
    assert ((x * y.roll(-1, 1) - x.roll(-1, 1) * y).sum(1) > 0).all()
    if cities == 6:
        solved = rearrange(items_in_order, shortest_tours(items_in_order))
        torch.testing.assert_close(tour_length(solved), tour_length(items_in_order))


def test_tours_are_read_from_a_file(tmp_path):
    points = torch.rand(10, 5, 2, generator=torch.Generator().manual_seed(2))
    tours = shortest_tours(points)
    lines = [
        " ".join(f"{x!r} {y!r}" for x, y in cities)
        + " output "
        + " ".join(str(k + 1) for k in [*tour, 0])
        for cities, tour in zip(points.tolist(), tours.tolist(), strict=True)
    ]
    (tmp_path / "tours.txt").write_text("\n".join(lines))
    data = read_tours(tmp_path / "tours.txt")
    assert torch.equal(data[0], points) and torch.equal(data[1], tours)
    source = tsp(path=tmp_path / "tours.txt")
    assert source.num_items == 5 and source.batch("train", torch.arange(9))["items"].shape == (
        9,
        5,
        2,
    )
    for line, word in (
        ("0 0 1 1 1 0 output 1 2 2 1", "once"),
        ("0 0 1 1 output 1 2 1", "three"),
        ("0 0 1 x 1 0 output 1 2 3 1", "line 2"),
        ("0 0 1 1 1 0", "output"),
    ):
        (tmp_path / "bad.txt").write_text(f"0 0 1 1 1 0 output 1 2 3 1\n{line}\n")
        with pytest.raises(UserError, match=word):
            tsp(path=tmp_path / "bad.txt")
    with pytest.raises(UserError, match=r"not\.txt: no such file"):
        tsp(path=tmp_path / "not.txt")


def test_items_and_puzzles_of_the_user_are_read(tmp_path):
    values = np.random.default_rng(0).normal(size=(20, 5, 3))
    np.savez(tmp_path / "mine.npz", items=values)
    source = items(tmp_path / "mine.npz")
    assert source.kind == "items" and source.num_items == 5 and source.size("test") == 2
    digits = jigsaw_digits()
    counts = np.random.default_rng(0).integers(0, 17, size=(3, 4, 4, 4))
    np.savez(tmp_path / "cut.npz", items=counts)
    puzzles = read_puzzles(tmp_path / "cut.npz", digits)["items"]
    np.testing.assert_allclose(puzzles.numpy(), counts[:, :, None] / 16)
    for invalid, word in (
        (counts[:, :3], "must be"),
        (counts * 100, "reach"),
        (np.full((1, 4, 4, 4), np.nan), "finite"),
    ):
        np.savez(tmp_path / "bad.npz", items=invalid)
        with pytest.raises(UserError, match=word):
            read_puzzles(tmp_path / "bad.npz", digits)


@pytest.mark.parametrize(
    "make_dataset",
    [
        lambda: jigsaw_digits(pieces=1),
        lambda: jigsaw_digits(pieces=9),
        lambda: sort_digits(length=1),
        lambda: sort_digits(digits=0),
        lambda: tsp(2),
        lambda: tsp(500),
        lambda: one_permutation(1),
        lambda: jigsaw_digits(held_out=0),
    ],
)
def test_invalid_datasets_are_refused(make_dataset):
    with pytest.raises(ValueError):
        make_dataset()


def test_pairwise_wins_are_shares_of_the_orders_with_both_items():
    orders = torch.tensor([[0, 1, 2], [2, 0, 1], [0, 3, 1]])
    expected = {(0, 1): 1.0, (0, 2): 0.5, (1, 2): 0.5, (0, 3): 1.0, (1, 3): 0.0}
    wins = precedence_shares(orders, 4)
    assert {
        pair: float(wins[pair]) for pair in expected
    } == expected and wins.isnan().sum() == 4 + 2
    assert torch.equal((wins + wins.T).nan_to_num(1), torch.ones(4, 4).double())
    panels = precedence_figure({"held out": wins, "samples": wins}, ["a", "b", "c", "d"]).axes
    labels = [label.get_text() for label in panels[0].get_yticklabels()]
    assert (labels[0], labels[-1], len(labels)) == ("a", "b", 4)
