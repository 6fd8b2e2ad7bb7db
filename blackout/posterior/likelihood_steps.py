"""The likelihood step of split Gibbs sampling: z given x and y, proportional to L_t(z) K_t(x, z).

- Terms of one element each: all elements are drawn at once from their exact conditionals.
- Terms of few elements: so are elements that share no term (block heat bath, a Gibbs sampler over
  the colours of a graph).
- A black box: Metropolis.

References: Chu et al. 2025, algorithm 1; the heat bath: this project, checked in
tests/verification/posterior_claims.py.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias, cast

import torch
from torch import Tensor

from blackout.diffusion.processes import Uniform
from blackout.errors import ensure
from blackout.posterior.coupling import Coupling, RelaxedLikelihood
from blackout.posterior.method import (
    metropolis_accept,
    select_rows,
)
from blackout.posterior.problem import InverseProblem, Problem
from blackout.random import RandomSource, SampleStreams, categorical, uniform

PROPOSALS_PER_ELEMENT = 4  # of Metropolis in every sweep
MAX_COLOURS = 64  # above this a pass evaluates the likelihood more often than Metropolis needs
MAX_CHUNK_TERMS = 1 << 22  # terms of the likelihood evaluated at once, 32 MB
MAX_TREE_STATES = 3  # states of an element up to which all pairs of two elements are tried
# logs that stand for the log of 0, so that the least impossible state wins if none is possible
LOG_ZERO_TRANSITION = -1e8  # in place of log K_t
LOG_ZERO_LIKELIHOOD = -1e14  # in place of log L


class StepInfo(NamedTuple):
    """Diagnostics of a likelihood step.

    Attributes:
        acceptance: acceptance rate of every row, float64 [n]; 1 without proposals.
        likelihood_evaluations: per row.
    """

    acceptance: Tensor | float
    likelihood_evaluations: int


def make_step(
    problem: Problem,
    coupling: Coupling,
    shape: tuple[int, ...],
    kind: str = "auto",
    proposals: int | None = None,
    passes: int = 2,
    restarted: bool = False,
) -> HeatBath | Metropolis:
    """Return a likelihood step.

    Args:
        problem: p(y | x).
        coupling: K_t.
        shape: of one sample.
        kind: "auto" for the heat bath if possible; or "heat_bath" or "metropolis".
        proposals: of Metropolis; None for four per element.
        passes: of the heat bath.
        restarted: see `Metropolis`.

    Raises:
        ValueError: an unknown kind, or a heat bath of a black box.
    """
    kinds = ("auto", "heat_bath", "metropolis")
    ensure(kind in kinds, f"likelihood_step must be auto, heat_bath or metropolis, not {kind}")
    num_elements = math.prod(shape)
    if isinstance(problem, InverseProblem) and kind != "metropolis":
        incidence = problem.incidence(shape)
        use_trees = coupling.process.num_states <= MAX_TREE_STATES
        forests = []
        if incidence is not None:
            forests = colour_forests(incidence, num_elements, use_trees)
        if forests and (kind == "heat_bath" or len(forests) <= MAX_COLOURS):
            return HeatBath(problem, coupling, forests, passes)
    if kind == "heat_bath":
        raise ValueError(
            "likelihood_step=heat_bath needs a likelihood whose terms have few elements each, but "
            "this one is a black box: use likelihood_step=metropolis"
        )
    return Metropolis(
        problem, coupling, proposals or PROPOSALS_PER_ELEMENT * num_elements, restarted
    )


class Forest(NamedTuple):
    """Elements that are drawn together.

    Two of them share a term of the likelihood only if they are neighbours in a tree, and such a
    term has no third element.

    Attributes:
        elements: indices, int64 [E].
        is_odd: which have an odd distance to the root of their tree, bool [E].
        terms: indices of terms with one of these elements, int64 [P].
        places: position in `elements` of the element of each of these terms, int64 [P].
        branches: positions of child and parent, and index of their term, int64 [3, B], for each
            distance from the roots in turn.
    """

    elements: Tensor
    is_odd: Tensor
    terms: Tensor
    places: Tensor
    branches: list[Tensor]


# of one element: (neighbour, shared term) for every colour
Neighbours: TypeAlias = defaultdict[int, list[tuple[int, int]]]


def colour_forests(incidence: Tensor, num_elements: int, use_trees: bool = False) -> list[Forest]:
    """Divide all elements into forests by greedy colouring, those with most terms first.

    Args:
        incidence: pairs (term, element), int64 [2, P].
        num_elements: D.
        use_trees: whether an element may join a forest as a leaf, if it shares exactly one term
            with it, and that term has two elements.

    References: Welsh and Powell 1967.
    """
    # 1. The elements of every term, and the terms of every element.
    elements_of_term: defaultdict[int, list[int]] = defaultdict(list)
    terms_of_element: defaultdict[int, list[int]] = defaultdict(list)
    for term, element in incidence.T.tolist():
        elements_of_term[term].append(element)
        terms_of_element[element].append(term)

    # 2. Every element gets the first colour that is free, or that it can join as a leaf.
    colour_of: dict[int, int] = {}
    colour = torch.full((num_elements,), -1)
    depth = torch.full((num_elements,), -1)
    parent = torch.full((num_elements,), -1)
    parent_term = torch.full((num_elements,), -1)

    def can_join(neighbours: Neighbours, number: int) -> bool:
        shared = neighbours.get(number)
        if shared is None:
            return True
        return use_trees and len(shared) == 1 and len(elements_of_term[shared[0][1]]) == 2

    for element in sorted(range(num_elements), key=lambda i: -len(terms_of_element[i])):
        neighbours: Neighbours = defaultdict(list)
        for term in terms_of_element[element]:
            for neighbour in elements_of_term[term]:
                if neighbour in colour_of:
                    neighbours[colour_of[neighbour]].append((neighbour, term))

        element_colour = next(c for c in itertools.count() if can_join(neighbours, c))
        colour_of[element] = element_colour
        colour[element] = element_colour
        depth[element] = 0
        for neighbour, term in neighbours.get(element_colour, ()):
            parent[element] = neighbour
            parent_term[element] = term
            depth[element] = depth[neighbour] + 1

    # 3. The forest of every colour.
    forests = []
    for number in range(int(colour.max()) + 1):
        elements = (colour == number).nonzero()[:, 0]
        place = torch.full((num_elements,), -1)
        place[elements] = torch.arange(len(elements))
        has_colour = colour[incidence[1]] == number
        is_branch = torch.isin(incidence[0], parent_term[elements])
        is_single = has_colour & ~is_branch
        branches = []
        for distance in range(1, int(depth[elements].max()) + 1):
            leaf = elements[depth[elements] == distance]
            branches.append(torch.stack([place[leaf], place[parent[leaf]], parent_term[leaf]]))
        forest = Forest(
            elements=elements,
            is_odd=depth[elements] % 2 == 1,
            terms=incidence[0, is_single],
            places=place[incidence[1, is_single]],
            branches=branches,
        )
        forests.append(forest)
    return forests


@dataclass(frozen=True)
class HeatBath:
    """Exact conditional draws of one forest after the other; with one forest the step is exact.

    Belief propagation, which is exact on trees: messages go from the leaves to the roots, then
    levels are drawn from the roots to the leaves. Elements that share no term are all roots.

    Args:
        problem: with `incidence`.
        coupling: K_t.
        forests: of all elements, see `colour_forests`.
        passes: over all forests; one forest needs a single pass.

    References: Pearl 1988 (belief propagation); the step: this project, checked in
        tests/verification/posterior_claims.py.
    """

    problem: InverseProblem
    coupling: Coupling
    forests: list[Forest]
    passes: int = 1

    def __call__(
        self, x: Tensor, z: Tensor, t: float, streams: SampleStreams
    ) -> tuple[Tensor, StepInfo]:
        """Draw z given x, states [n, *shape] each, at time t; see the class."""
        table = self.coupling.log_table(t, x.device).clamp(min=LOG_ZERO_TRANSITION)
        relaxed = self.coupling.relax(self.problem, tuple(x.shape[1:]), t)
        num_forests = len(self.forests)
        passes = self.passes if num_forests > 1 else 1
        evaluations = 0
        for number in range(passes * num_forests):
            forest = self.forests[number % num_forests]

            # 1. log K_t of every element and level, [n, E, S], up to the highest possible level,
            # which is the largest x for pure death.
            log_transition = table[x.flatten(1)[:, forest.elements].long()]
            is_possible = (log_transition > LOG_ZERO_TRANSITION).flatten(0, 1).any(0)
            num_states = int(is_possible.nonzero()[-1]) + 1

            # 2. Messages to the roots; over all levels if none of the possible ones explains y.
            messages = self._sum_branches(z, relaxed, forest, log_transition[..., :num_states])
            log_weight, _ = messages
            if bool((log_weight.amax(-1) <= LOG_ZERO_TRANSITION / 2).any()):
                messages = self._sum_branches(z, relaxed, forest, log_transition)

            # 3. Levels from the roots.
            levels = _draw_levels(forest, *messages, streams.step(number))
            flat = z.flatten(1).clone()
            flat[:, forest.elements] = levels.to(flat.dtype)
            z = flat.view_as(z)
            evaluations += num_states**2 if forest.branches else num_states
        return z, StepInfo(1.0, evaluations)

    def _sum_branches(
        self, z: Tensor, relaxed: RelaxedLikelihood, forest: Forest, log_transition: Tensor
    ) -> tuple[Tensor, list[Tensor]]:
        """Sum over the branches below every element of a forest, from the leaves to the roots.

        Args:
            z: states of the other elements, [n, *shape].
            relaxed: likelihood of states.
            forest: of E elements.
            log_transition: log K_t, [n, E, S].

        Returns:
            Log weight of every level of every element, float64 [n, E, S]; for each distance from
            the roots the terms of its branches by levels of parent and child, [n, B, S, S].

        References: Pearl 1988, as in the class.
        """
        n, num_elements, num_states = log_transition.shape
        tried_states = num_states**2 if forest.branches else num_states
        terms_per_row = tried_states * max(z[0].numel(), len(forest.terms), 1)
        is_odd = forest.is_odd.to(z.device)
        places = forest.places.to(z.device)
        problem = cast(InverseProblem, relaxed.problem)
        weights = []
        pairs_of_chunks = []
        for rows in torch.arange(n, device=z.device).split(
            max(1, MAX_CHUNK_TERMS // terms_per_row)
        ):
            # 1. All terms at all levels, [even S, odd S, rows, K].
            chunk = replace(relaxed, problem=problem.select(rows, tuple(z.shape[1:])))
            terms = self._tabulate_terms(z[rows], chunk, forest, num_states)

            # 2. K_t and the terms with one element of the forest.
            single = terms[..., forest.terms]
            single = torch.where(is_odd[places], single[0], single[:, 0])
            total = torch.zeros(
                num_states, len(rows), num_elements, dtype=torch.float64, device=z.device
            )
            total = total.index_add_(2, places, single)
            weight = log_transition[rows] + total.permute(1, 2, 0)

            # 3. The terms of branches, by levels of parent and child.
            pairs = []
            for _, parent, term in forest.branches:
                pair = terms[..., term]
                pair = torch.where(is_odd[parent], pair.transpose(0, 1), pair)
                pairs.append(pair.permute(2, 3, 0, 1))

            # 4. Messages from the most distant branches on.
            for (child, parent, _), pair in zip(forest.branches[::-1], pairs[::-1], strict=True):
                message = torch.logsumexp(weight[:, child, None] + pair, -1)
                weight.index_add_(1, parent.to(z.device), message)
            weights.append(weight)
            pairs_of_chunks.append(pairs)
        pairs = [torch.cat(parts) for parts in zip(*pairs_of_chunks, strict=True)]
        return torch.cat(weights), pairs

    @staticmethod
    def _tabulate_terms(
        z: Tensor, relaxed: RelaxedLikelihood, forest: Forest, num_states: int
    ) -> Tensor:
        """Return all terms with even elements of a forest at one level and odd ones at another.

        Returns:
            float64 [even levels, odd levels, n, K]; without odd elements [levels, 1, n, K].

        References: `RelaxedLikelihood.terms`.
        """
        even_elements = forest.elements[~forest.is_odd].to(z.device)
        odd_elements = forest.elements[forest.is_odd]
        tables = []
        for level in range(num_states if forest.branches else 1):
            flat = z.flatten(1).clone()
            flat[:, odd_elements] = level
            terms = relaxed.terms(flat.view_as(z), even_elements, num_states)
            tables.append(terms.view(num_states, len(z), -1))
        return torch.stack(tables, 1).clamp(min=LOG_ZERO_LIKELIHOOD)


def _draw_levels(
    forest: Forest, log_weight: Tensor, log_pairs: list[Tensor], source: RandomSource
) -> Tensor:
    """Draw the levels of all elements of a forest, int64 [n, E], from the roots to the leaves.

    The weights come from `HeatBath._sum_branches`.

    References: Pearl 1988.
    """
    children = [torch.empty(0, dtype=torch.int64)]
    children += [child for child, _, _ in forest.branches]
    is_root = ~torch.isin(torch.arange(len(forest.elements)), torch.cat(children))
    levels = torch.zeros(log_weight.shape[:2], dtype=torch.int64, device=log_weight.device)
    levels[:, is_root] = categorical(torch.softmax(log_weight[:, is_root], -1), source)
    for (child, parent, _), log_pair in zip(forest.branches, log_pairs, strict=True):
        parent_level = levels[:, parent, None, None].expand(-1, -1, 1, log_pair.shape[-1])
        log_pair_given_parent = log_pair.gather(2, parent_level)[:, :, 0]
        log_conditional = log_weight[:, child] + log_pair_given_parent
        levels[:, child] = categorical(torch.softmax(log_conditional, -1), source)
    return levels


@dataclass(frozen=True)
class Metropolis:
    """Metropolis proposals at random elements.

    The uniform process proposes a uniform level. Other processes propose a draw of K_t(x_i, .),
    whose probability then cancels.

    Args:
        problem: with a log-likelihood.
        coupling: K_t.
        proposals: per step.
        restarted: start every step at z = x, as published. The chain then has another stationary
            distribution, see docs/explanation/posteriors.md.

    References: Chu et al. 2025, section 3.3.
    """

    problem: Problem
    coupling: Coupling
    proposals: int
    restarted: bool = False

    def __call__(
        self, x: Tensor, z: Tensor, t: float, streams: SampleStreams
    ) -> tuple[Tensor, StepInfo]:
        """Draw z given x, states [n, *shape] each, at time t, by `proposals` proposals.

        References: Chu et al. 2025, section 3.3; see `metropolis_accept`.
        """
        if self.restarted:
            z = x.to(z.dtype)
        table = None
        if isinstance(self.coupling.process, Uniform):
            table = self.coupling.log_table(t, x.device)
        relaxed = self.coupling.relax(self.problem, tuple(x.shape[1:]), t)
        log_likelihood = relaxed.log_likelihood(z)
        num_accepted = torch.zeros(len(x), dtype=torch.float64, device=x.device)
        for number in range(self.proposals):
            source = streams.step(number)
            proposal, log_proposal_ratio = self._propose(x, z, t, table, source)
            new_log_likelihood = relaxed.log_likelihood(proposal)
            log_ratio = new_log_likelihood - log_likelihood + log_proposal_ratio
            u = uniform((len(x), 1), source, x.device)
            accepted = metropolis_accept(log_ratio, log_likelihood, u)
            z = select_rows(accepted, proposal, z)
            log_likelihood = select_rows(accepted, new_log_likelihood, log_likelihood)
            num_accepted += accepted
        acceptance = num_accepted / max(1, self.proposals)
        return z, StepInfo(acceptance, self.proposals + 1)

    def _propose(
        self, x: Tensor, z: Tensor, t: float, table: Tensor | None, source: RandomSource
    ) -> tuple[Tensor, Tensor]:
        """Propose a new level of one random element per row.

        Args:
            x: samples [n, *shape].
            z: current states [n, *shape].
            t: time.
            table: log K_t of the uniform process, [max_count + 1, num_states]; None for others.
            source: random numbers.

        Returns:
            Proposals [n, *shape], and the part of the log acceptance ratio from K_t and the
            proposal distribution, float64 [n].

        References: Hastings 1970; see the class.
        """
        flat = z.flatten(1)
        n, num_elements = flat.shape
        u = uniform((n, 1), source, x.device)
        element = (u * num_elements).long().clamp_(max=num_elements - 1)
        x_element = x.flatten(1).gather(1, element)
        if table is None:
            level = self.coupling.draw(x_element, t, source).to(flat.dtype)
            proposal = flat.scatter(1, element, level).view_as(z)
            return proposal, torch.zeros(n, dtype=torch.float64, device=x.device)
        num_states = table.shape[1]
        u = uniform((n, 1), source, x.device)
        level = (u * num_states).long().clamp_(max=num_states - 1)
        z_element = flat.gather(1, element).long()
        log_ratio = table[x_element.long(), level] - table[x_element.long(), z_element]
        proposal = flat.scatter(1, element, level.to(flat.dtype)).view_as(z)
        return proposal, log_ratio[:, 0]
