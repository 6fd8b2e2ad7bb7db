"""Split Gibbs sampling with a discrete diffusion prior, corrected.

The pair (x, z) is sampled in turn: z given x under the likelihood, and x given z by a reverse run
of the diffusion, while the level t that couples them decreases. The published method has two
errors, each of which changes the limit: its potential is off by N - 1 for every mismatch, and it
restarts a Metropolis chain at z = x in every sweep.

The split target is p(x) L_t(z) K_t(x, z), with the forward transition K_t of the process in place
of the potential. Then x given z is exactly X_0 given X_t = z. The x-marginal is p(x) (K_t L_t)(x),
which tends to p(x) L(x) as t -> 0 for any L_t that tends to L.

The likelihood step draws z given x and y, proportionally to L_t(z) K_t(x, z):

- Terms of one element each: all elements are drawn at once from their exact conditionals.
- Terms of few elements: so are elements that share no term (block heat bath, a Gibbs sampler over
  the colours of a graph).
- A black box: Metropolis.

The last two continue from the previous z. Restarted at x, they would not leave the target
invariant.

References: Chu et al. 2025, algorithm 1 and eq. 7 and 8; the corrections and the heat bath: this
project, checked in tests/verification/posterior_claims.py.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple, TypeAlias, cast

import torch
from torch import Tensor

from blackout.diffusion.kernels import Kernel
from blackout.diffusion.processes import Absorbing, Process, PureDeath, Uniform
from blackout.errors import UserError, check_at_least_one, ensure, refuse
from blackout.posterior.blind import BlindProblem
from blackout.posterior.method import (
    Method,
    Run,
    check_levels,
    initial_estimate,
    metropolis_accept,
    select_rows,
)
from blackout.posterior.noise import Exact
from blackout.posterior.noise_denoise import polish
from blackout.posterior.problem import InverseProblem, Prior, Problem
from blackout.random import RandomSource, SampleStreams, categorical, uniform

# levels are times of the forward process
FIRST_LEVEL = 3.0
LAST_LEVEL = 0.01
LAST_LEVEL_COUNTS = 0.2  # pure death of counts: below, chains rarely gain a unit
LAST_LEVEL_BITS = 0.02  # pure death of bits
PUBLISHED_FIRST_LEVEL = 20.0  # Chu et al. 2025, appendix C.3
PUBLISHED_LAST_LEVEL = 1e-4

# proposals and passes of a sweep
PROPOSALS_PER_ELEMENT = 4
PUBLISHED_PROPOSALS_PER_ELEMENT = 2

# heat bath
MAX_COLOURS = 64  # above this a pass evaluates the likelihood more often than Metropolis needs
MAX_CHUNK_TERMS = 1 << 22  # terms of the likelihood evaluated at once, 32 MB
MAX_TREE_STATES = 3  # of an element, up to which all pairs of levels of two elements are tried
# logs that stand for the log of 0, so that the least impossible state wins if none is possible
LOG_ZERO_TRANSITION = -1e8  # of K_t
LOG_ZERO_LIKELIHOOD = -1e14  # of L

# search for a possible initial state
NUM_SEARCH_LEVELS = 40
SEARCH_LEVEL_RATIO = 0.85  # of each level to the one before

MAX_TABLE_LEVELS = 4096  # data levels up to which K_t is tabulated
MAX_COMPLETIONS = 8  # levels tried in place of masked elements

SEARCH_KEY = -2  # random numbers of the initial state


@dataclass(frozen=True)
class Coupling:
    """The forward transition K_t(x, z), in place of the potential exp(-D) of the publication.

    Args:
        process: forward process.
        mismatch: factor of K_t off its diagonal. 1 is right. N - 1 is the published potential of
            the uniform process, whose two conditionals do not belong to one joint distribution.
        rescaled: whether states of pure death, which are darker than data, are read as e^t z.

    References: Chu et al. 2025, eq. 7 and 10.
    """

    process: Process
    mismatch: float = 1.0
    rescaled: bool = True

    def draw(self, x: Tensor, t: float, source: RandomSource = None) -> Tensor:
        """Draw z ~ K_t(x, .), states of x's shape [n, *shape]."""
        time = torch.tensor(t, dtype=torch.float64, device=x.device)
        return self.process.sample(x, time, source)

    def log_table(self, t: float, device: torch.device | str = "cpu") -> Tensor:
        """Return log K_t(x, z) of one element, float64 [max_count + 1, num_states].

        Raises:
            ValueError: too many levels for a table.
        """
        if self.process.max_count >= MAX_TABLE_LEVELS:
            raise ValueError(
                f"counts above {MAX_TABLE_LEVELS - 1} are too many for the heat bath: "
                "use posterior.likelihood_step=metropolis"
            )
        levels = torch.arange(self.process.max_count + 1, device=device)
        time = torch.tensor(t, dtype=torch.float64, device=device)
        table = self.process.pmf(levels, time).log()
        if self.mismatch != 1.0:
            off_diagonal = ~torch.eye(*table.shape, dtype=torch.bool, device=device)
            table = table + off_diagonal * math.log(self.mismatch)
        return table

    def relax(self, problem: Problem, shape: tuple[int, ...], t: float) -> RelaxedLikelihood:
        """Return L_t, the likelihood of states.

        - Pure death: a likelihood of z whose average over K_t is L, if the problem knows one
          (`InverseProblem.thin`); this level then has no bias. Otherwise L(min(e^t z, max_count)),
          or L(z) if L is defined for integers only.
        - Absorption: the geometric mean of L over completions, in which all masked elements have
          the same level; at most eight levels.
        - Other processes: L(min(z, max_count)).

        References: this project; checked in tests/verification/posterior_claims.py.
        """
        max_count = self.process.max_count
        is_smooth = getattr(problem, "smooth", True)
        scale = 1.0
        if isinstance(self.process, PureDeath) and self.rescaled and is_smooth:
            thin = getattr(problem, "thin", None)
            thinned = None if thin is None else thin(math.exp(-t), shape, max_count)
            if thinned is None:
                scale = math.exp(t)
            else:
                problem = thinned
        elif isinstance(self.process, Absorbing):
            mask = self.process.mask
            num_levels = min(max_count + 1, MAX_COMPLETIONS)
            levels = torch.linspace(0, max_count, num_levels).round().tolist()

            def complete(z: Tensor) -> list[Tensor]:
                return [torch.where(z == mask, level, z.double()) for level in levels]

            return RelaxedLikelihood(problem, complete)

        def rescale(z: Tensor) -> list[Tensor]:
            return [(z.double() * scale).clamp(max=max_count)]

        return RelaxedLikelihood(problem, rescale)


