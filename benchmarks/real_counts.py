"""Real counts that any environment has: `python -m benchmarks.real_counts tokens tokens.npz`.

They come from the Python files of installed packages, and change slightly with these. A seed
decides the order of the files.

    tokens    counts of about 80 signs and words in a file, with its `package` and `kind`, tests or
              source
    opcodes   counts of the 60 most frequent instructions in a compiled function
    words     counts of the 200 most frequent words in the docstrings of a file
"""

from __future__ import annotations

import argparse
import ast
import dis
import keyword
import random
import re
import sysconfig
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
_SIGNS = [*"()[]{}:,.=+-*/%<>@#\"'|&\\;", "==", "->", "**", "!=", "+="]
_NAMES = [
    "None",
    "True",
    "False",
    "self",
    "print",
    "range",
    "len",
    "int",
    "str",
    "float",
    "__init__",
    "super",
]
_NAMES += ["list", "dict"]
_TOKEN = re.compile(r"[A-Za-z_]\w*|==|!=|->|\*\*|\+=|[^\s\w]")
_PACKAGES = ["matplotlib", "networkx", "numba", "numpy", "scipy", "sklearn", "sympy", "torch"]
_SIZES = (300, 60_000)
# Bytes of a file; instructions or words of a sample at least.
_FEWEST = 20


def sources(seed: int, packages: list[str] | None = None) -> Iterator[tuple[Path, str]]:
    """Return the shuffled files of packages and their contents."""
    root = Path(sysconfig.get_paths()["purelib"])
    files = sorted(
        path for path in root.rglob("*.py") if _SIZES[0] < path.stat().st_size < _SIZES[1]
    )
    random.Random(seed).shuffle(files)
    for path in files:
        inside = path.relative_to(root)
        if packages is None or inside.parts[0] in packages:
            yield inside, path.read_text(errors="replace", encoding="utf-8")


def tokens(number: int, seed: int) -> dict[str, Array]:
    """Return [N, D] with package and kind."""
    vocabulary = [*_SIGNS, *(word for word in keyword.kwlist if word.islower()), *_NAMES]
    rows = []
    packages = []
    kinds = []
    for path, text in sources(seed, _PACKAGES):
        occurrences = Counter(_TOKEN.findall(text))
        rows.append([occurrences[word] for word in vocabulary])
        packages.append(path.parts[0])
        kinds.append("tests" if any("test" in part for part in path.parts[1:]) else "source")
        if len(rows) == number:
            break
    return {**_table(rows), "package": np.array(packages), "kind": np.array(kinds)}


def opcodes(number: int, seed: int) -> dict[str, Array]:
    """Return [N, 60]."""
    return _most_frequent(_functions(seed), number, 60)


def words(number: int, seed: int) -> dict[str, Array]:
    """Return [N, 200]."""
    return _most_frequent(_documents(seed), number, 200)


def _functions(seed: int) -> Iterator[Counter[str]]:
    for path, text in sources(seed):
        waiting: list[Any] = []
        try:
            waiting = [compile(text, str(path), "exec", dont_inherit=True)]
        except (SyntaxError, ValueError):
            continue
        while waiting:
            code = waiting.pop()
            inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
            waiting += inner
            if code.co_name.isidentifier():  # a function or class, no module or comprehension
                yield Counter(step.opname for step in dis.get_instructions(code))


def _documents(seed: int) -> Iterator[Counter[str]]:
    for _, text in sources(seed):
        try:
            nodes = list(ast.walk(ast.parse(text)))
        except (SyntaxError, ValueError):
            continue
        kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        docstrings = [ast.get_docstring(node) or "" for node in nodes if isinstance(node, kinds)]
        yield Counter(re.findall(r"[a-z]{2,}", " ".join(docstrings).lower()))


def _most_frequent(
    samples: Iterator[Counter[str]], number: int, num_words: int
) -> dict[str, Array]:
    """Count what occurs in the most samples, with one file at a time."""
    selected = []
    for sample in samples:
        if sum(sample.values()) >= _FEWEST:
            selected.append(sample)
        if len(selected) == number:
            break
    frequencies = Counter(word for sample in selected for word in sample)
    names = [word for word, _ in frequencies.most_common(num_words)]
    return _table([[sample[name] for name in names] for sample in selected])


def _table(rows: list[list[int]]) -> dict[str, Array]:
    x = np.array(rows)
    return {"counts": x[:, x.std(0) > 0]}


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    makers = {"tokens": tokens, "opcodes": opcodes, "words": words}
    parser.add_argument("kind", choices=list(makers))
    parser.add_argument("path", type=Path, help="of the .npz to write")
    parser.add_argument("--number", type=int, default=4500, help="of samples")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    arrays = makers[options.kind](options.number, options.seed)
    np.savez_compressed(options.path, **arrays)  # type: ignore[arg-type]
    x = arrays["counts"]
    print(f"{options.path}: {list(x.shape)}, largest {x.max()}, zeros {(x == 0).mean():.2f}")


if __name__ == "__main__":
    main()
