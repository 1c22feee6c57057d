"""command doit verify_qnn - compare the exported graphs with the CPU model"""

from __future__ import annotations

import sys

from doit.cmd_base import DoitCmdBase

from mnnqnn_tasks.errors import MnnqnnError, VerifyError


class VerifyQnn(DoitCmdBase):  # type: ignore[misc]
    """Runs every graph on the host emulator; exit code 1 under the threshold."""

    doc_purpose = "compare exported graphs with the CPU model on the host emulator"
    doc_usage = "[MODEL[:TARGET] ...]"
    doc_description = None

    def _execute(self, pos_args: list[str]) -> int:
        try:
            from mnnqnn_tasks.verify import run
        except ImportError:
            raise SystemExit("verify_qnn is not part of this version") from None
        try:
            return int(run.verify(pos_args))
        except VerifyError as error:
            sys.stderr.write(f"{error}\n")
            return 1
        except MnnqnnError as error:
            sys.stderr.write(f"ERROR: {error}\n")
            return 3