@dataclass(frozen=True)
class RelaxedLikelihood:
    """A likelihood L_t of states; see `Coupling.relax`.

    Args:
        problem: with the likelihood of data.
        to_data: states [n, *shape] -> one or several data, float64 [n, *shape] each, over which
            log L is averaged.
    """

    problem: Problem
    to_data: Callable[[Tensor], list[Tensor]]

    def log_likelihood(self, z: Tensor) -> Tensor:
        """Return log L_t(z), float64 [n], of states [n, *shape]."""
        return self._average([self.problem.log_likelihood(x) for x in self.to_data(z)])

    def terms(self, z: Tensor, elements: Tensor, num_states: int) -> Tensor:
        """Return the terms of log L_t with some elements at 0, at 1, ..., all at the same level.

        Args:
            z: states [n, *shape].
            elements: indices of the elements, int64 [E].
            num_states: number of levels.

        Returns:
            float64 [num_states n, K]. If the operator is linear, each level costs one sum.

        References: this project; see `Coupling.relax`.
        """
        problem = cast(InverseProblem, self.problem)
        shape = tuple(z.shape[1:])
        levels = torch.arange(num_states, device=z.device)
        if not problem.operator.linear:
            states = z.flatten(1).expand(num_states, -1, -1).clone()
            states[:, :, elements] = levels.to(z.dtype).view(-1, 1, 1)
            data = self.to_data(states.view(-1, *shape))
            return self._average([problem.terms(x) for x in data])

        # G(x) = G(x without the elements) + level G(indicator of the elements)
        indices = torch.arange(z[0].numel(), device=z.device)
        is_chosen = torch.isin(indices, elements).view(1, *shape)
        m_unit = problem.operator(is_chosen.double())
        terms = []
        for x, x_levels in zip(self.to_data(z), self.to_data(levels), strict=True):
            m_others = problem.operator(x * ~is_chosen)
            m = m_others + x_levels.view(-1, *[1] * m_unit.ndim) * m_unit
            terms.append(problem.terms_at(m.flatten(0, 1), shape))
        return self._average(terms)

    def _average(self, log_likelihoods: list[Tensor]) -> Tensor:
        """Return the mean of log L [...] over completions, of the same shape.

        Where one L is 0 it is the log of the mean of L, unless L is not smooth, as for exact y.

        References: this project; see `Coupling.relax`.
        """
        if len(log_likelihoods) == 1:
            return log_likelihoods[0]
        stacked = torch.stack(log_likelihoods)
        if not getattr(self.problem, "smooth", True):
            return stacked.mean(0)
        log_mean = torch.logsumexp(stacked, 0) - math.log(len(stacked))
        return torch.where(torch.isneginf(stacked).any(0), log_mean, stacked.mean(0))


