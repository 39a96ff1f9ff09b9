"""``python -m bench.course.notebook NOTEBOOK FOLDER …``: run the cells of a notebook in a fresh kernel, in place.

A process of its own, so that the caller can end it with all that is below it, and holds neither
the kernel's sockets nor the handlers that nbclient sets for signals. The notebook is written with the outputs of all
cells that ran. What went wrong is one line on standard output that begins with FAILED, and exit code 1: other lines may
follow it, of an exit handler of nbclient that complains of a kernel which never was.
"""

import sys
from pathlib import Path

from bench.course.chapters import FAILED, kernel_command, required

nbformat, nbclient = required("nbformat"), required("nbclient")
exceptions = nbclient.exceptions


def main(path: Path, folder: Path, cell_limit_s: int, start_limit_s: int) -> int:
    """Returns the exit code. folder: where the kernel works. The limits are of one cell, and of the kernel's start."""
    notebook = nbformat.read(path, 4)
    client = nbclient.NotebookClient(
        notebook, timeout=cell_limit_s, startup_timeout=start_limit_s, km=manager(), coalesce_streams=True,
        resources={"metadata": {"path": str(folder)}},
    )  # fmt: skip
    try:
        client.execute()
    except exceptions.CellExecutionError as error:
        said = f"{error.ename}: {first_line(error.evalue)}"
    except exceptions.CellTimeoutError:
        said = f"a cell took longer than {cell_limit_s} s"
    except exceptions.DeadKernelError:
        said = "the kernel died: out of memory, or a crash in a library"
    except RuntimeError as error:
        if "Kernel" not in str(error):
            raise
        said = f"the kernel did not start within {start_limit_s} s: is this machine very busy?"
    else:
        return 0
    finally:
        nbformat.write(notebook, path)
    print(f"{FAILED}{said}", flush=True)
    return 1


def first_line(text: str) -> str:
    return (text.splitlines() or [""])[0]


def manager():
    from jupyter_client.kernelspec import KernelSpec
    from jupyter_client.manager import AsyncKernelManager

    class Manager(AsyncKernelManager):
        kernel_spec = KernelSpec(argv=kernel_command(), display_name="Python 3", language="python")

    return Manager(kernel_name="python3")


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), *map(int, sys.argv[3:])))
