"""Split Gibbs sampling with a discrete diffusion prior [Chu 2025, Algorithm 1], corrected: annealing, couplings, and
the likelihood step by Metropolis or by a heat bath of coloured elements.

The pair (x, z) is sampled in turn: z given x under the likelihood, x given z by a reverse run of the diffusion, while
the level that ties them falls. The published method differs in two points that each change the limit: a potential that
is off by N - 1 for every mismatch, and a Metropolis chain restarted at z = x in every sweep.

The split target is p(x) Lt(z) K_t(x, z) [Chu 2025, eq. 7], but with the process's own forward law K_t for the
potential: x given z is then exactly X_0 given X_t = z, and the x-marginal is p(x) (K_t Lt)(x), which tends to p(x) L(x)
as t -> 0 for any Lt that tends to L. Ours; tests/verification/posterior_claims.py checks both.

The likelihood step draws z given x and y, in law proportional to Lt(z) K_t(x, z) [Chu 2025, eq. 8], by what the
likelihood offers. Where each of its terms depends on one element, all elements are drawn from their exact conditional
at once; where each depends on few, so are those that share no term (block heat bath: a Gibbs sampler over colours); of
a black box it is Metropolis. The last two continue from the z before: started anew from x they leave no law of use
invariant. The heat bath is ours; tests/verification/posterior_claims.py checks all three.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple, cast

import torch
from torch import Tensor

from blackout.diffusion.processes import Absorbing, Process, PureDeath, Uniform
from blackout.errors import UserError, check_at_least_one, ensure, refuse
from blackout.posterior.method import Method, Run, accepted, check_levels, suggested, where_rows
from blackout.posterior.noise import Exact
from blackout.posterior.noise_denoise import polished
from blackout.posterior.problem import Measured, Prior, Problem
from blackout.posterior.unknown_number import Blind
from blackout.random import RandomSource, SampleStreams, categorical, uniform

_FIRST, _PUBLISHED = 3.0, (20.0, 1e-4)
_LAST_OF_COUNTS, _LAST_OF_BITS, _LAST = 0.2, 0.02, 0.01
"""Below t = 1 / max_count nothing moves; on counts the chains need births to become brighter."""
_MOST_COLOURS = 64
"""Beyond this a pass of the heat bath evaluates the likelihood more often than Metropolis needs."""
_CHUNK = 1 << 22
"""Terms of the likelihood evaluated at once."""
_FEW_STATES = 3
"""Of an element, up to which all pairs of levels of two elements are tried."""
_NEVER, _FORBIDDEN = -1e8, -1e14
"""Logarithms of K_t and of L where they are 0, so that the least impossible state is left where none is possible."""
_TRIES, _NEARER = 40, 0.85
"""How many levels a possible state is looked for at, each a share of the one before."""


_LARGEST_TABLE = 4096
"""Data levels up to which K_t is tabulated."""
_COMPLETIONS = 8


@dataclass(frozen=True)
class Coupling:
    """K_t of a process, in place of the potential exp(-D) [Chu 2025, eq. 7].

    Args:
        process: forward.
        mismatch: factor on K_t off its diagonal. 1 is right; N - 1 is what the potential of [Chu 2025, eq. 10] has for
            the uniform process, whose two conditionals then do not belong to one law.
        rescaled: whether states of pure death are read as e^t z; they are darker than data.
    """

    process: Process
    mismatch: float = 1.0
    rescaled: bool = True

    def draw(self, x: Tensor, t: float, source: RandomSource = None) -> Tensor:
        """z ~ K_t(x, .), states [n, *shape] of x's shape: the process's own law, see `Coupling`."""
        return self.process.sample(x, torch.tensor(t, dtype=torch.float64, device=x.device), source)

    def log_table(self, t: float, device: torch.device | str = "cpu") -> Tensor:
        """log K_t(x, z) of one element, float64 [max_count + 1, num_states]: the process's own law, see `Coupling`.

        Raises:
            ValueError: too many levels for a table.
        """
        levels = torch.arange(self.process.max_count + 1, device=device)
        if self.process.max_count >= _LARGEST_TABLE:
            raise ValueError(f"counts above {_LARGEST_TABLE - 1} are too many for exact steps: step=metropolis")
        table = self.process.pmf(levels, torch.tensor(t, dtype=torch.float64, device=device)).log()
        if self.mismatch != 1.0:
            table = table + ~torch.eye(*table.shape, dtype=torch.bool, device=device) * math.log(self.mismatch)
        return table

    def relaxed(self, problem: Problem, shape: tuple[int, ...], t: float) -> Relaxed:
        """Lt: the likelihood of states. Ours (tests/verification/posterior_claims.py).

        Pure death: where the problem knows a likelihood of z whose average over K_t is L itself, that one, and no bias
        is left at this level; else L(min(e^t z, max_count)), or L(z) for likelihoods of whole counts alone. Absorption:
        the geometric mean of L over completions, masked elements taking one level after the other, at most eight.
        Others: L(min(z, max_count)).
        """
        largest, scale = self.process.max_count, 1.0
        if isinstance(self.process, PureDeath) and self.rescaled and getattr(problem, "real", True):
            thinned = getattr(problem, "thinned", None)
            exact = None if thinned is None else thinned(math.exp(-t), shape, largest)
            problem, scale = (problem, math.exp(t)) if exact is None else (exact, 1.0)
        elif isinstance(self.process, Absorbing):
            mask = self.process.mask
            levels = torch.linspace(0, largest, min(largest + 1, _COMPLETIONS)).round().tolist()
            return Relaxed(problem, lambda z: [torch.where(z == mask, level, z.double()) for level in levels])
        return Relaxed(problem, lambda z: [(z.double() * scale).clamp(max=largest)])


@dataclass(frozen=True)
class Relaxed:
    """A likelihood of states; see `Coupling.relaxed`.

    Args:
        problem: whose likelihood of data is used.
        views: states [n, *shape] -> the data, float64 [n, *shape] each, that they stand for.
    """

    problem: Problem
    views: Callable[[Tensor], list[Tensor]]

    def log_likelihood(self, z: Tensor) -> Tensor:
        """log Lt(z), float64 [n], of states [n, *shape]."""
        return self._mean([self.problem.log_likelihood(view) for view in self.views(z)])

    def terms(self, z: Tensor, elements: Tensor, states: int) -> Tensor:
        """Of a local problem, term by term, z [n, *shape] with all these elements at 0, 1, ...: [states * n, K].

        Ours, see `Coupling.relaxed`; of linear operators every level is a sum.
        """
        problem, shape, levels = cast(Measured, self.problem), tuple(z.shape[1:]), torch.arange(states, device=z.device)
        if not problem.operator.linear:
            tried = z.flatten(1).expand(states, -1, -1).clone()
            tried[:, :, elements] = levels.to(z.dtype).view(-1, 1, 1)
            return self._mean([problem.terms(view) for view in self.views(tried.view(-1, *shape))])
        inside = torch.isin(torch.arange(z[0].numel(), device=z.device), elements).view(1, *shape)
        unit, others = problem.operator(inside.double()), [view * ~inside for view in self.views(z)]
        values = [view.view(-1, *[1] * unit.ndim) for view in self.views(levels)]
        tries = [problem.operator(x) + value * unit for x, value in zip(others, values, strict=True)]
        return self._mean([problem.terms_of(m.flatten(0, 1), shape) for m in tries])

    def _mean(self, of_views: list[Tensor]) -> Tensor:
        """The mean of log L [...] over completions, [...]; log of that of L where one is 0, unless y is exact and 0 all
        there is.

        Ours, see `Coupling.relaxed`.
        """
        if len(of_views) == 1:
            return of_views[0]
        values = torch.stack(of_views)
        if not getattr(self.problem, "real", True):
            return values.mean(0)
        arithmetic = torch.logsumexp(values, 0) - math.log(len(values))
        return torch.where(torch.isneginf(values).any(0), arithmetic, values.mean(0))


class StepInfo(NamedTuple):
    """What a likelihood step (x, z, level, random numbers) -> z did.

    Attributes:
        z: new states [n, *shape].
        acceptance: of every row's proposals, float64 [n]; 1 where nothing is proposed.
        calls: evaluations of the likelihood per row.
    """

    z: Tensor
    acceptance: Tensor | float
    calls: int


def anneal(sweeps: int = 60, first: float = 3.0, last: float = 0.01) -> tuple[float, ...]:
    """Levels from `first` to `last`, evenly spaced in their logarithm [Chu 2025, appendix C.3].

    The paper's ladder ends one step before `last`. Numbers, as many as sweeps.

    Raises:
        ValueError: fewer than one, or levels that do not fall from first to last > 0.
    """
    ensure(sweeps >= 1, f"sweeps must be at least 1, not {sweeps}")
    if not (math.inf > first >= last > 0):
        raise ValueError(f"levels must fall from first_level={first} to last_level={last}, which must be above 0")
    if sweeps == 1:
        return (float(first),)
    return tuple(first * (last / first) ** (k / (sweeps - 1)) for k in range(sweeps))


@dataclass(frozen=True)
class SplitGibbs(Method):
    """Annealed split Gibbs sampling [Chu 2025, Algorithm 1 and section 3.4], corrected.

    Args:
        levels: one sweep at each, falling as a rule; as a command none for `anneal` of the three settings below.
        step: "auto" draws local likelihoods by heat bath and others by Metropolis; or one of the two by name.
        proposals: of Metropolis in every sweep; None for four per element, as published two.
        passes: of the heat bath in every sweep; None for two on bits, else one.
        polish: noise-denoise moves after the last sweep, which mend what its level leaves.
        start: "data" or "prior", see `method.Run.begin`.
        published: as published, with its two errors, the wrong potential and the restarted Metropolis chain. Its levels
            are the paper's, as far as the model goes. For comparison.
        steps: H, of each reverse run; None for fewer at lower levels, see `Prior.walk`.
        sweeps, first_level, last_level: of the ladder; None for the ends that suit the process.
    """

    mixes: ClassVar[bool] = True
    levels: Sequence[float] = ()
    step: str = "auto"
    proposals: int | None = None
    passes: int | None = None
    polish: int = 0
    start: str = "data"
    published: bool = False
    steps: int | None = None
    sweeps: int = 60
    first_level: float | None = None
    last_level: float | None = None

    def method(self, prior: Prior, problem: Problem) -> Method:
        check_at_least_one(passes=self.passes, proposals=self.proposals, steps=self.steps)
        refuse(self.polish < 0, f"posterior.polish must not be negative, not {self.polish}")
        if self.published and (self.step, self.passes) != ("auto", None):
            raise UserError("posterior=sgdd_published takes Metropolis steps: leave out posterior.step and passes")
        default = (_LAST_OF_COUNTS if prior.process.max_count > 1 else _LAST_OF_BITS, _LAST)
        ends = _PUBLISHED if self.published else (_FIRST, default[not isinstance(prior.process, PureDeath)])
        first = min(ends[0], prior.final_time) if self.first_level is None else self.first_level
        last = min(ends[1], first) if self.last_level is None else self.last_level
        return self if self.levels else replace(self, levels=anneal(self.sweeps, first, last))

    def length(self, prior: Prior) -> int:
        return len(self.levels) + self.polish

    def draw(self, run: Run) -> Tensor:
        """Samples, counts [n, *shape]: see `Method.draw`."""
        prior, problem, streams = run.prior, run.problem, run.streams
        coupling, step = self.coupling(prior), self.likelihood_step(prior, problem)
        x = run.begin(self.start)
        if isinstance(step, Metropolis):
            z = possible_state(problem, coupling, x, self.levels[0], streams.fold_in(-2))
        else:
            z = coupling.draw(x, self.levels[0], streams.fold_in(-2).step(0))
        for k, t in enumerate(self.levels):
            if isinstance(problem, Blind):
                step = replace(step, problem=problem.settled(x, streams.fold_in(3 * k + 2).step(0)))
            moved = step(x, z, t, streams.fold_in(3 * k))
            z = moved.z
            x = prior.reverse(z, t, streams.fold_in(3 * k + 1), self.steps)
            run.record(t, x, z, acceptance=moved.acceptance, calls=moved.calls + 1)
        return polished(run, x, self.polish, streams.fold_in(3 * len(self.levels))) if self.polish else x

    def check(self, prior: Prior, problem: Problem) -> None:
        ensure(self.start in ("data", "prior"), f"start must be data or prior, not {self.start}")
        check_levels(self.levels, prior)
        self.likelihood_step(prior, problem)
        exact = self.published and isinstance(problem, Measured) and type(problem.noise) is Exact
        ensure(not exact, "as published, a chain needs a likelihood that is nowhere 0: noise=flips")

    def likelihood_step(self, prior: Prior, problem: Problem) -> HeatBath | Metropolis:
        """z given x; raises ValueError for one that the problem does not allow."""
        kind = "metropolis" if self.published else self.step
        problem = problem.settled() if isinstance(problem, Blind) else problem
        proposals = self.proposals or (2 if self.published else 4) * math.prod(prior.shape)
        passes = self.passes or (2 if prior.process.max_count == 1 else 1)
        return make_step(problem, self.coupling(prior), prior.shape, kind, proposals, passes, self.published)

    def coupling(self, prior: Prior) -> Coupling:
        """K_t, or the published potential [Chu 2025, eq. 10]."""
        mismatch = float(prior.process.max_count) if self.published and isinstance(prior.process, Uniform) else 1.0
        return Coupling(prior.process, mismatch, rescaled=not self.published)


def possible_state(problem: Problem, coupling: Coupling, x: Tensor, t: float, streams: SampleStreams) -> Tensor:
    """z ~ K_t(x, .), states [n, *shape]; where its likelihood is 0, one nearer to x or to the measurement.

    Ours (tests/posterior/test_parts.py).

    Raises:
        ValueError: no possible state was found in any row.
    """
    relaxed = coupling.relaxed(problem, tuple(x.shape[1:]), t)
    near = suggested(problem, len(x), tuple(x.shape[1:]))
    drawn = (coupling.draw(x, t * _NEARER**k, streams.step(k)) for k in range(1, _TRIES + 1))
    given = [x] if near is None else [x, near.to(x.device).ceil().clamp(0, coupling.process.max_count)]
    z = coupling.draw(x, t, streams.step(0))
    for other in itertools.chain(drawn, given):
        bad = torch.isneginf(relaxed.log_likelihood(z))
        if not bool(bad.any()):
            return z
        z = where_rows(bad, other.to(z.dtype), z)
    bad = torch.isneginf(relaxed.log_likelihood(z))
    ensure(not bool(bad.all()), "no state of positive likelihood was found near the start: give another one")
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
    """The best step that a problem allows.

    Args:
        kind: "auto", or "heat_bath" or "metropolis" to insist.
        proposals: of Metropolis; None for four per element.
        passes: of the heat bath.
        restarted: see `Metropolis`.

    Raises:
        ValueError: an unknown kind, or a heat bath of a black box.
    """
    ensure(kind in ("auto", "heat_bath", "metropolis"), f"step must be auto, heat_bath or metropolis, not {kind}")
    if isinstance(problem, Measured) and kind != "metropolis":
        incidence = problem.incidence(shape)
        trees = coupling.process.num_states <= _FEW_STATES
        made = [] if incidence is None else forests(incidence, math.prod(shape), trees)
        if made and (kind == "heat_bath" or len(made) <= _MOST_COLOURS):
            return HeatBath(problem, coupling, made, passes)
    if kind == "heat_bath":
        raise ValueError("step=heat_bath needs a likelihood of terms with few elements each; this one is a black box")
    return Metropolis(problem, coupling, proposals or 4 * math.prod(shape), restarted)


class Forest(NamedTuple):
    """Elements drawn together: no two share a term but neighbours in a tree, whose terms have no other element.

    Attributes:
        elements: their numbers, int64 [E].
        odd: which are an odd number of branches from their tree's root, bool [E].
        terms, places: term terms[p] has the element elements[places[p]] alone of these, int64 [P].
        branches: places of child and parent, and number of their term, int64 [3, B], by distance from the roots.
    """

    elements: Tensor
    odd: Tensor
    terms: Tensor
    places: Tensor
    branches: list[Tensor]


def forests(incidence: Tensor, elements: int, trees: bool = False) -> list[Forest]:
    """All elements in forests, by greedy colouring, those with most terms first [Welsh and Powell 1967].

    Args:
        incidence: pairs (term, element), int64 [2, P].
        elements: D.
        trees: whether an element may become a leaf where it shares a term of two elements with one of a forest.
    """
    of_term, of_element = defaultdict(list), defaultdict(list)
    for term, element in incidence.T.tolist():
        of_term[term].append(element)
        of_element[element].append(term)
    colour, depth, parent, tie = torch.full((4, elements), -1)
    chosen: dict[int, int] = {}
    for element in sorted(range(elements), key=lambda i: -len(of_element[i])):
        met = defaultdict(list)  # of every colour, whom it has terms with
        for term in of_element[element]:
            for other in of_term[term]:
                if other in chosen:
                    met[chosen[other]].append((other, term))
        own = {c: len(of_term[ties[0][1]]) == 2 and len(ties) == 1 and trees for c, ties in met.items()}
        chosen[element] = colour[element] = next(c for c in itertools.count() if own.get(c, True))
        depth[element] = 0
        for other, term in met.get(chosen[element], ()):
            parent[element], tie[element], depth[element] = other, term, depth[other] + 1
    made = []
    for number in range(int(colour.max()) + 1):
        members = (colour == number).nonzero()[:, 0]
        place = torch.full((elements,), -1)
        place[members] = torch.arange(len(members))
        alone = (colour[incidence[1]] == number) & ~torch.isin(incidence[0], tie[members])
        leaves = [members[depth[members] == d] for d in range(1, int(depth[members].max()) + 1)]
        branches = [torch.stack([place[leaf], place[parent[leaf]], tie[leaf]]) for leaf in leaves]
        odd = depth[members] % 2 == 1
        made.append(Forest(members, odd, incidence[0, alone], place[incidence[1, alone]], branches))
    return made


@dataclass(frozen=True)
class HeatBath:
    """Forests drawn from their exact conditionals, one after the other; with one forest it is exact.

    What the terms say is summed up from the leaves, then levels are drawn from the roots on (belief propagation, exact
    on trees [Pearl 1988]); of elements that share no term each is a root.

    Args:
        problem: local.
        coupling: K_t.
        forests: see `forests`.
        passes: over all elements; one is enough where there is one forest.
    """

    problem: Measured
    coupling: Coupling
    forests: list[Forest]
    passes: int = 1

    def __call__(self, x: Tensor, z: Tensor, t: float, streams: SampleStreams) -> StepInfo:
        """A step of z given x, [n, *shape] each, at time t: of every forest from its exact conditional, as in the
        class.
        """
        table = self.coupling.log_table(t, x.device).clamp(min=_NEVER)
        relaxed, calls = self.coupling.relaxed(self.problem, tuple(x.shape[1:]), t), 0
        for turn in range(self.passes if len(self.forests) > 1 else 1):
            for number, forest in enumerate(self.forests):
                log_k = table[x.flatten(1)[:, forest.elements].long()]  # [n, E, S]
                reached = int((log_k > _NEVER).flatten(0, 1).any(0).nonzero()[-1]) + 1  # of pure death: x's largest
                summed = self._summed(z, relaxed, forest, log_k[..., :reached])
                if bool((summed[0].amax(-1) <= _NEVER / 2).any()):  # impossible already
                    summed = self._summed(z, relaxed, forest, log_k)
                flat, source = z.flatten(1).clone(), streams.step(turn * len(self.forests) + number)
                flat[:, forest.elements] = _drawn(forest, *summed, source).to(flat.dtype)
                z = flat.view_as(z)
                calls += reached ** (2 if forest.branches else 1)
        return StepInfo(z, 1.0, calls)

    def _summed(self, z: Tensor, relaxed: Relaxed, forest: Forest, log_k: Tensor) -> tuple[Tensor, list[Tensor]]:
        """What every level of every element is worth, in logarithms [n, E, S], the branches beyond it summed over.

        The other elements are z [n, *shape]; log_k is [n, E, S]. Beside it the terms of each distance's branches, by
        levels of parent and child: [n, B, S, S]. From the leaves to the roots [Pearl 1988], as in the class.
        """
        (n, elements, states), parts = log_k.shape, []
        evaluated = states ** (2 if forest.branches else 1) * max(z[0].numel(), len(forest.terms), 1)
        odd, places = forest.odd.to(z.device), forest.places.to(z.device)
        for chunk in torch.arange(n, device=z.device).split(max(1, _CHUNK // evaluated)):
            of_chunk = replace(relaxed, problem=cast(Measured, relaxed.problem).select(chunk, tuple(z.shape[1:])))
            terms = self._terms(z[chunk], of_chunk, forest, states)
            own = terms[..., forest.terms]
            own = torch.where(odd[places], own[0], own[:, 0])
            total = torch.zeros(states, len(chunk), elements, dtype=torch.float64, device=z.device)
            weight = log_k[chunk] + total.index_add_(2, places, own).permute(1, 2, 0)
            pairs = [terms[..., term] for _, _, term in forest.branches]
            for d, (_, parent, _) in enumerate(forest.branches):
                pairs[d] = torch.where(odd[parent], pairs[d].transpose(0, 1), pairs[d]).permute(2, 3, 0, 1)
            for (child, parent, _), pair in zip(forest.branches[::-1], pairs[::-1], strict=True):
                weight.index_add_(1, parent.to(z.device), torch.logsumexp(weight[:, child, None] + pair, -1))
            parts.append((weight, *pairs))
        weight, *pairs = (torch.cat(part) for part in zip(*parts, strict=True))
        return weight, pairs

    @staticmethod
    def _terms(z: Tensor, relaxed: Relaxed, forest: Forest, states: int) -> Tensor:
        """Every term where the even elements of a forest are at one level and its odd ones at another:
        [states, states, n, K].

        [states, 1, n, K] without odd ones; z is [n, *shape]. Of `Relaxed.terms`.
        """
        parts, even, odd = [], forest.elements[~forest.odd].to(z.device), forest.elements[forest.odd]
        for level in range(states if forest.branches else 1):
            flat = z.flatten(1).clone()
            flat[:, odd] = level
            parts.append(relaxed.terms(flat.view_as(z), even, states).view(states, len(z), -1))
        return torch.stack(parts, 1).clamp(min=_FORBIDDEN)


def _drawn(forest: Forest, log_weight: Tensor, log_pair: list[Tensor], source: RandomSource) -> Tensor:
    """Levels of all elements, int64 [n, E], from the roots on [Pearl 1988]; see `HeatBath._summed`, which gives
    [n, E, S].
    """
    child = torch.cat([torch.empty(0, dtype=torch.int64), *(children for children, _, _ in forest.branches)])
    root = ~torch.isin(torch.arange(len(forest.elements)), child)
    drawn = torch.zeros(log_weight.shape[:2], dtype=torch.int64, device=log_weight.device)
    drawn[:, root] = categorical(torch.softmax(log_weight[:, root], -1), source)
    for (child, parent, _), pair in zip(forest.branches, log_pair, strict=True):
        given = pair.gather(2, drawn[:, parent, None, None].expand(-1, -1, 1, pair.shape[-1]))[:, :, 0]
        drawn[:, child] = categorical(torch.softmax(log_weight[:, child] + given, -1), source)
    return drawn


@dataclass(frozen=True)
class Metropolis:
    """Proposals at one element after the other [Chu 2025, section 3.3].

    Of the uniform process a uniform value is proposed; of others a draw of K_t(x_i, .) ("refresh"), whose own
    probability then cancels.

    Args:
        problem: anything with a log-likelihood.
        coupling: K_t.
        proposals: T, per step.
        restarted: begin every step at z = x, as published; the chain has another law: docs/explanation/posteriors.md.
    """

    problem: Problem
    coupling: Coupling
    proposals: int
    restarted: bool = False

    def __call__(self, x: Tensor, z: Tensor, t: float, streams: SampleStreams) -> StepInfo:
        """A step of z given x, [n, *shape] each, at time t: as many proposals as the class has [Chu 2025, section 3.3].

        Each is taken by `accepted`.
        """
        z = x.to(z.dtype) if self.restarted else z
        table = self.coupling.log_table(t, x.device) if isinstance(self.coupling.process, Uniform) else None
        relaxed = self.coupling.relaxed(self.problem, tuple(x.shape[1:]), t)
        now = relaxed.log_likelihood(z)
        taken = torch.zeros(len(x), dtype=torch.float64, device=x.device)
        for number in range(self.proposals):
            source = streams.step(number)
            proposed, log_ratio = self._propose(x, z, t, table, source)
            then = relaxed.log_likelihood(proposed)
            yes = accepted(then - now + log_ratio, now, uniform((len(x), 1), source, x.device))
            z, now = where_rows(yes, proposed, z), where_rows(yes, then, now)
            taken += yes
        return StepInfo(z, taken / max(1, self.proposals), self.proposals + 1)

    def _propose(
        self, x: Tensor, z: Tensor, t: float, table: Tensor | None, source: RandomSource
    ) -> tuple[Tensor, Tensor]:
        """Proposals [n, *shape], and the logarithm of what K_t and the proposal contribute to the ratio, [n].

        [Hastings 1970], as in the class; table is log K_t [max_count + 1, num_states] of the uniform process, else
        None.
        """
        flat, (n, elements) = z.flatten(1), z.flatten(1).shape
        site = (uniform((n, 1), source, x.device) * elements).long().clamp_(max=elements - 1)
        here = x.flatten(1).gather(1, site)
        if table is None:
            proposed = flat.scatter(1, site, self.coupling.draw(here, t, source).to(flat.dtype))
            return proposed.view_as(z), torch.zeros(n, dtype=torch.float64, device=x.device)
        value = (uniform((n, 1), source, x.device) * table.shape[1]).long().clamp_(max=table.shape[1] - 1)
        log_ratio = table[here.long(), value] - table[here.long(), flat.gather(1, site).long()]
        return flat.scatter(1, site, value.to(flat.dtype)).view_as(z), log_ratio[:, 0]