class StepInfo(NamedTuple):
    """What a likelihood step did, besides the new states.

    Attributes:
        acceptance: acceptance rate of every row, float64 [n]; 1 without proposals.
        likelihood_evaluations: per row.
    """

    acceptance: Tensor | float
    likelihood_evaluations: int


def anneal(sweeps: int = 60, first: float = 3.0, last: float = 0.01) -> tuple[float, ...]:
    """Return as many levels as sweeps, from `first` to `last`, evenly spaced in their logarithm.

    The published schedule ends one step before `last`.

    Raises:
        ValueError: no sweep, or levels that are not first >= last > 0.

    References: Chu et al. 2025, appendix C.3.

    Example:
        >>> [round(level, 3) for level in anneal(3, 1.0, 0.01)]
        [1.0, 0.1, 0.01]
    """
    ensure(sweeps >= 1, f"sweeps must be at least 1, not {sweeps}")
    if not (math.inf > first >= last > 0):
        raise ValueError(
            f"levels must decrease from first_level={first} to last_level={last}, "
            "which must be above 0"
        )
    if sweeps == 1:
        return (float(first),)
    return tuple(first * (last / first) ** (k / (sweeps - 1)) for k in range(sweeps))


@dataclass(frozen=True)
class SplitGibbs(Method):
    """Annealed split Gibbs sampling, corrected.

    Args:
        levels: one sweep at each, usually decreasing; none for `anneal` with the last three
            settings.
        likelihood_step: "auto" for the heat bath if the likelihood is local, else Metropolis;
            or "heat_bath" or "metropolis".
        proposals: of Metropolis in every sweep; None for four per element (published: two).
        passes: of the heat bath in every sweep; None for two on bits, else one.
        polish: noise-denoise moves after the last sweep, which reduce the bias of its level.
        start: "data" or "prior"; see `Run.initial_samples`.
        published: the method as published with its two errors, for comparison. Its levels are the
            published ones, as far as the model's final time allows.
        steps: of each reverse run; None for fewer at lower levels, see `Prior.reverse_times`.
        sweeps: number of levels.
        first_level: None for the one that suits the process.
        last_level: None for the one that suits the process.
        kernel: step of the reverse runs; None for that of the prior.

    References: Chu et al. 2025, algorithm 1 and section 3.4; see the module.
    """

    is_markov_chain: ClassVar[bool] = True
    levels: Sequence[float] = ()
    likelihood_step: str = "auto"
    proposals: int | None = None
    passes: int | None = None
    polish: int = 0
    start: str = "data"
    published: bool = False
    steps: int | None = None
    sweeps: int = 60
    first_level: float | None = None
    last_level: float | None = None
    kernel: Kernel | None = None

    def resolve(self, prior: Prior, problem: Problem) -> Method:
        """Return the method with its levels.

        Raises:
            UserError: settings out of range or that contradict each other.
        """
        check_at_least_one(passes=self.passes, proposals=self.proposals, steps=self.steps)
        refuse(self.polish < 0, f"posterior.polish must be at least 0, not {self.polish}")
        if self.published and (self.likelihood_step == "heat_bath" or self.passes is not None):
            raise UserError(
                "posterior=sgdd_published always takes Metropolis steps: leave out "
                "posterior.passes and posterior.likelihood_step=heat_bath"
            )
        if self.levels:
            return self
        default_first, default_last = self._default_levels(prior)
        first = self.first_level
        if first is None:
            first = min(default_first, prior.final_time)
        last = self.last_level
        if last is None:
            last = min(default_last, first)
        return replace(self, levels=anneal(self.sweeps, first, last))

    def _default_levels(self, prior: Prior) -> tuple[float, float]:
        """Return the first and the last level."""
        if self.published:
            return PUBLISHED_FIRST_LEVEL, PUBLISHED_LAST_LEVEL
        if not isinstance(prior.process, PureDeath):
            return FIRST_LEVEL, LAST_LEVEL
        if prior.process.max_count > 1:
            return FIRST_LEVEL, LAST_LEVEL_COUNTS
        return FIRST_LEVEL, LAST_LEVEL_BITS

    def num_sweeps(self, prior: Prior) -> int:
        """Return the number of levels and moves."""
        return len(self.levels) + self.polish

    def draw(self, run: Run) -> Tensor:
        """Draw samples, counts [n, *shape]; see `Method.draw`."""
        prior = run.prior
        reverse_prior = prior if self.kernel is None else prior.with_kernel(self.kernel)
        problem = run.problem
        streams = run.streams

        # 1. The initial pair (x, z).
        coupling = self.coupling(prior)
        step = self.make_likelihood_step(prior, problem)
        x = run.initial_samples(self.start)
        search_streams = streams.fold_in(SEARCH_KEY)
        if isinstance(step, Metropolis):
            z = find_possible_state(problem, coupling, x, self.levels[0], search_streams)
        else:
            z = coupling.draw(x, self.levels[0], search_streams.step(0))

        for k, t in enumerate(self.levels):
            # 2. An unknown parameter of the noise given x.
            if isinstance(problem, BlindProblem):
                step = replace(
                    step, problem=problem.with_posterior_draw(x, streams.fold_in(3 * k + 2).step(0))
                )

            # 3. The likelihood step, z given x.
            z, info = step(x, z, t, streams.fold_in(3 * k))

            # 4. The prior step, x given z.
            x = reverse_prior.reverse(z, t, streams.fold_in(3 * k + 1), self.steps)
            run.record(
                t,
                x,
                z,
                acceptance=info.acceptance,
                likelihood_evaluations=info.likelihood_evaluations + 1,
            )

        # 5. Moves that reduce the bias of the last level.
        if self.polish:
            x = polish(run, x, self.polish, streams.fold_in(3 * len(self.levels)))
        return x

    def check(self, prior: Prior, problem: Problem) -> None:
        """Raise ValueError for settings out of range, or steps that the problem does not allow."""
        ensure(self.start in ("data", "prior"), f"start must be data or prior, not {self.start}")
        check_levels(self.levels, prior)
        self.make_likelihood_step(prior, problem)
        if self.published and isinstance(problem, InverseProblem):
            is_exact = type(problem.noise) is Exact
            ensure(
                not is_exact,
                "posterior=sgdd_published needs a likelihood that is never 0: use noise=flips",
            )

    def make_likelihood_step(self, prior: Prior, problem: Problem) -> HeatBath | Metropolis:
        """Return the step that draws z given x.

        Raises:
            ValueError: a step that the problem does not allow.
        """
        kind = "metropolis" if self.published else self.likelihood_step
        if isinstance(problem, BlindProblem):
            problem = problem.with_prior_median()
        proposals_per_element = PROPOSALS_PER_ELEMENT
        if self.published:
            proposals_per_element = PUBLISHED_PROPOSALS_PER_ELEMENT
        proposals = self.proposals or proposals_per_element * math.prod(prior.shape)
        passes = self.passes or (2 if prior.process.max_count == 1 else 1)
        coupling = self.coupling(prior)
        return make_step(problem, coupling, prior.shape, kind, proposals, passes, self.published)

    def coupling(self, prior: Prior) -> Coupling:
        """Return K_t, or the published potential.

        References: Chu et al. 2025, eq. 10.
        """
        mismatch = 1.0
        if self.published and isinstance(prior.process, Uniform):
            mismatch = float(prior.process.max_count)
        return Coupling(prior.process, mismatch, rescaled=not self.published)


