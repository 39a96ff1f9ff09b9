"""``python -m bench.course.notebook NOTEBOOK FOLDER CELL_LIMIT_S START_LIMIT_S``: execute a notebook in place.

A separate process, so that the caller can end it with everything below it. An error is one line on standard output
that starts with FAILED, and exit code 1; nbclient's exit handlers may print more lines after it.
"""

import sys
from pathlib import Path

from bench.course.chapters import FAILED, kernel_command, required

nbformat, nbclient = required("nbformat"), required("nbclient")
exceptions = nbclient.exceptions


def main(path: Path, folder: Path, cell_limit_s: int, start_limit_s: int) -> int:
    """Returns the exit code. folder: the kernel's working folder."""
    from jupyter_client.kernelspec import KernelSpec
    from jupyter_client.manager import AsyncKernelManager

    class Manager(AsyncKernelManager):
        kernel_spec = KernelSpec(argv=kernel_command(), display_name="Python 3", language="python")

    notebook = nbformat.read(path, 4)
    client = nbclient.NotebookClient(
        notebook, timeout=cell_limit_s, startup_timeout=start_limit_s, km=Manager(kernel_name="python3"),
        coalesce_streams=True, resources={"metadata": {"path": str(folder)}},
    )  # fmt: skip
    try:
        client.execute()
    except exceptions.CellExecutionError as error:
        reason = f"{error.ename}: {(error.evalue.splitlines() or [''])[0]}"
    except exceptions.CellTimeoutError:
        reason = f"a cell took longer than {cell_limit_s} s"
    except exceptions.DeadKernelError:
        reason = "the kernel died: out of memory, or a crash in a library"
    except RuntimeError as error:
        if "Kernel" not in str(error):
            raise
        reason = f"the kernel did not start within {start_limit_s} s: is this machine very busy?"
    else:
        return 0
    finally:
        nbformat.write(notebook, path)
    print(f"{FAILED}{reason}", flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), *map(int, sys.argv[3:])))
