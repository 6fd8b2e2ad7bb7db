"""Hooks of MkDocs.

They add pages from the repository's root, the page of all settings, a page for every package, and
MathML formulas.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import choices_page  # next to this file
import latex2mathml.converter
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
# pages of the repository's root, and their names in the site where these differ
AT_ROOT = {"README.md": "index.md", "CONTRIBUTING.md": "", "CHANGELOG.md": "", "SECURITY.md": ""}
FIRST = {
    "blackout.cli.from_data.from_data": "a model of counts in memory, for a Lightning Trainer",
    "blackout.training.loading.load_model": "a trained model, of a run or an export",
    "blackout.training.model.Model": "what every model can do: `sample`, `batches`, `push_to_hub`",
    "blackout.diffusion.model.BlackoutDiffusion": "network, head, process, schedule, loss, sampler",
    "blackout.data.count_data.CountData": "training, validation and test counts, and their facts",
    "blackout.diffusion.processes.base.Process": "how counts decay: forward draws, bridges, rates",
    "blackout.diffusion.heads.base.Head": "what a network's outputs mean",
    "blackout.diffusion.losses.Loss": "what is trained on",
    "blackout.diffusion.kernels.base.Kernel": "one step of a sampler",
    "blackout.evaluation.image_scores.ImageScores": "FID, IS, KID, precision and recall",
}
# links to files that are no pages: the site shows their names
OUTSIDE = re.compile(
    r"\[([^\]]+)\]\((?:\.\./)*((?:LICENSE|CITATION\.cff|examples|benchmarks|tests)[\w/.]*)\)"
)

# a script of the theme that makes its search work from disk, where browsers refuse workers
SHIM = re.compile(r'<script src="[^"]*iframe-worker[^"]*"></script>')
# its replacement, which needs no network: a worker that runs in a hidden frame of the page
WORKER = """<script>
if (location.protocol === "file:")
  window.IFrameWorker = window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.body.appendChild(document.createElement("iframe"))
      frame.hidden = true
      this.scope = frame.contentWindow
      this.scope.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      const load = src => new Promise(done => {
        const script = this.scope.document.createElement("script")
        Object.assign(script, { src, onload: done })
        this.scope.document.head.append(script)
      })
      this.scope.importScripts = async (...all) => { for (const src of all) await load(src) }
      this.ready = load(url)
    }
    postMessage(data) {
      this.ready.then(() => this.scope.dispatchEvent(new MessageEvent("message", { data })))
    }
  }
</script>"""


def on_files(files: Files, config: Mapping[str, Any]) -> Files:
    """Add the pages of the root, all settings, and a page for each package with all its modules."""
    for name, page_name in AT_ROOT.items():
        files.append(File.generated(config, page_name or name, content=(ROOT / name).read_text()))
    settings = File.generated(config, "reference/choices.md", content=choices_page.page())
    files.append(settings)
    packages = sorted(path.parent for path in (ROOT / "blackout").glob("**/__init__.py"))
    for package in packages:
        files.append(File.generated(config, _page(package), content=_api(package)))
    listed = "\n".join(
        f"- [{_address(package)}]({Path(_page(package)).name})" for package in packages
    )
    first = "\n".join(f"| [`{name}`][{name}] | {text} |" for name, text in FIRST.items())
    start = f"# API\n\nStart with these ten names.\n\n| name | what it is |\n|---|---|\n{first}"
    packages_head = "Every public name of every module is on the pages of the packages:"
    content = f"{start}\n\n{packages_head}\n\n{listed}\n\n{_index()}\n"
    files.append(File.generated(config, "api/index.md", content=content))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Adapt links to the site, and turn formulas into MathML, which needs no script."""
    if page.file.src_uri.startswith("api/"):
        return markdown
    markdown = markdown.replace("](docs/", "](").replace('src="docs/', 'src="')
    markdown = OUTSIDE.sub(r"`\2`", markdown)
    markdown = re.sub(r"\]\(((?:\.\./)*)README\.md", r"](\1index.md", markdown)
    markdown = markdown.replace("](../../", "](../")
    parts = re.split(r"(```.*?```|`[^`\n]*`)", markdown, flags=re.DOTALL)  # code stays as it is
    parts[::2] = [
        re.sub(r"\$\$(.+?)\$\$|\$([^$\n]+?)\$", _formula, part, flags=re.DOTALL)
        for part in parts[::2]
    ]
    return "".join(parts)


def on_post_page(output: str, **_: Any) -> str:
    """Replace the theme's script from the network in every page."""
    return SHIM.sub(lambda _: WORKER, output)


def on_post_template(output: str, **_: Any) -> str:
    """Replace it in templates such as the 404 page."""
    return SHIM.sub(lambda _: WORKER, output)


def _formula(match: re.Match[str]) -> str:
    """Return a formula, $$block$$ or $inline$, as MathML."""
    block, inline = match.groups()
    if block:
        formula = latex2mathml.converter.convert(block.strip(), display="block")
        return f'<div class="formula">{formula}</div>'
    # in a span, since a line that begins with <math> would become a paragraph
    return f"<span>{latex2mathml.converter.convert(inline)}</span>"


def _index() -> str:
    """Return a table of all files: the first paragraph of the docstring, and the public names."""
    rows = []
    for path in sorted((ROOT / "blackout").rglob("*.py")):
        tree = ast.parse(path.read_text())
        if not (text := ast.get_docstring(tree)):
            continue
        first = " ".join(text.split("\n\n")[0].split()).replace("|", "\\|")
        made = [part.name for part in tree.body if isinstance(part, ast.ClassDef | ast.FunctionDef)]
        public = ", ".join(f"`{name}`" for name in made if not name.startswith("_"))
        rows.append(f"| `{path.relative_to(ROOT)}` | {first} | {public} |")
    return "\n".join(
        ["## Where things are", "", "| file | what is in it | names |", "|---|---|---|", *rows]
    )


def _page(package: Path) -> str:
    return f"api/{_address(package)}.md"


def _address(package: Path) -> str:
    return ".".join(package.relative_to(ROOT).parts)


def _api(package: Path) -> str:
    """The package and its modules, those of packages below it apart."""
    modules = [path.stem for path in sorted(package.glob("*.py")) if not path.stem.startswith("__")]
    names = [_address(package), *(f"{_address(package)}.{name}" for name in modules)]
    blocks = [
        f"::: {names[0]}\n    options: {{ members: false }}",
        *(f"::: {name}" for name in names[1:]),
    ]
    return f"# {names[0]}\n\n" + "\n\n".join(blocks) + "\n"
