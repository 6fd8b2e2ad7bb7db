"""Distances of shuffles from uniform: published values and enumeration."""

import pytest
import torch
from scipy.special import stirling2

from benchmarks.permutation_mixing import main
from blackout.permutations import all_permutations
from blackout.permutations.forward_process import denoising_schedule
from blackout.permutations.group import (
    conjugacy_class_size,
    descents,
    eulerian_numbers,
    integer_partitions,
    stirling_numbers,
)
from blackout.permutations.shuffles import RandomInsertion, RandomTransposition, Riffle


def test_total_variation_of_riffles_matches_published_values():
    distances = [round(Riffle().total_variation(52, t), 4) for t in range(4, 11)]
    assert distances == [1.0, 0.9237, 0.6135, 0.3341, 0.1672, 0.0854, 0.0429]


@pytest.mark.parametrize("n", range(1, 6))
def test_total_variation_matches_enumeration(n):
    perms = all_permutations(n)
    for shuffle in (Riffle(), RandomInsertion(), RandomTransposition()):
        distributions = [shuffle.log_prob(perms, t).exp() for t in range(6)]
        for t, distribution in enumerate(distributions):
            distance = float((distribution - 1 / len(perms)).abs().sum() / 2)
            assert shuffle.total_variation(n, t) == pytest.approx(distance, abs=1e-12)
        for s, p in enumerate(distributions):
            for t, q in enumerate(distributions):
                assert shuffle.total_variation(n, s, t) == pytest.approx(
                    float((p - q).abs().sum() / 2), abs=1e-12
                )


@pytest.mark.parametrize("n", range(1, 7))
def test_eulerian_numbers_count_rising_sequences(n):
    counts = torch.bincount(descents(all_permutations(n)), minlength=n).tolist()
    assert list(eulerian_numbers(n)) == counts


def test_combinatorial_numbers_match_known_values():
    assert eulerian_numbers(4) == (1, 11, 11, 1)
    assert stirling_numbers(0, 1) == (1, 0) and stirling_numbers(5, 6) == (0, 1, 15, 25, 10, 1, 0)
    assert [*stirling_numbers(40, 12)] == [*stirling2(40, range(13), exact=True)]
    # without a loop over all steps, since schedules may be so long
    assert stirling_numbers(100_000, 2)[2] == 2**99_999 - 1
    assert (
        len(integer_partitions(30)) == 5604
        and sum(map(conjugacy_class_size, integer_partitions(7))) == 5040
    )


@pytest.mark.parametrize(
    ("n", "schedule"),
    [
        (9, [0, 3, 5, 9]),
        (25, [0, 5, 7, 11]),
        (36, [0, 6, 8, 12]),
        (100, [0, 8, 10, 15]),
        (2, [0, 1, 7]),
    ],
)
def test_schedules_are_the_published_ones(n, schedule):
    assert denoising_schedule(n) == schedule


def test_the_schedule_of_sixteen_cards_ends_one_riffle_from_the_published_one():
    assert denoising_schedule(16) == [0, 4, 6, 11]  # printed: 0, 4, 6, 10


def test_the_command_prints_and_plots_distances(capsys, tmp_path):
    main(["9", "--plot", str(tmp_path / "mixing.png")])
    printed = capsys.readouterr().out
    assert "schedule [0, 3, 5, 9]" in printed and "transposition" in printed
    assert (tmp_path / "mixing.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(SystemExit) as error:
        main(["1"])
    assert error.value.code == 2 and "at least 2, not 1" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [(0, 1), (4, -1), (4, 1, -1)])
def test_invalid_numbers_are_refused(arguments):
    with pytest.raises(ValueError, match="at least"):
        Riffle().total_variation(*arguments)
    with pytest.raises(ValueError, match="at least 2 cards"):
        denoising_schedule(1)
