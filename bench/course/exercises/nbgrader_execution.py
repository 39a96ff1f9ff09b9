"""How nbgrader runs a notebook here: a cell that hangs, or a kernel that dies, costs that task and those after it.

A module of its own because it can be imported only where nbgrader is.
"""

from nbclient.exceptions import CellTimeoutError, DeadKernelError
from nbformat.v4 import new_output
from nbgrader.preprocessors import Execute


class Stuck(Exception):
    """The kernel does not answer any more."""


class Execution(Execute):
    """nbgrader's own, and three things more.

    - After two cells in a row that were not back in time, the kernel is taken for stuck, and ended.
    - When it is stuck or has died, the cells that have not run count as failed, and those that have keep their points.
    - What a test prints as a warning is no failure, and what it shows as a value is no partial score.
    """

    def preprocess(self, notebook, resources):
        """Run all cells; returns the notebook with outputs."""
        self.late, self.reached = 0, 0
        try:
            return super().preprocess(notebook, resources)
        except DeadKernelError:
            why = "the kernel has died"
        except CellTimeoutError:
            why = f"a cell was not back within {self.timeout} s, and did not end when it was interrupted"
        except Stuck:
            why = f"two cells in a row were not back within {self.timeout} s"
        for index, cell in enumerate(notebook.cells):
            if cell.cell_type == "code" and index >= self.reached:
                error = f"this cell has not run to its end: {why}"
                cell.outputs.append(new_output("error", ename="NotRun", evalue=error, traceback=[f"NotRun: {error}"]))
        return notebook, resources

    def on_cell_start(self, cell, cell_index, **_):
        """A cell begins."""
        self.reached = cell_index

    def on_cell_executed(self, **kwargs):
        """A cell has ended, or was ended."""
        super().on_cell_executed(**kwargs)
        in_time = kwargs["execute_reply"]["content"].get("ename") != self.error_on_timeout["ename"]
        self.late = 0 if in_time else self.late + 1
        if self.late == 2:
            raise Stuck
        for output in kwargs["cell"].outputs:
            if output.output_type == "stream":
                output.name = "stdout"
            elif output.output_type == "execute_result":
                output.output_type = "display_data"
                del output["execution_count"]
