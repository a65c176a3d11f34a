# SPDX-FileCopyrightText: 2026 The fusedops authors
# SPDX-License-Identifier: Apache-2.0
"""`fusedops demo`."""

from __future__ import annotations

from typing import Annotated

import typer


def demo(
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda or cuda:N; by default the GPU if there is one.")
    ] = None,
) -> None:
    """Builds, runs and times both flagship ops beside the unfused torch chains."""
    from rich.console import Console

    from fusedops.demo import pick_device, run

    try:
        place = pick_device(device)
    except RuntimeError as error:
        raise typer.BadParameter(str(error), param_hint="--device") from None
    run(place, Console())