def find_possible_state(
    problem: Problem, coupling: Coupling, x: Tensor, t: float, streams: SampleStreams
) -> Tensor:
    """Draw z ~ K_t(x, .), and replace states of likelihood 0.

    They are replaced by draws at lower and lower levels, then by x, then by an estimate from the
    measurement.

    Returns:
        States [n, *shape].

    Raises:
        ValueError: no possible state was found for any row.

    References: this project; checked in tests/posterior/test_parts.py.
    """
    shape = tuple(x.shape[1:])
    relaxed = coupling.relax(problem, shape, t)
    lower_levels = (t * SEARCH_LEVEL_RATIO**k for k in range(1, NUM_SEARCH_LEVELS + 1))
    lower_states = (
        coupling.draw(x, level, streams.step(k)) for k, level in enumerate(lower_levels, start=1)
    )
    alternatives = [x]
    estimate = initial_estimate(problem, len(x), shape)
    if estimate is not None:
        alternatives.append(estimate.to(x.device).ceil().clamp(0, coupling.process.max_count))
    z = coupling.draw(x, t, streams.step(0))
    for candidate in itertools.chain(lower_states, alternatives):
        impossible = torch.isneginf(relaxed.log_likelihood(z))
        if not bool(impossible.any()):
            return z
        z = select_rows(impossible, candidate.to(z.dtype), z)
    impossible = torch.isneginf(relaxed.log_likelihood(z))
    ensure(
        not bool(impossible.all()),
        "no state of positive likelihood was found near the start; check the operator, the noise "
        "and the units of y, or start elsewhere (posterior.start)",
    )
    return z


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
        alone = has_colour & ~is_branch
        branches = []
        for distance in range(1, int(depth[elements].max()) + 1):
            leaf = elements[depth[elements] == distance]
            branches.append(torch.stack([place[leaf], place[parent[leaf]], parent_term[leaf]]))
        forest = Forest(
            elements=elements,
            is_odd=depth[elements] % 2 == 1,
            terms=incidence[0, alone],
            places=place[incidence[1, alone]],
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
        even = forest.elements[~forest.is_odd].to(z.device)
        odd = forest.elements[forest.is_odd]
        tables = []
        for level in range(num_states if forest.branches else 1):
            flat = z.flatten(1).clone()
            flat[:, odd] = level
            terms = relaxed.terms(flat.view_as(z), even, num_states)
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
