"""Writing of samples to an .npz file, batch by batch, so that they need not fit into memory."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from blackout.errors import ensure
from blackout.files import replacing
from blackout.protocols import OutputNames, Samples

Array = npt.NDArray[Any]


@contextmanager
def sample_file(
    path: Path,
    num_samples: int,
    names: OutputNames = OutputNames(),
    about: Mapping[str, Any] | None = None,
) -> Iterator[Callable[[Samples], None]]:
    """Write samples to an .npz batch by batch: yield the function that appends a batch.

    The function takes `samples` [b, ...] and further arrays [b, ...] by name, the same names in
    every call. It writes `samples` at once; the other arrays are small and are written at the end.
    Images [b, C, H, W] are written channels last, unless `names` has a shape. The file appears
    when the context is left without an error and is complete.

    Args:
        path: of the .npz.
        num_samples: how many samples it will hold.
        names: name of the array of samples, and the shape of each.
        about: numbers and arrays that are saved next to the samples.

    Raises:
        ValueError: more or fewer samples than `num_samples`.
    """
    num_missing = num_samples
    member: Any = None
    batches: dict[str, list[Tensor]] = {}
    with (
        replacing(path, durably=True) as part,
        zipfile.ZipFile(part, "x", zipfile.ZIP_DEFLATED) as archive,
    ):
        # 1. Samples, batch by batch; the header declares all of them.
        with ExitStack() as members:

            def write(samples: Samples) -> None:
                nonlocal num_missing, member
                num_rows = len(samples["samples"])
                ensure(
                    num_rows <= num_missing,
                    f"{num_rows} samples for a file that has capacity for {num_missing} more",
                )
                rows = _file_rows(samples["samples"], names)
                if member is None:
                    file = archive.open(f"{names.array}.npy", "w", force_zip64=True)
                    member = members.enter_context(file)
                    header = np.lib.format.header_data_from_array_1_0(rows)
                    header["shape"] = (num_samples, *rows.shape[1:])
                    np.lib.format.write_array_header_1_0(member, header)
                member.write(rows.tobytes())
                for name, values in samples.items():
                    # names with _ are values of this machine, such as seconds
                    if name != "samples" and not name.startswith("_"):
                        batches.setdefault(name, []).append(values.cpu())
                num_missing -= len(rows)

            yield write

        # 2. The other arrays.
        arrays = {name: torch.cat(parts).numpy() for name, parts in batches.items()}
        arrays.update({name: np.array(value) for name, value in (about or {}).items()})
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w") as file:
                np.lib.format.write_array(file, array)
        ensure(not num_missing, f"{num_missing} of {num_samples} samples were not written")


def _file_rows(samples: Tensor, names: OutputNames) -> Array:
    """Return samples [b, ...] in the layout and the units of their file."""
    if names.shape is not None:
        samples = samples.reshape(len(samples), *names.shape)
    elif samples.ndim == 4:
        samples = samples.permute(0, 2, 3, 1)
    offset, gain = names.units
    if (offset, gain) != (0, 1):
        samples = samples.int() * gain + offset
    return samples.contiguous().cpu().numpy()
